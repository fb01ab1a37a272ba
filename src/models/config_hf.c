/* config_hf.c - reads and writes Hugging Face's config.json: the part that all families share. Each family's keys are in its file.
 *
 * Reads the keys that change what a model computes or how it is initialized. A key that would require an unsupported model (biases, other
 * activations, scaled heads, quantized weights) is rejected with its value. Dropout rates are training settings and not read. transformers
 * 4 writes `rope_theta` and `rope_scaling`, 5 writes `rope_parameters`.
 */
#include "models/hf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "models/config_hf.h"
#include "models/model.h"

/* ---- one key ---- */

int hf_absent(const json_node *n) { return json_kind_of(n) == JSON_NONE || json_kind_of(n) == JSON_NULL; }

ls_status hf_read_size(const json_node *o, const char *key, size_t *out)
{
    const json_node *n = json_get(o, key);

    if (json_kind_of(n) == JSON_NONE) return ls_fail(LS_EFORMAT, "'%s' is missing", key);
    if (json_kind_of(n) != JSON_INT || json_int(n, 0) < 1 || json_int(n, 0) > INT32_MAX)
        return ls_fail(LS_EFORMAT, "'%s' must be a whole number from 1 to %d", key, INT32_MAX);
    *out = (size_t)json_int(n, 0);
    return LS_OK;
}

ls_status hf_read_size_or(const json_node *o, const char *key, size_t *out)
{
    return hf_absent(json_get(o, key)) ? LS_OK : hf_read_size(o, key, out);
}

ls_status hf_read_real(const json_node *o, const char *key, double *out)
{
    const json_node *n = json_get(o, key);

    if (hf_absent(n)) return LS_OK;
    if (json_kind_of(n) != JSON_INT && json_kind_of(n) != JSON_REAL) return ls_fail(LS_EFORMAT, "'%s' must be a number", key);
    *out = json_real(n, 0);
    return LS_OK;
}

ls_status hf_read_bool(const json_node *o, const char *key, int *out)
{
    const json_node *n = json_get(o, key);

    if (hf_absent(n)) return LS_OK;
    if (json_kind_of(n) != JSON_BOOL) return ls_fail(LS_EFORMAT, "'%s' must be true or false", key);
    *out = json_bool(n, 0);
    return LS_OK;
}

ls_status hf_read_name(const json_node *o, const char *key, const char **out)
{
    const json_node *n = json_get(o, key);

    if (hf_absent(n)) return LS_OK;
    if (json_kind_of(n) != JSON_STRING) return ls_fail(LS_EFORMAT, "'%s' must be a string", key);
    *out = json_string(n, "");
    return LS_OK;
}

#define ACTIVATION_HF(upper, name, op, hf)        #hf,
#define ACTIVATION_SUPPORTED(upper, name, op, hf) ", '" #hf "'"
static const char *const activations[] = { LS_ACTIVATION_MAP(ACTIVATION_HF) }; /* as they are written */
static const struct {
    const char *name;
    ls_activation activation;
} other_activations[] = { { "gelu_pytorch_tanh", LS_GELU_TANH }, { "gelu_fast", LS_GELU_TANH } };

ls_status hf_read_activation(const json_node *o, const char *key, ls_activation *out)
{
    const char *name = activations[0];

    LS_TRY(hf_read_name(o, key, &name));
    for (size_t i = 0; i < COUNT_OF(activations); i++)
        if (strcmp(name, activations[i]) == 0) {
            *out = (ls_activation)i;
            return LS_OK;
        }
    for (size_t i = 0; i < COUNT_OF(other_activations); i++)
        if (strcmp(name, other_activations[i].name) == 0) {
            *out = other_activations[i].activation;
            return LS_OK;
        }
    return ls_fail(LS_EUNSUPPORTED, "'%s' is '%s'; use one of %s", key, name, &(LS_ACTIVATION_MAP(ACTIVATION_SUPPORTED))[2]);
}

const char *hf_activation_name(ls_activation activation) { return activations[activation]; }

ls_status hf_expect_bool(const json_node *o, const char *key, int want)
{
    int found = want;

    LS_TRY(hf_read_bool(o, key, &found));
    if (found != want)
        return ls_fail(LS_EUNSUPPORTED, "'%s' is %s; only %s is supported", key, found ? "true" : "false", want ? "true" : "false");
    return LS_OK;
}

ls_status hf_expect_real(const json_node *o, const char *key, double want)
{
    double found = want;

    LS_TRY(hf_read_real(o, key, &found));
    if (found != want) return ls_fail(LS_EUNSUPPORTED, "'%s' is %g; only %g is supported", key, found, want);
    return LS_OK;
}

ls_status hf_expect_absent(const json_node *o, const char *key)
{
    if (!hf_absent(json_get(o, key))) return ls_fail(LS_EUNSUPPORTED, "'%s' is set; such models are not supported", key);
    return LS_OK;
}

/* ---- the file ---- */

enum {
    IS_BOOL = 1u << JSON_BOOL,
    IS_INT = 1u << JSON_INT,
    IS_NUMBER = IS_INT | 1u << JSON_REAL,
    IS_STRING = 1u << JSON_STRING,
    IS_ARRAY = 1u << JSON_ARRAY,
    IS_OBJECT = 1u << JSON_OBJECT
};

/* The kinds of keys that no reader below checks; null counts as absent. */
static const struct kind {
    const char *key;
    unsigned kinds, items;
    const char *words;
} kinds[] = {
    { "architectures", IS_ARRAY, IS_STRING, "a list of strings" },
    { "model_type", IS_STRING, 0, "a string" },
    { "torch_dtype", IS_STRING, 0, "a string" },
    { "dtype", IS_STRING, 0, "a string" },
    { "transformers_version", IS_STRING, 0, "a string" },
    { "_name_or_path", IS_STRING, 0, "a string" },
    { "bos_token_id", IS_INT, 0, "a whole number" },
    { "eos_token_id", IS_INT | IS_ARRAY, IS_INT, "a whole number or a list of them" },
    { "pad_token_id", IS_INT, 0, "a whole number" },
    { "use_cache", IS_BOOL, 0, "true or false" },
    { "output_router_logits", IS_BOOL, 0, "true or false" },
    { "reorder_and_upcast_attn", IS_BOOL, 0, "true or false" },
    { "attn_pdrop", IS_NUMBER, 0, "a number" },
    { "embd_pdrop", IS_NUMBER, 0, "a number" },
    { "resid_pdrop", IS_NUMBER, 0, "a number" },
    { "attention_dropout", IS_NUMBER, 0, "a number" },
    { "n_ctx", IS_INT, 0, "a whole number" },
    { "max_window_layers", IS_INT, 0, "a whole number" },
    { "sliding_window", IS_INT, 0, "a whole number" },
    { "mlp_only_layers", IS_ARRAY, IS_INT, "a list of whole numbers" },
    { "layer_types", IS_ARRAY, IS_STRING, "a list of strings" },
    { "rope_scaling", IS_OBJECT, 0, "an object" },
    { "rope_parameters", IS_OBJECT, 0, "an object" },
    { "quantization_config", IS_OBJECT, 0, "an object" },
    { "task_specific_params", IS_OBJECT, 0, "an object" },
};

static int is_kind(const json_node *n, unsigned allowed) { return (allowed >> json_kind_of(n) & 1) != 0; }

static ls_status check_kinds(const json_node *o)
{
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        const struct kind *k = &kinds[i];
        const json_node *n = json_get(o, k->key);

        if (hf_absent(n)) continue;
        int right = is_kind(n, k->kinds);
        for (size_t item = 0; right && json_kind_of(n) == JSON_ARRAY && item < json_size(n); item++)
            right = is_kind(json_at(n, item), k->items);
        if (!right) return ls_fail(LS_EFORMAT, "'%s' must be %s", k->key, k->words);
    }
    return LS_OK;
}

/* "GPT2LMHeadModel, LlamaForCausalLM and .. are supported", of all families. */
static ls_status fail_architecture(const char *key, const char *found)
{
    struct text all = { 0 };

    for (int a = 0; a < LS_ARCHITECTURES; a++)
        text_put(&all, "%s%s", a == 0 ? "" : a == LS_ARCHITECTURES - 1 ? " and " : ", ", family_of((ls_architecture)a)->hf_architecture);
    ls_status st = text_status(&all);
    if (st == LS_OK) st = ls_fail(LS_EUNSUPPORTED, "'%s' is '%s'; %s are supported", key, found, all.data);
    text_free(&all);
    return st;
}

static ls_status read_as(const json_node *o, ls_architecture a, ls_model *m)
{
    LS_TRY(family_of(a)->read_config(o, m));
    m->architecture = a;
    return LS_OK;
}

/* By `architectures`, or by `model_type` if that is absent. */
static ls_status config_hf_read_config(const json_node *o, ls_model *m)
{
    const char *name = json_string(json_at(json_get(o, "architectures"), 0), NULL);
    const char *type = json_string(json_get(o, "model_type"), NULL);

    if (json_kind_of(o) != JSON_OBJECT) return ls_fail(LS_EFORMAT, "not an object");
    LS_TRY(check_kinds(o));
    LS_TRY(hf_expect_absent(o, "quantization_config"));
    if (!name && !type) return ls_fail(LS_EFORMAT, "unknown family: it has neither 'architectures' nor 'model_type'");
    if (json_get(o, "model_type") && !type) return ls_fail(LS_EFORMAT, "'model_type' is null; expected a string");
    for (int a = 0; a < LS_ARCHITECTURES; a++) {
        const struct family *f = family_of((ls_architecture)a);

        if (strcmp(name ? name : type, name ? f->hf_architecture : f->hf_type) != 0) continue;
        if (type && strcmp(type, f->hf_type) != 0)
            return ls_fail(LS_EFORMAT, "'architectures' is '%s', but 'model_type' is '%s'; expected '%s'", name, type, f->hf_type);
        return read_as(o, (ls_architecture)a, m);
    }
    return fail_architecture(name ? "architectures" : "model_type", name ? name : type);
}

ls_status model_parse_hf(const char *text, size_t bytes, const char *what, ls_model *out)
{
    json_node *root;
    ls_model m;

    LS_TRY(json_parse(text, bytes, what, &root));
    ls_status st = config_hf_read_config(root, &m);
    if (st == LS_OK) st = ls_model_check(&m);
    json_close(&root);
    if (st < 0) return ls_fail_at(st, "%s", what);
    *out = m;
    return LS_OK;
}

ls_status ls_model_read_hf(const char *path, ls_model *out)
{
    char *file = file_path(file_is_folder(path) ? "%s/config.json" : "%s", path), *text;
    size_t bytes;

    if (!file) return LS_ENOMEM;
    ls_status st = file_read(file, &text, &bytes);
    if (st < 0) goto free_path;
    st = model_parse_hf(text, bytes, file, out);
    mem_free(text);

free_path:
    mem_free(file);
    return st;
}

static const char *torch_name(ls_dtype type)
{
    return type == LS_BF16 ? "bfloat16" : type == LS_F16 ? "float16" : type == LS_F64 ? "float64" : "float32";
}

ls_status model_write_hf_config(const ls_model *m, ls_dtype type, char **text, size_t *bytes)
{
    const struct family *f = model_family(m);
    struct json_out j = { 0 };

    if (f->check_hf) LS_TRY(f->check_hf(m));
    json_begin_object(&j, NULL);
    json_begin_array(&j, "architectures");
    json_put_string(&j, NULL, f->hf_architecture);
    json_end_array(&j);
    json_put_string(&j, "model_type", f->hf_type);
    f->write_config(&j, m);
    json_put_real(&j, "initializer_range", m->init_std);
    json_put_bool(&j, "tie_word_embeddings", m->tied);
    json_put_string(&j, "torch_dtype", torch_name(type));
    json_put_bool(&j, "use_cache", 1);
    json_put_int(&j, "vocab_size", (int64_t)m->vocab);
    json_end_object(&j);
    ls_status st = json_out_status(&j);
    if (st < 0) {
        json_out_free(&j);
        return st;
    }
    *text = j.text;
    *bytes = j.bytes;
    return LS_OK;
}
