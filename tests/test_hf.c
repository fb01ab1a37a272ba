/* Hugging Face folders: what transformers wrote (tests/golden) is read, computes the same logits, and is written back
 * tensor for tensor; what is of another model, damaged or incomplete is refused by name.
 *
 * With arguments it is the other half of tools/hf_roundtrip.py: `test_hf FOLDER OUT` imports FOLDER, exports it to OUT,
 * and writes OUT/logits.safetensors: the logits for the input_ids of FOLDER/logits.safetensors.
 */
#include "helper_checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/hf_index.h"
#include "checkpoint/hf_tensors.h"
#include "checkpoint/safetensors.h"
#include "lockstep/program.h"

static const char *const models[] = { "gpt2", "llama", "llama_tied", "llama_scaled", "mixtral", "qwen3_moe", "qwen3" };

static const char *golden(const char *model)
{
    static char paths[4][512];
    static int at;
    char *path = paths[at++ % 4];

    snprintf(path, sizeof paths[0], "%s/golden/%s", TEST_DIR, model);
    return path;
}

static const char *join(const char *folder, const char *name)
{
    static char paths[4][640];
    static int at;
    char *path = paths[at++ % 4];

    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static ls_store *model_store(const ls_model *m, ls_dtype type, int master)
{
    ls_store_options o = { "cpu", type, master, 0 };
    ls_store *s;

    OK(ls_store_new(&o, &s));
    OK(hf_declare(s, m));
    return s;
}

static ls_store *import(const char *folder, ls_dtype type, int master, ls_model *m)
{
    ls_store *s;

    OK(ls_model_read_hf(folder, m));
    s = model_store(m, type, master);
    OK(ls_hf_import(folder, m, s));
    return s;
}

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
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        struct safetensors *f;
        ls_model m;
        ls_store *s = import(golden(models[i]), LS_F32, 0, &m);

        OK(safetensors_open(join(golden(models[i]), "golden.safetensors"), &f));
        const struct safetensor *ids = safetensors_find(f, "batch.x"), *want = safetensors_find(f, "logits");
        assert_non_null(ids);
        assert_non_null(want);
        void *ids_copy, *want_copy;
        const float *theirs = safetensor_aligned(want, &want_copy);
        float *ours = logits_of(&m, s, safetensor_aligned(ids, &ids_copy), ids->size[1], ids->size[2]);
        for (size_t k = 0; k < want->count; k++)
            if (!(fabsf(ours[k] - theirs[k]) <= 1e-4f))
                fail_msg("%s: logit %zu is %g, transformers' %g", models[i], k, ours[k], theirs[k]);
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
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        ls_model m, again;
        ls_store *s = import(golden(models[i]), LS_F32, 0, &m);
        char out[512];

        snprintf(out, sizeof out, "%s/%s", scratch("hf"), models[i]);
        OK(ls_hf_export(out, &m, s, NULL));
        check_same_tensors(join(out, "model.safetensors"), join(golden(models[i]), "model.safetensors"));
        OK(ls_model_read_hf(out, &again));
        check_same_model(&m, &again);
        assert_true(file_exists(join(out, "generation_config.json")));
        assert_false(file_exists(join(out, "tokenizer.json")));
        ls_store_release(&s);
    }
}

static bool same_values(const ls_store *a, const ls_store *b)
{
    bool same = ls_store_count(a) == ls_store_count(b);

    for (size_t i = 0; same && i < ls_store_count(a); i++) {
        size_t n = ls_tensor_count(ls_store_value(a, i));
        float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);

        OK(ls_tensor_read(ls_store_value(a, i), x, LS_F32, n));
        OK(ls_tensor_read(ls_store_value(b, i), y, LS_F32, n));
        same = memcmp(x, y, n * sizeof *x) == 0;
        free(x);
        free(y);
    }
    return same;
}

/* Files of any size limit hold the same model; none is larger than the limit, unless by one tensor. */
static void sharded_folders(void **state)
{
    static const uint64_t limits[] = { 1, 5000, 40000, 1000000 };
    ls_model m, again;
    ls_store *s = import(golden("gpt2"), LS_F32, 0, &m), *back;
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
        back = import(scratch(name), LS_F32, 0, &again);
        assert_true(same_values(s, back));
        ls_store_release(&back);
        if (limits[i] == 1000000) {
            assert_false(file_exists(join(scratch(name), HF_INDEX_NAME)));
            continue;
        }
        OK(file_read(join(scratch(name), HF_INDEX_NAME), &text, &bytes));
        OK(hf_index_parse(text, bytes, "index", &x));
        assert_true(x.nfiles > 1);
        assert_int_equal(json_int(json_get(json_get(x.root, "metadata"), "total_size"), 0),
                         4 * ls_model_parameters(&m));
        for (size_t k = 0; k < x.nfiles; k++) {
            struct safetensors *f;

            OK(safetensors_open(join(scratch(name), x.file[k]), &f));
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
    ls_store *s = import(golden("llama"), LS_BF16, 1, &m), *rounded = import(golden("llama"), LS_BF16, 0, &m), *back;
    ls_hf_options o = { LS_BF16, 0, NULL };

    (void)state;
    OK(ls_hf_export(scratch("exact"), &m, s, NULL));
    check_same_tensors(scratch("exact/model.safetensors"), join(golden("llama"), "model.safetensors"));
    OK(ls_hf_export(scratch("bf16"), &m, s, &o));
    back = import(scratch("bf16"), LS_F32, 0, &again);
    assert_true(same_values(rounded, back));
    ls_store_release(&back);
    o.type = LS_F64;
    REFUSED(LS_EINVAL, "f32, bf16 or f16", ls_hf_export(scratch("f64"), &m, s, &o));
    REFUSED(LS_EINVAL, "exists already", ls_hf_export(scratch("bf16"), &m, s, NULL));
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
    ls_store *s = import(golden("gpt2"), LS_F32, 0, &m);

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
    check_same_tensors(scratch("two/model.safetensors"), join(golden("gpt2"), "model.safetensors"));
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
    ls_store *s = import(golden("llama_tied"), LS_BF16, 1, &m), *small = small_store(LS_F32, 0, NULL), *back;
    ls_train_state st = small_state(9);

    (void)state;
    OK(ls_checkpoint_save(scratch("ck"), s, &m, &st, NULL));
    OK(ls_checkpoint_export(scratch("ck/step_00000009"), scratch("hf"), NULL));
    check_same_tensors(scratch("hf/model.safetensors"), join(golden("llama_tied"), "model.safetensors"));
    back = import(scratch("hf"), LS_BF16, 1, &again);
    assert_true(small_same(s, back));
    OK(ls_checkpoint_save(scratch("other"), small, NULL, &st, NULL));
    REFUSED(LS_EUNSUPPORTED, "of no model", ls_checkpoint_export(scratch("other/step_00000009"), scratch("x"), NULL));
    assert_false(file_exists(scratch("x")));
    ls_store_release(&back);
    ls_store_release(&s);
    ls_store_release(&small);
}

/* ---- folders that differ from what we write ---- */

/* The golden GPT-2 with change(name) for names, NULL to leave a tensor out, and perhaps one tensor more. */
static void write_changed(const char *out, const char *(*change)(const char *), const struct safetensor_spec *more)
{
    struct safetensor_spec spec[64];
    const struct safetensor *kept[64];
    struct safetensors *f;
    struct safetensors_writer *w;
    size_t n = 0, bytes;
    uint64_t size;
    char hash[HASH_ROOM], *text;
    static const unsigned char zeros[65536];

    OK(file_make_folders(out));
    OK(file_read(join(golden("gpt2"), "config.json"), &text, &bytes));
    OK(file_write(join(out, "config.json"), text, bytes));
    mem_free(text);
    OK(safetensors_open(join(golden("gpt2"), "model.safetensors"), &f));
    for (size_t i = 0; i < safetensors_count(f); i++) {
        const struct safetensor *t = kept[n] = safetensors_at(f, i);

        spec[n] =
            (struct safetensor_spec){ change(t->name), t->type, t->ndim, { t->size[0], t->ndim > 1 ? t->size[1] : 0 } };
        n += spec[n].name != NULL;
    }
    if (more)
        spec[n] = *more;
    OK(safetensors_create(join(out, "model.safetensors"), n + (more != NULL), spec, &w));
    for (size_t i = 0; i < n; i++)
        OK(safetensors_put(w, kept[i]->data, kept[i]->bytes));
    if (more)
        OK(safetensors_put(w, zeros, safetensor_spec_bytes(more)));
    OK(safetensors_publish(&w, &size, hash));
    safetensors_close(&f);
}

static const char *as_it_is(const char *name) { return name; }
static const char *without_prefix(const char *name) { return name + strlen("transformer."); }
static const char *without_c_proj(const char *name) { return strstr(name, "h.1.mlp.c_proj.bias") ? NULL : name; }
static const char *renamed(const char *name) { return strstr(name, "wpe") ? "transformer.wqe.weight" : name; }
static const char *without_wpe(const char *name) { return strstr(name, "wpe") ? NULL : name; }

static void hub_names_and_masks_are_read(void **state)
{
    struct safetensor_spec mask = { "h.0.attn.bias", LS_U8, 4, { 1, 1, 32, 32 } };
    ls_model m, again;
    ls_store *s, *t;

    (void)state;
    write_changed(scratch("hub"), without_prefix, &mask);
    s = import(golden("gpt2"), LS_F32, 0, &m);
    t = import(scratch("hub"), LS_F32, 0, &again);
    assert_true(same_values(s, t));
    ls_store_release(&s);
    ls_store_release(&t);
}

static void folders_of_other_models_are_refused(void **state)
{
    static const struct {
        const char *(*change)(const char *);
        struct safetensor_spec more;
        ls_status status;
        const char *message;
    } cases[] = {
        { without_c_proj, { 0 }, LS_EINVAL, "'transformer.h.1.mlp.c_proj.bias' of the model is in none" },
        { renamed, { 0 }, LS_EINVAL, "'transformer.wqe.weight' is none of this model's" },
        { as_it_is, { "h.2.ln_1.bias", LS_F32, 1, { 32 } }, LS_EINVAL, "'h.2.ln_1.bias' is none of this model's" },
        { as_it_is, { "wpe.weight", LS_F32, 2, { 32, 32 } }, LS_EINVAL, "are both 'transformer.wpe.weight'" },
        { without_wpe,
          { "wpe.weight", LS_F32, 2, { 31, 32 } },
          LS_EINVAL,
          "2 dims (first 31), the model's has 2 (first 32)" },
        { without_wpe, { "wpe.weight", LS_F32, 1, { 32 } }, LS_EINVAL, "1 dims (first 32), the model's has 2" },
        { without_wpe, { "wpe.weight", LS_I32, 2, { 32, 32 } }, LS_EUNSUPPORTED, "is I32" },
    };
    ls_model m;
    ls_store *s;

    (void)state;
    OK(ls_model_read_hf(golden("gpt2"), &m));
    s = model_store(&m, LS_F32, 0);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        write_changed(scratch("x"), cases[i].change, cases[i].more.name ? &cases[i].more : NULL);
        REFUSED(cases[i].status, cases[i].message, ls_hf_import(scratch("x"), &m, s));
        assert_null(ls_store_value(s, 0));  /* nothing was written, or even allocated */
        OK(file_remove_tree(scratch("x")));
    }
    REFUSED(LS_EIO, "model.safetensors", ls_hf_import(scratch("x"), &m, s));
    ls_store_release(&s);
    s = small_store(LS_F32, 0, NULL);
    REFUSED(LS_EINVAL, "the store has no parameter", ls_hf_import(golden("gpt2"), &m, s));
    REFUSED(LS_EINVAL, "the store has no parameter", ls_hf_export(scratch("y"), &m, s, NULL));
    assert_false(file_exists(scratch("y")));
    assert_false(file_exists(scratch("y.tmp")));
    ls_store_release(&s);
}

static void indexes_are_checked(void **state)
{
    static const struct { const char *text, *message; } cases[] = {
        { "", "not JSON" },
        { "[]", "\"weight_map\"" },
        { "{}", "\"weight_map\"" },
        { "{\"weight_map\":{}}", "\"weight_map\"" },
        { "{\"weight_map\":[\"a\"]}", "\"weight_map\"" },
        { "{\"weight_map\":{\"a\":1}}", "tensor 0 of \"weight_map\"" },
        { "{\"weight_map\":{\"a\":\"x\",\"b\":\"../x\"}}", "tensor 1 of \"weight_map\"" },
        { "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "bare file name" },
        { "{\"weight_map\":{\"a\":\"..\"}}", "bare file name" },
        { "{\"weight_map\":{\"a\":\"\"}}", "bare file name" },
        { "{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", "not JSON" },
    };
    static const char good[] = "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"a\":\"y\",\"b\":\"x\",\"c\":\"y\"}}";
    struct hf_index x;
    char *text;
    size_t bytes;
    ls_hf_options o = { LS_F32, 40000, NULL };
    ls_model m;
    ls_store *s = import(golden("gpt2"), LS_F32, 0, &m);

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        REFUSED(LS_EFORMAT, cases[i].message, hf_index_parse(cases[i].text, strlen(cases[i].text), "index", &x));
    OK(hf_index_parse(good, strlen(good), "index", &x));
    assert_int_equal(x.nfiles, 2);
    assert_string_equal(x.file[0], "x");
    assert_string_equal(x.file[1], "y");
    hf_index_free(&x);
    /* an index that says something else than its files */
    OK(ls_hf_export(scratch("hf"), &m, s, &o));
    OK(file_read(scratch("hf/" HF_INDEX_NAME), &text, &bytes));
    memcpy(strstr(text, "model-00002"), "model-00001", 11);
    OK(file_write(scratch("hf/" HF_INDEX_NAME), text, bytes));
    REFUSED(LS_EFORMAT, "the index says model-00001", ls_hf_import(scratch("hf"), &m, s));
    OK(file_remove_tree(scratch("hf/model-00001-of-00004.safetensors")));
    REFUSED(LS_EIO, "model-00001-of-0000", ls_hf_import(scratch("hf"), &m, s));
    mem_free(text);
    ls_store_release(&s);
}

/* ---- faults ---- */

static size_t held(void)
{
    struct mem_stats m;

    mem_read(&m);
    return m.total_now;
}

/* What Hugging Face's families don't compute is not written under their names. */
static void unexpressible_models_are_refused(void **state)
{
    ls_model m, other;
    ls_store *s = import(golden("mixtral"), LS_F32, 0, &m);

    (void)state;
    for (int k = 0; k < 3; k++) {
        other = m;
        if (k == 0) other.router = LS_ROUTER_SIGMOID;
        if (k == 1) other.norm_topk = 0;
        if (k == 2) other.balance = 0.001;
        assert_int_equal(ls_hf_export(scratch("refused"), &other, s, NULL), k == 2 ? LS_EINVAL : LS_EUNSUPPORTED);
        assert_false(file_exists(scratch("refused")) || file_exists(scratch("refused.tmp")));
    }
    ls_store_release(&s);
}

static void failed_export_leaves_nothing(void **state)
{
    ls_hf_options o = { LS_BF16, 30000, NULL };
    int full = 0, empty = 0;
    ls_model m;
    ls_store *s = import(golden("llama"), LS_F32, 0, &m);
    size_t before = held();

    (void)state;
    for (;; full++) {
        file_fail_at(full + 1);
        ls_status st = ls_hf_export(scratch("a"), &m, s, &o);
        file_fail_at(0);
        if (st == LS_OK)
            break;
        assert_int_equal(st, LS_EIO);
        assert_false(file_exists(scratch("a")));
        assert_false(file_exists(scratch("a.tmp")));
    }
    for (;; empty++) {
        mem_fail_at(empty + 1);
        ls_status st = ls_hf_export(scratch("b"), &m, s, &o);
        mem_fail_at(0);
        assert_int_equal(held(), before);
        if (st == LS_OK)
            break;
        assert_int_equal(st, LS_ENOMEM);
        assert_false(file_exists(scratch("b")));
        assert_false(file_exists(scratch("b.tmp")));
    }
    assert_true(full >= 4 && empty > 50);
    ls_store_release(&s);
}

static void import_fails_cleanly_without_memory(void **state)
{
    ls_hf_options o = { LS_F32, 30000, NULL };
    ls_model m;
    ls_store *s = import(golden("llama"), LS_F32, 0, &m);
    size_t before;

    (void)state;
    OK(ls_hf_export(scratch("hf"), &m, s, &o));
    before = held();
    for (int nth = 1;; nth++) {
        mem_fail_at(nth);
        ls_status st = ls_hf_import(scratch("hf"), &m, s);
        mem_fail_at(0);
        assert_int_equal(held(), before);
        if (st == LS_OK)
            break;
        assert_int_equal(st, LS_ENOMEM);
    }
    ls_store_release(&s);
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
    ls_store *s = import(in, LS_F32, 0, &m);
    const struct safetensor *ids;

    (void)state;
    OK(safetensors_open(join(in, "logits.safetensors"), &f));
    ids = safetensors_find(f, "input_ids");
    assert_true(ids && ids->type == LS_I32 && ids->ndim == 2);
    OK(ls_hf_export(out, &m, s, NULL));
    write_logits(join(out, "logits.safetensors"), &m, s, ids);
    safetensors_close(&f);
    ls_store_release(&s);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_set_up, scratch_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(logits_equal_transformers),   TEST(export_equals_import),     TEST(sharded_folders),
        TEST(export_converts_types),         TEST(import_equals_checkpoint),              TEST(run_checkpoints_are_exported),
        TEST(hub_names_and_masks_are_read),     TEST(folders_of_other_models_are_refused), TEST(indexes_are_checked),
        TEST(unexpressible_models_are_refused), TEST(import_fails_cleanly_without_memory),
        TEST(failed_export_leaves_nothing), TEST(import_fails_cleanly_without_memory),
    };
#undef TEST
    const struct CMUnitTest trip[] = { cmocka_unit_test(round_trip) };

    arguments = argv;
    return argc == 3 ? cmocka_run_group_tests_name("hf round trip", trip, NULL, NULL)
                     : cmocka_run_group_tests_name("hf", tests, NULL, NULL);
}
