/* test_hf_refused.c - Hugging Face folders unlike those that we write: read or refused; failures leave nothing behind. */
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/hf/hf_index.h"
#include "checkpoint/safetensors.h"
#include "helper_checkpoint.h"
#include "helper_hf.h"
#include "train/faults/fault_points.h"

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
    OK(file_read(hf_path(hf_golden_path("gpt2"), "config.json"), &text, &bytes));
    OK(file_write(hf_path(out, "config.json"), text, bytes));
    mem_free(text);
    OK(safetensors_open(hf_path(hf_golden_path("gpt2"), "model.safetensors"), &f));
    for (size_t i = 0; i < safetensors_count(f); i++) {
        const struct safetensor *t = kept[n] = safetensors_at(f, i);

        spec[n] =
            (struct safetensor_spec){ change(t->name), t->type, t->ndim, { t->size[0], t->ndim > 1 ? t->size[1] : 0 } };
        n += spec[n].name != NULL;
    }
    if (more)
        spec[n] = *more;
    OK(safetensors_create(hf_path(out, "model.safetensors"), n + (more != NULL), spec, &w));
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

    (void)state;
    write_changed(scratch("hub"), without_prefix, &mask);
    ls_store *s = hf_import(hf_golden_path("gpt2"), LS_F32, 0, &m);
    ls_store *t = hf_import(scratch("hub"), LS_F32, 0, &again);
    assert_true(hf_same_values(s, t));
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
        { without_c_proj, { 0 }, LS_EINVAL, "'transformer.h.1.mlp.c_proj.bias' of the model is missing" },
        { renamed, { 0 }, LS_EINVAL, "'transformer.wqe.weight' does not belong to this model" },
        { as_it_is, { "h.2.ln_1.bias", LS_F32, 1, { 32 } }, LS_EINVAL, "'h.2.ln_1.bias' does not belong to this model" },
        { as_it_is, { "wpe.weight", LS_F32, 2, { 32, 32 } }, LS_EINVAL, "are both 'transformer.wpe.weight'" },
        { without_wpe,
          { "wpe.weight", LS_F32, 2, { 31, 32 } },
          LS_EINVAL,
          "2 dims (first 31), but the model's has 2 (first 32)" },
        { without_wpe, { "wpe.weight", LS_F32, 1, { 32 } }, LS_EINVAL, "1 dims (first 32), but the model's has 2" },
        { without_wpe, { "wpe.weight", LS_I32, 2, { 32, 32 } }, LS_EUNSUPPORTED, "is I32" },
    };
    ls_model m;

    (void)state;
    OK(ls_model_read_hf(hf_golden_path("gpt2"), &m));
    ls_store *s = hf_store(&m, LS_F32, 0);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        write_changed(scratch("x"), cases[i].change, cases[i].more.name ? &cases[i].more : NULL);
        REFUSED(cases[i].status, cases[i].message, ls_hf_import(scratch("x"), &m, s));
        assert_null(ls_store_value(s, 0));  /* nothing was written, or even allocated */
        OK(file_remove_tree(scratch("x")));
    }
    REFUSED(LS_EIO, "model.safetensors", ls_hf_import(scratch("x"), &m, s));
    ls_store_release(&s);
    s = small_store(LS_F32, 0, NULL);
    REFUSED(LS_EINVAL, "the store has no parameter", ls_hf_import(hf_golden_path("gpt2"), &m, s));
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
    ls_store *s = hf_import(hf_golden_path("gpt2"), LS_F32, 0, &m);

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        REFUSED(LS_EFORMAT, cases[i].message, hf_index_parse(cases[i].text, strlen(cases[i].text), "index", &x));
    OK(hf_index_parse(good, strlen(good), "index", &x));
    assert_int_equal(x.nfiles, 2);
    assert_string_equal(x.file[0], "x");
    assert_string_equal(x.file[1], "y");
    hf_index_free(&x);
    /* an index that contradicts its files */
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

/* A model that Hugging Face's families do not compute is not written under their names. */
static void unexpressible_models_are_refused(void **state)
{
    ls_model m, other;
    ls_store *s = hf_import(hf_golden_path("mixtral"), LS_F32, 0, &m);

    (void)state;
    for (int k = 0; k < 3; k++) {
        other = m;
        if (k == 0) other.router = LS_ROUTER_SIGMOID;
        if (k == 1) other.norm_topk = 0;
        if (k == 2) other.router_bias_rate = 0.001;
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
    ls_store *s = hf_import(hf_golden_path("llama"), LS_F32, 0, &m);
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
    ls_store *s = hf_import(hf_golden_path("llama"), LS_F32, 0, &m);

    (void)state;
    OK(ls_hf_export(scratch("hf"), &m, s, &o));
    size_t before = held();
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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_set_up, scratch_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(hub_names_and_masks_are_read), TEST(folders_of_other_models_are_refused), TEST(indexes_are_checked),
        TEST(unexpressible_models_are_refused), TEST(failed_export_leaves_nothing), TEST(import_fails_cleanly_without_memory),
    };
#undef TEST

    return cmocka_run_group_tests(tests, NULL, NULL);
}
