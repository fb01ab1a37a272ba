/* test_checkpoint.c - checkpoints: a load restores the saved bits; what does not match is refused by name before anything changes. */
#include "helper_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "runtime/store.h"

enum { BOTH = LS_LOAD_OPTIMIZER };

static void checkpoint_test_save(const ls_store *s, uint64_t step)
{
    ls_train_state state = small_state(step);

    OK(ls_checkpoint_save(scratch("ck"), s, NULL, &state, NULL));
}

static void checkpoint_restores_every_bit(void **state)
{
    static const struct { ls_dtype type; int master; const char *states; } cases[] = {
        { LS_F32, 0, "m v" }, { LS_BF16, 1, "m v" }, { LS_BF16, 0, "m" }, { LS_F16, 1, NULL }, { LS_F64, 0, "m v" },
    };
    ls_train_state want = small_state(200), got;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ls_store *a = small_store(cases[i].type, cases[i].master, cases[i].states);
        ls_store *b = small_store(cases[i].type, cases[i].master, cases[i].states);

        small_fill(a, i);
        small_fill(b, 99);
        assert_false(small_same(a, b));
        checkpoint_test_save(a, 200);
        memset(&got, 0xa5, sizeof got);
        OK(ls_checkpoint_load(scratch("ck/step_00000200"), b, BOTH, &got));
        assert_true(small_same(a, b));
        assert_memory_equal(&got, &want, sizeof got);
        ls_store_release(&a);
        ls_store_release(&b);
    }
}

static void check_values(const ls_tensor *t, const ls_tensor *truth)
{
    double want[64], got[64], rounded[64];
    unsigned char as_stored[64 * 8];
    size_t n = ls_tensor_count(t);

    OK(ls_tensor_read(truth, want, LS_F64, n));
    OK(ls_tensor_read(t, got, LS_F64, n));
    ls_convert(as_stored, ls_tensor_dtype(t), want, LS_F64, n);
    ls_convert(rounded, LS_F64, as_stored, ls_tensor_dtype(t), n);
    assert_memory_equal(got, rounded, n * sizeof *got);
}

/* Rule 3 of checkpoint.h: the master copy, if there is one, is the source value. */
static void other_type_loads_from_the_masters(void **state)
{
    static const struct { ls_dtype from; int from_master; ls_dtype to; int to_master; } cases[] = {
        { LS_BF16, 1, LS_F32, 0 }, { LS_F32, 0, LS_BF16, 1 }, { LS_BF16, 0, LS_F32, 0 }, { LS_BF16, 1, LS_F16, 1 },
        { LS_BF16, 0, LS_BF16, 1 }, { LS_BF16, 1, LS_BF16, 0 }, { LS_F32, 0, LS_F64, 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ls_store *a = small_store(cases[i].from, cases[i].from_master, "m");
        ls_store *b = small_store(cases[i].to, cases[i].to_master, "m");

        small_fill(a, i);
        checkpoint_test_save(a, 1);
        OK(ls_checkpoint_load(scratch("ck/step_00000001"), b, BOTH, NULL));
        for (size_t k = 0; k < ls_store_count(a); k++) {
            const ls_tensor *master = ls_store_state(a, k, "master"), *value = ls_store_value(a, k);
            const ls_tensor *truth = master ? master : value;

            check_values(ls_store_value(b, k), cases[i].from == cases[i].to ? value : truth);
            check_values(ls_store_state(b, k, "m"), ls_store_state(a, k, "m"));
            if (ls_store_state(b, k, "master"))
                check_values(ls_store_state(b, k, "master"), truth);
        }
        ls_store_release(&a);
        ls_store_release(&b);
    }
}

/* To generate text from a training run: parameters only, the store's own states untouched. */
static void parameters_load_without_state(void **state)
{
    ls_store *a = small_store(LS_F32, 0, "m v"), *b = small_store(LS_F32, 0, NULL), *c = small_store(LS_F32, 0, "m");
    float m[35];

    (void)state;
    small_fill(a, 1);
    checkpoint_test_save(a, 3);
    OK(ls_checkpoint_load(scratch("ck/step_00000003"), b, 0, NULL));
    OK(ls_checkpoint_load(scratch("ck/step_00000003"), c, 0, NULL));
    for (size_t k = 0; k < ls_store_count(a); k++) {
        check_values(ls_store_value(b, k), ls_store_value(a, k));
        check_values(ls_store_value(c, k), ls_store_value(a, k));
    }
    OK(ls_tensor_read(ls_store_state(c, 0, "m"), m, LS_F32, COUNT_OF(m)));
    for (size_t k = 0; k < COUNT_OF(m); k++)
        assert_true(m[k] == 0);
    ls_store_release(&a);
    ls_store_release(&b);
    ls_store_release(&c);
}

static void manifest_lists_everything(void **state)
{
    ls_store *s = small_store(LS_BF16, 1, "m v");
    ls_train_state want = small_state(12345678);
    ls_checkpoint_info *info;
    ls_model m;
    char path[512];

    (void)state;
    OK(ls_model_preset("llama-tiny", &m));
    m.rope.factor = 8;
    m.norm_eps = 1e-5 / 3;
    m.seed = UINT64_MAX;
    OK(ls_model_check(&m));
    OK(file_write(scratch("tokenizer.json"), "{}", 2));
    OK(file_write(scratch("config.yaml"), "a: 1\n", 5));
    OK(ls_checkpoint_save(scratch("ck"), s, &m, &want,
                           (const char *[]){ scratch("tokenizer.json"), scratch("config.yaml"), NULL }));
    OK(ls_checkpoint_inspect(scratch("ck/step_12345678"), &info));
    assert_int_equal(info->format, 1);
    assert_true(info->has_model);
    check_same_model(&info->model, &m);
    assert_memory_equal(&info->state, &want, sizeof want);
    assert_int_equal(info->type, LS_BF16);
    assert_int_equal(info->parameters, 35 + 5 + 24 + 1);
    assert_int_equal(info->nfiles, 4);
    assert_int_equal(info->nentries, 4 * 4);
    assert_string_equal(info->files[0].name, "parameters_0000_of_0001.safetensors");
    assert_string_equal(info->files[1].name, "optimizer_0000_of_0001.safetensors");
    assert_string_equal(info->files[2].name, "tokenizer.json");
    assert_string_equal(info->files[3].name, "config.yaml");
    assert_string_equal(info->entries[0].name, "a.weight");
    assert_string_equal(info->entries[0].kind, "parameter");
    assert_string_equal(info->entries[4].kind, "master");
    assert_int_equal(info->entries[4].type, LS_F32);
    assert_int_equal(info->entries[4].extent[0], 7);
    for (size_t i = 0; i < info->nfiles; i++) {
        struct file_map map;

        snprintf(path, sizeof path, "%s/%s", scratch("ck/step_12345678"), info->files[i].name);
        OK(file_map_open(path, &map));
        assert_int_equal(map.bytes, info->files[i].bytes);
        info->bytes -= map.bytes;
        file_map_close(&map);
    }
    assert_int_equal(info->bytes, 0);
    ls_checkpoint_info_release(&info);
    assert_null(info);
    ls_store_release(&s);
}

static ls_store *one_parameter_store(const char *name, int ndim, const size_t *size)
{
    ls_store *s;
    int index;

    OK(ls_store_new(NULL, &s));
    OK(store_declare(s, name, (ls_init){ LS_INIT_ONES, 0 }, ndim, size, &index));
    OK(ls_store_allocate(s));
    return s;
}

static void checkpoint_of_another_model_is_refused(void **state)
{
    ls_store *a = small_store(LS_F32, 0, NULL), *same = small_store(LS_F32, 0, NULL);
    const char *path = scratch("ck/step_00000005");
    const size_t size[3] = { 7, 5, 1 };
    float before[35], after[35];
    int index;

    (void)state;
    small_fill(a, 1);
    checkpoint_test_save(a, 5);
    ls_store *b = one_parameter_store("z", 1, size);
    REFUSED(LS_EINVAL, "another model: it has no parameter 'z'", ls_checkpoint_load(path, b, 0, NULL));
    ls_store_release(&b);
    b = one_parameter_store("a.weight", 1, size);
    REFUSED(LS_EINVAL, "its 'a.weight' is [7,5], but this model's is [7]", ls_checkpoint_load(path, b, 0, NULL));
    ls_store_release(&b);
    b = one_parameter_store("a.weight", 3, size);
    REFUSED(LS_EINVAL, "its 'a.weight' is [7,5], but this model's is [7,5,1]", ls_checkpoint_load(path, b, 0, NULL));
    ls_store_release(&b);
    b = one_parameter_store("a.weight", 2, size);
    OK(ls_tensor_read(ls_store_value(b, 0), before, LS_F32, 35));
    REFUSED(LS_EINVAL, "its parameter 'b.bias' [5] does not belong to this model", ls_checkpoint_load(path, b, 0, NULL));
    OK(ls_tensor_read(ls_store_value(b, 0), after, LS_F32, 35));
    assert_memory_equal(before, after, sizeof before);
    ls_store_release(&b);
    OK(store_declare(same, "late", (ls_init){ LS_INIT_ONES, 0 }, 1, size, &index));
    REFUSED(LS_EINVAL, "no parameter 'late'", ls_checkpoint_load(path, same, 0, NULL));
    ls_store_release(&same);
    ls_store_release(&a);
}

static void checkpoint_of_another_optimizer_is_refused(void **state)
{
    ls_store *adam = small_store(LS_F32, 0, "m v"), *sgd = small_store(LS_F32, 0, "m");

    (void)state;
    checkpoint_test_save(adam, 1);
    checkpoint_test_save(sgd, 2);
    REFUSED(LS_EINVAL, "'v' of 'a.weight' is not used here: it was saved with optimizer 'adamw'",
            ls_checkpoint_load(scratch("ck/step_00000001"), sgd, LS_LOAD_OPTIMIZER, NULL));
    REFUSED(LS_EINVAL, "no optimizer state 'v' of 'a.weight'",
            ls_checkpoint_load(scratch("ck/step_00000002"), adam, LS_LOAD_OPTIMIZER, NULL));
    ls_store_release(&adam);
    ls_store_release(&sgd);
}

static void unsaveable_state_is_refused(void **state)
{
    ls_store *s = small_store(LS_F32, 0, NULL), *empty;
    ls_train_state state_of = small_state(1);
    const char *root = scratch("ck"), *missing = scratch("none"), *twice = scratch("t/x");
    const size_t size[1] = { 3 };
    ls_model m;
    int index;

    (void)state;
    OK(ls_store_new(NULL, &empty));
    OK(store_declare(empty, "p", (ls_init){ LS_INIT_ONES, 0 }, 1, size, &index));
    REFUSED(LS_EINVAL, "parameter of 'p' is not allocated", ls_checkpoint_save(root, empty, NULL, &state_of, NULL));
    ls_store_release(&empty);
    state_of.tokens = UINT64_MAX;
    REFUSED(LS_EINVAL, "tokens is 18446744073709551615", ls_checkpoint_save(root, s, NULL, &state_of, NULL));
    state_of = small_state(1);
    memset(state_of.isa, 'x', sizeof state_of.isa);
    REFUSED(LS_EINVAL, "isa has no NUL", ls_checkpoint_save(root, s, NULL, &state_of, NULL));
    state_of = small_state(1);
    OK(ls_model_preset("llama-tiny", &m));
    m.heads = 7;
    REFUSED(LS_EINVAL, "heads", ls_checkpoint_save(root, s, &m, &state_of, NULL));
    assert_false(file_exists(root));
    REFUSED(LS_EIO, "none: cannot open",
            ls_checkpoint_save(root, s, NULL, &state_of, (const char *[]){ missing, NULL }));
    REFUSED(LS_EINVAL, "copied along as 'x'",
            ls_checkpoint_save(root, s, NULL, &state_of, (const char *[]){ twice, twice, NULL }));
    REFUSED(LS_EINVAL, "copied along as 'manifest.json'",
            ls_checkpoint_save(root, s, NULL, &state_of, (const char *[]){ "manifest.json", NULL }));
    OK(file_write(scratch("file"), "x", 1));
    REFUSED(LS_EIO, "file", ls_checkpoint_save(scratch("file"), s, NULL, &state_of, NULL));
    ls_store_release(&s);
}

/* ---- shards of several ranks ---- */

struct box { size_t offset[2], extent[2]; };

/* A checkpoint of one parameter w [4,6] = 0, 1, 2, ..., in n files with a shard each. */
static void write_shards(const struct box *box, size_t n)
{
    ls_checkpoint_file files[4] = { { 0 } };
    ls_checkpoint_entry entries[4];
    ls_checkpoint_info info = {
        .state = small_state(1), .nfiles = n, .nentries = n, .files = files, .entries = entries
    };
    static char names[4][80];
    char path[512], *text;
    size_t bytes;

    OK(file_remove_tree(scratch("ck")));
    OK(file_make_folders(scratch("ck/step_00000001")));
    for (size_t k = 0; k < n; k++) {
        struct safetensor_spec spec = { NULL, LS_F32, 2, { box[k].extent[0], box[k].extent[1] } };
        struct safetensors_writer *w;
        char *key;

        snprintf(names[k], sizeof names[k], "parameters_%04zu_of_%04zu.safetensors", k, n);
        snprintf(path, sizeof path, "%s/%s", scratch("ck/step_00000001"), names[k]);
        entries[k] = (ls_checkpoint_entry){ (char *)"w", (char *)"parameter", LS_F32, 2, { 4, 6 },
                                            { box[k].offset[0], box[k].offset[1] },
                                            { box[k].extent[0], box[k].extent[1] }, k, NULL };
        spec.name = key = manifest_key(&entries[k]);
        OK(safetensors_create(path, 1, &spec, &w));
        mem_free(key);
        for (size_t i = 0; i < box[k].extent[0]; i++)
            for (size_t j = 0; j < box[k].extent[1]; j++) {
                float x = (float)((box[k].offset[0] + i) * 6 + box[k].offset[1] + j);

                OK(safetensors_put(w, &x, sizeof x));
            }
        OK(safetensors_publish(&w, &files[k].bytes, files[k].hash));
        files[k].name = names[k];
    }
    OK(manifest_format(&info, &text, &bytes));
    OK(file_write(scratch("ck/step_00000001/manifest.json"), text, bytes));
    mem_free(text);
}

static void shards_are_assembled(void **state)
{
    static const struct { size_t n; struct box box[4]; const char *message; } cases[] = {
        { 1, { { { 0, 0 }, { 4, 6 } } }, NULL },
        { 2, { { { 2, 0 }, { 2, 6 } }, { { 0, 0 }, { 2, 6 } } }, NULL },
        { 3, { { { 0, 0 }, { 4, 1 } }, { { 0, 1 }, { 4, 3 } }, { { 0, 4 }, { 4, 2 } } }, NULL },
        { 4, { { { 0, 0 }, { 1, 2 } }, { { 1, 0 }, { 3, 2 } }, { { 0, 2 }, { 2, 4 } }, { { 2, 2 }, { 2, 4 } } }, NULL },
        { 2, { { { 0, 0 }, { 4, 3 } }, { { 0, 4 }, { 4, 2 } } }, "20 of 24 elements; [0,3] is missing" },
        { 2, { { { 0, 0 }, { 4, 4 } }, { { 0, 3 }, { 4, 3 } } }, "parameter 'w': shards 0 and 1 overlap at [0,3]" },
        { 3, { { { 0, 0 }, { 4, 2 } }, { { 0, 0 }, { 2, 3 } }, { { 2, 3 }, { 2, 3 } } }, "overlap at [0,0]" },
        { 3, { { { 0, 0 }, { 4, 2 } }, { { 0, 2 }, { 3, 4 } }, { { 3, 4 }, { 1, 2 } } }, "22 of 24 elements; [3,2] is missing" },
    };
    const size_t size[2] = { 4, 6 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ls_store *s = one_parameter_store("w", 2, size);
        float x[24];

        write_shards(cases[i].box, cases[i].n);
        if (cases[i].message) {
            REFUSED(LS_EFORMAT, cases[i].message, ls_checkpoint_load(scratch("ck/step_00000001"), s, BOTH, NULL));
        } else {
            OK(ls_checkpoint_load(scratch("ck/step_00000001"), s, BOTH, NULL));
            OK(ls_tensor_read(ls_store_value(s, 0), x, LS_F32, 24));
            for (int k = 0; k < 24; k++)
                assert_true(x[k] == (float)k);
        }
        ls_store_release(&s);
    }
}

static void different_state_is_detected(void **state)
{
    ls_train_state a = small_state(1), b = a;

    (void)state;
    OK(ls_train_state_same_bits(&a, &b));
    b.step = 5; /* the position of a run may differ */
    OK(ls_train_state_same_bits(&a, &b));
    b.threads = 3;
    REFUSED(LS_EINVAL, "threads were 2, are 3", ls_train_state_same_bits(&a, &b));
    strcpy(b.isa, "avx2");
    REFUSED(LS_EINVAL, "isa was 'avx512', is 'avx2'", ls_train_state_same_bits(&a, &b));
    strcpy(b.data, "another text");
    REFUSED(LS_EINVAL, "data was", ls_train_state_same_bits(&a, &b));
    b.seed = 1;
    REFUSED(LS_EINVAL, "seed was 18446744073709551612, is 1", ls_train_state_same_bits(&a, &b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_set_up, scratch_tear_down)
        TEST(checkpoint_restores_every_bit),
        TEST(other_type_loads_from_the_masters),
        TEST(parameters_load_without_state),
        TEST(manifest_lists_everything),
        TEST(checkpoint_of_another_model_is_refused),
        TEST(checkpoint_of_another_optimizer_is_refused),
        TEST(unsaveable_state_is_refused),
        TEST(shards_are_assembled),
        TEST(different_state_is_detected),
#undef TEST
    };

    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
