/* test_hf.c - Hugging Face folders, imported and exported through a checkpoint: logits, types, shards.
 *
 * With arguments it is the other half of tools/hf_roundtrip.py: `test_hf FOLDER OUT` imports FOLDER, exports it to OUT,
 * and writes the logits of both. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/hf/hf_index.h"
#include "checkpoint/safetensors.h"
#include "helper_checkpoint.h"
#include "helper_hf.h"
#include "lockstep/program.h"

static const char *const hf_models[] = { "gpt2", "llama", "llama_tied", "llama_scaled", "mixtral", "qwen3_moe", "qwen3", "starcoder2" };

/* ids [b,t] i32 -> logits [b,t,V]; free() them. */
static float *logits_of(const ls_model *m, ls_store *s, const int32_t *ids, size_t b, size_t t)
{
    float *logits = malloc(b * t * m->vocab * sizeof *logits);
    ls_program *p;

    assert_non_null(logits);
    OK(ls_program_new(s, &p));
    ls_output(p, "logits", ls_model_logits(p, m, ls_input(p, "ids", LS_I32, 2, (size_t[]){ b, t })));
    OK(ls_program_compile(p, NULL));
    OK(ls_program_write(p, "ids", ids, LS_I32, b * t));
    OK(ls_program_run(p, LS_FORWARD));
    OK(ls_program_read(p, "logits", logits, LS_F32, b * t * m->vocab));
    ls_program_release(&p);
    return logits;
}

static void logits_equal_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(hf_models); i++) {
        struct safetensors *f;
        ls_model m;
        ls_store *s = hf_import(hf_golden_path(hf_models[i]), LS_F32, 0, &m);

        OK(safetensors_open(hf_path(hf_golden_path(hf_models[i]), "golden.safetensors"), &f));
        const struct safetensor *ids = safetensors_find(f, "batch.x"), *want = safetensors_find(f, "logits");
        assert_non_null(ids);
        assert_non_null(want);
        void *ids_copy, *want_copy;
        const float *theirs = safetensor_aligned(want, &want_copy);
        float *ours = logits_of(&m, s, safetensor_aligned(ids, &ids_copy), ids->size[1], ids->size[2]);
        for (size_t k = 0; k < want->count; k++)
            if (!(fabsf(ours[k] - theirs[k]) <= 1e-4f))
                fail_msg("%s: logit %zu is %g, transformers' %g", hf_models[i], k, ours[k], theirs[k]);
        free(ours);
        mem_free(ids_copy);
        mem_free(want_copy);
        safetensors_close(&f);
        ls_store_release(&s);
    }
}

/* Both files hold the same tensors: names, types, shapes, bytes. */
static void check_same_tensors(const char *a, const char *b)
{
    struct safetensors *x, *y;

    OK(safetensors_open(a, &x));
    OK(safetensors_open(b, &y));
    assert_int_equal(safetensors_count(x), safetensors_count(y));
    for (size_t i = 0; i < safetensors_count(x); i++) {
        const struct safetensor *t = safetensors_at(x, i), *u = safetensors_find(y, t->name);

        if (!u)
            fail_msg("%s has no %s", b, t->name);
        assert_int_equal(t->type, u->type);
        assert_int_equal(t->ndim, u->ndim);
        assert_memory_equal(t->size, u->size, sizeof t->size);
        assert_memory_equal(t->data, u->data, t->bytes);
    }
    safetensors_close(&x);
    safetensors_close(&y);
}

static void export_equals_import(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(hf_models); i++) {
        ls_model m, again;
        ls_store *s = hf_import(hf_golden_path(hf_models[i]), LS_F32, 0, &m);
        char out[512];

        snprintf(out, sizeof out, "%s/%s", scratch("hf"), hf_models[i]);
        OK(ls_hf_export(out, &m, s, NULL));
        check_same_tensors(hf_path(out, "model.safetensors"), hf_path(hf_golden_path(hf_models[i]), "model.safetensors"));
        OK(ls_model_read_hf(out, &again));
        check_same_model(&m, &again);
        assert_true(file_exists(hf_path(out, "generation_config.json")));
        assert_false(file_exists(hf_path(out, "tokenizer.json")));
        ls_store_release(&s);
    }
}

/* Files of any size limit hold the same model; none is larger than the limit, unless by one tensor. */
static void sharded_folders(void **state)
{
    static const uint64_t limits[] = { 1, 5000, 40000, 1000000 };
    ls_model m, again;
    ls_store *s = hf_import(hf_golden_path("gpt2"), LS_F32, 0, &m), *back;
    ls_hf_options o = LS_HF_DEFAULTS;
    struct hf_index x;
    char *text;
    size_t bytes;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(limits); i++) {
        char name[32];

        snprintf(name, sizeof name, "hf%zu", i);
        o.shard_bytes = limits[i];
        OK(ls_hf_export(scratch(name), &m, s, &o));
        back = hf_import(scratch(name), LS_F32, 0, &again);
        assert_true(hf_same_values(s, back));
        ls_store_release(&back);
        if (limits[i] == 1000000) {
            assert_false(file_exists(hf_path(scratch(name), HF_INDEX_NAME)));
            continue;
        }
        OK(file_read(hf_path(scratch(name), HF_INDEX_NAME), &text, &bytes));
        OK(hf_index_parse(text, bytes, "index", &x));
        assert_true(x.nfiles > 1);
        assert_int_equal(json_int(json_get(json_get(x.root, "metadata"), "total_size"), 0),
                         4 * ls_model_parameters(&m));
        for (size_t k = 0; k < x.nfiles; k++) {
            struct safetensors *f;

            OK(safetensors_open(hf_path(scratch(name), x.file[k]), &f));
            size_t last = safetensors_count(f) - 1, data = 0;
            for (size_t t = 0; t <= last; t++)
                data += safetensors_at(f, t)->bytes;
            assert_true(data <= limits[i] || last == 0);
            safetensors_close(&f);
        }
        hf_index_free(&x);
        mem_free(text);
    }
    ls_store_release(&s);
}

/* f32 -> bf16 file -> f32 is one rounding; a store with a master exports the master. */
static void export_converts_types(void **state)
{
    ls_model m, again;
    ls_store *s = hf_import(hf_golden_path("llama"), LS_BF16, 1, &m), *rounded = hf_import(hf_golden_path("llama"), LS_BF16, 0, &m);
    ls_hf_options o = { LS_BF16, 0, NULL };

    (void)state;
    OK(ls_hf_export(scratch("exact"), &m, s, NULL));
    check_same_tensors(scratch("exact/model.safetensors"), hf_path(hf_golden_path("llama"), "model.safetensors"));
    OK(ls_hf_export(scratch("bf16"), &m, s, &o));
    ls_store *back = hf_import(scratch("bf16"), LS_F32, 0, &again);
    assert_true(hf_same_values(rounded, back));
    ls_store_release(&back);
    o.type = LS_F64;
    REFUSED(LS_EINVAL, "f32, bf16 or f16", ls_hf_export(scratch("f64"), &m, s, &o));
    REFUSED(LS_EINVAL, "already exists", ls_hf_export(scratch("bf16"), &m, s, NULL));
    ls_store_release(&s);
    ls_store_release(&rounded);
}

/* Folder -> checkpoint -> folder, with a tokenizer on board. */
static void import_equals_checkpoint(void **state)
{
    static const char tokenizer[] = "{\"added_tokens\":[{\"id\":96,\"content\":\"<|endoftext|>\"}],\"model\":{}}";
    ls_checkpoint_info *info;
    ls_hf_options o = LS_HF_DEFAULTS;
    json_node *root;
    ls_model m;
    ls_store *s = hf_import(hf_golden_path("gpt2"), LS_F32, 0, &m);

    (void)state;
    OK(file_write(scratch("tokenizer.json"), tokenizer, strlen(tokenizer)));
    o.tokenizer = scratch("tokenizer.json");
    OK(ls_hf_export(scratch("one"), &m, s, &o));
    OK(ls_checkpoint_import(scratch("one"), scratch("ck"), LS_F32));
    OK(ls_checkpoint_verify(scratch("ck/step_00000000")));
    OK(ls_checkpoint_inspect(scratch("ck/step_00000000"), &info));
    check_same_model(&info->model, &m);
    assert_int_equal(info->parameters, ls_model_parameters(&m));
    ls_checkpoint_info_release(&info);
    OK(ls_checkpoint_export(scratch("ck/step_00000000"), scratch("two"), NULL));
    check_same_tensors(scratch("two/model.safetensors"), hf_path(hf_golden_path("gpt2"), "model.safetensors"));
    OK(json_read(scratch("two/generation_config.json"), &root));
    assert_int_equal(json_int(json_get(root, "eos_token_id"), -1), 96);
    json_close(&root);
    OK(json_read(scratch("two/tokenizer_config.json"), &root));
    assert_string_equal(json_string(json_get(root, "eos_token"), ""), "<|endoftext|>");
    json_close(&root);
    assert_true(file_exists(scratch("two/tokenizer.json")));
    ls_store_release(&s);
}

/* A checkpoint of a bf16 run exports its f32 masters; one of no known model cannot be exported. */
static void run_checkpoints_are_exported(void **state)
{
    ls_model m, again;
    ls_store *s = hf_import(hf_golden_path("llama_tied"), LS_BF16, 1, &m), *small = small_store(LS_F32, 0, NULL);
    ls_train_state st = small_state(9);

    (void)state;
    OK(ls_checkpoint_save(scratch("ck"), s, &m, &st, NULL));
    OK(ls_checkpoint_export(scratch("ck/step_00000009"), scratch("hf"), NULL));
    check_same_tensors(scratch("hf/model.safetensors"), hf_path(hf_golden_path("llama_tied"), "model.safetensors"));
    ls_store *back = hf_import(scratch("hf"), LS_BF16, 1, &again);
    assert_true(small_same(s, back));
    OK(ls_checkpoint_save(scratch("other"), small, NULL, &st, NULL));
    REFUSED(LS_EUNSUPPORTED, "do not belong to a model", ls_checkpoint_export(scratch("other/step_00000009"), scratch("x"), NULL));
    assert_false(file_exists(scratch("x")));
    ls_store_release(&back);
    ls_store_release(&s);
    ls_store_release(&small);
}

/* ---- the other half of tools/hf_roundtrip.py ---- */

static void write_logits(const char *path, const ls_model *m, ls_store *s, const struct safetensor *ids)
{
    struct safetensor_spec spec[2] = {
        { "logits", LS_F32, 3, { ids->size[0], ids->size[1], m->vocab } },
        { "input_ids", LS_I32, 2, { ids->size[0], ids->size[1] } },
    };
    struct safetensors_writer *w;
    void *copy;
    float *logits = logits_of(m, s, safetensor_aligned(ids, &copy), ids->size[0], ids->size[1]);
    uint64_t bytes;
    char hash[HASH_ROOM];

    OK(safetensors_create(path, 2, spec, &w));
    OK(safetensors_put(w, logits, safetensor_spec_bytes(&spec[0])));
    OK(safetensors_put(w, ids->data, ids->bytes));
    OK(safetensors_publish(&w, &bytes, hash));
    free(logits);
    mem_free(copy);
}

static char **arguments;

static void round_trip(void **state)
{
    const char *in = arguments[1], *out = arguments[2];
    struct safetensors *f;
    ls_model m;
    ls_store *s = hf_import(in, LS_F32, 0, &m);

    (void)state;
    OK(safetensors_open(hf_path(in, "logits.safetensors"), &f));
    const struct safetensor *ids = safetensors_find(f, "input_ids");
    assert_true(ids && ids->type == LS_I32 && ids->ndim == 2);
    OK(ls_hf_export(out, &m, s, NULL));
    write_logits(hf_path(out, "logits.safetensors"), &m, s, ids);
    safetensors_close(&f);
    ls_store_release(&s);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_set_up, scratch_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(logits_equal_transformers), TEST(export_equals_import),     TEST(sharded_folders),
        TEST(export_converts_types),     TEST(import_equals_checkpoint), TEST(run_checkpoints_are_exported),
    };
#undef TEST
    const struct CMUnitTest trip[] = { cmocka_unit_test(round_trip) };

    arguments = argv;
    return argc == 3 ? cmocka_run_group_tests_name("hf round trip", trip, NULL, NULL)
                     : cmocka_run_group_tests_name("hf", tests, NULL, NULL);
}
