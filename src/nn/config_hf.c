/* config_hf.c - Hugging Face's config.json, read and written.
 *
 * Read are the keys that change what a model computes or how it is initialised. A key that would make it something
 * else (biases, other activations, scaled heads, quantised weights) is refused with its value. Rates of dropout are
 * settings of training and not read. transformers 4 writes `rope_theta` and `rope_scaling`, 5 writes `rope_parameters`.
 */
#include "nn/hf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "nn/model.h"

/* ---- one key ---- */

static int absent(const json_node *n)
{
    return json_kind_of(n) == JSON_NONE || json_kind_of(n) == JSON_NULL;
}

static ls_status read_size(const json_node *o, const char *key, size_t *out)
{
    const json_node *n = json_get(o, key);

    if (json_kind_of(n) == JSON_NONE)
        return ls_fail(LS_EFORMAT, "'%s' is missing", key);
    if (json_kind_of(n) != JSON_INT || json_int(n, 0) < 1 || json_int(n, 0) > INT32_MAX)
        return ls_fail(LS_EFORMAT, "'%s' must be a whole number from 1 to %d", key, INT32_MAX);
    *out = (size_t)json_int(n, 0);
    return LS_OK;
}

/* *out keeps its value when the key is absent or null. */
static ls_status read_size_or(const json_node *o, const char *key, size_t *out)
{
    return absent(json_get(o, key)) ? LS_OK : read_size(o, key, out);
}

static ls_status read_real(const json_node *o, const char *key, double *out)
{
    const json_node *n = json_get(o, key);

    if (absent(n))
        return LS_OK;
    if (json_kind_of(n) != JSON_INT && json_kind_of(n) != JSON_REAL)
        return ls_fail(LS_EFORMAT, "'%s' must be a number", key);
    *out = json_real(n, 0);
    return LS_OK;
}

static ls_status read_bool(const json_node *o, const char *key, int *out)
{
    const json_node *n = json_get(o, key);

    if (absent(n))
        return LS_OK;
    if (json_kind_of(n) != JSON_BOOL)
        return ls_fail(LS_EFORMAT, "'%s' must be true or false", key);
    *out = json_bool(n, 0);
    return LS_OK;
}

/* *out keeps its value when the key is absent or null. It lives as long as the document. */
static ls_status read_name(const json_node *o, const char *key, const char **out)
{
    const json_node *n = json_get(o, key);

    if (absent(n))
        return LS_OK;
    if (json_kind_of(n) != JSON_STRING)
        return ls_fail(LS_EFORMAT, "'%s' must be a string", key);
    *out = json_string(n, "");
    return LS_OK;
}

/* The one value that we compute with; absent is taken for it. */
static ls_status want_bool(const json_node *o, const char *key, int want)
{
    int found = want;

    LS_TRY(read_bool(o, key, &found));
    if (found != want)
        return ls_fail(LS_EUNSUPPORTED, "'%s' is %s; only %s is supported", key, found ? "true" : "false",
                       want ? "true" : "false");
    return LS_OK;
}

static ls_status want_real(const json_node *o, const char *key, double want)
{
    double found = want;

    LS_TRY(read_real(o, key, &found));
    if (found != want)
        return ls_fail(LS_EUNSUPPORTED, "'%s' is %g; only %g is supported", key, found, want);
    return LS_OK;
}

static ls_status want_absent(const json_node *o, const char *key)
{
    if (!absent(json_get(o, key)))
        return ls_fail(LS_EUNSUPPORTED, "'%s' is set; such models are not supported", key);
    return LS_OK;
}

/* ---- GPT-2 ---- */

/* The first name of each is what is written. */
static const struct { const char *name; ls_activation activation; } activations[] = {
    { "gelu_new", LS_GELU_TANH }, { "gelu", LS_GELU_ERF }, { "relu2", LS_RELU_SQUARED },
    { "gelu_pytorch_tanh", LS_GELU_TANH }, { "gelu_fast", LS_GELU_TANH },
};

static ls_status read_activation(const json_node *o, ls_activation *activation)
{
    const char *name = activations[0].name;

    LS_TRY(read_name(o, "activation_function", &name));
    for (size_t i = 0; i < COUNT_OF(activations); i++)
        if (strcmp(name, activations[i].name) == 0) {
            *activation = activations[i].activation;
            return LS_OK;
        }
    return ls_fail(LS_EUNSUPPORTED, "'activation_function' is '%s'; 'gelu_new', 'gelu' and 'relu2' are supported", name);
}

static const char *activation_name(ls_activation activation)
{
    size_t i = 0;

    while (activations[i].activation != activation)
        i++;
    return activations[i].name;
}

static ls_status read_gpt2(const json_node *o, ls_model *m)
{
    *m = (ls_model){ .architecture = LS_GPT2, .tied = 1, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.02 };
    LS_TRY(read_size(o, "n_layer", &m->layers));
    LS_TRY(read_size(o, "n_embd", &m->width));
    LS_TRY(read_size(o, "n_head", &m->heads));
    LS_TRY(read_size(o, "vocab_size", &m->vocab));
    LS_TRY(read_size(o, "n_positions", &m->max_positions));
    m->ffn = 4 * m->width;
    LS_TRY(read_size_or(o, "n_inner", &m->ffn));
    LS_TRY(read_real(o, "layer_norm_epsilon", &m->norm_eps));
    LS_TRY(read_real(o, "initializer_range", &m->init_std));
    LS_TRY(read_bool(o, "tie_word_embeddings", &m->tied));
    LS_TRY(read_activation(o, &m->activation));
    LS_TRY(want_bool(o, "scale_attn_weights", 1));
    LS_TRY(want_bool(o, "scale_attn_by_inverse_layer_idx", 0));
    return want_bool(o, "add_cross_attention", 0);
}

/* ---- Llama ---- */

/* o: rope_scaling or rope_parameters. The kind is `rope_type`, or `type` in old files. */
static ls_status read_rope(const json_node *o, const char *key, ls_rope *rope)
{
    const char *kind = "default";
    size_t original = 0;

    if (json_kind_of(o) != JSON_OBJECT)
        return ls_fail(LS_EFORMAT, "'%s' must be an object", key);
    LS_TRY(read_name(o, "type", &kind));
    LS_TRY(read_name(o, "rope_type", &kind));
    LS_TRY(read_real(o, "rope_theta", &rope->theta));
    LS_TRY(want_real(o, "partial_rotary_factor", 1));
    if (strcmp(kind, "default") == 0)
        return LS_OK;
    if (strcmp(kind, "llama3") != 0)
        return ls_fail(LS_EUNSUPPORTED, "'%s.rope_type' is '%s'; 'default' and 'llama3' are supported", key, kind);
    if (absent(json_get(o, "factor")) || absent(json_get(o, "low_freq_factor")) ||
        absent(json_get(o, "high_freq_factor")))
        return ls_fail(LS_EFORMAT, "'%s' of type llama3 lacks factor, low_freq_factor or high_freq_factor", key);
    LS_TRY(read_real(o, "factor", &rope->factor));
    LS_TRY(read_real(o, "low_freq_factor", &rope->low_freq_factor));
    LS_TRY(read_real(o, "high_freq_factor", &rope->high_freq_factor));
    LS_TRY(read_size(o, "original_max_position_embeddings", &original));
    rope->original_positions = (int64_t)original;
    return LS_OK;
}

/* What Llama and its relatives have in common; *m has their defaults. */
static ls_status read_decoder(const json_node *o, ls_model *m)
{
    static const char *const ropes[] = { "rope_scaling", "rope_parameters" };
    const char *act = "silu";

    LS_TRY(read_size(o, "num_hidden_layers", &m->layers));
    LS_TRY(read_size(o, "hidden_size", &m->width));
    LS_TRY(read_size(o, "num_attention_heads", &m->heads));
    LS_TRY(read_size(o, "vocab_size", &m->vocab));
    LS_TRY(read_size(o, "max_position_embeddings", &m->max_positions));
    LS_TRY(read_size_or(o, "num_key_value_heads", &m->kv_heads));
    LS_TRY(read_size_or(o, "head_dim", &m->head_size));
    LS_TRY(read_real(o, "rms_norm_eps", &m->norm_eps));
    LS_TRY(read_real(o, "initializer_range", &m->init_std));
    LS_TRY(read_bool(o, "tie_word_embeddings", &m->tied));
    LS_TRY(read_real(o, "rope_theta", &m->rope.theta));
    for (size_t i = 0; i < COUNT_OF(ropes); i++)
        if (!absent(json_get(o, ropes[i])))
            LS_TRY(read_rope(json_get(o, ropes[i]), ropes[i], &m->rope));
    LS_TRY(read_name(o, "hidden_act", &act));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return ls_fail(LS_EUNSUPPORTED, "'hidden_act' is '%s'; only 'silu' is supported", act);
    return want_bool(o, "attention_bias", 0);
}

static ls_status read_llama(const json_node *o, ls_model *m)
{
    *m = (ls_model){ .architecture = LS_LLAMA, .norm_eps = 1e-6, .rope = LS_ROPE_DEFAULTS, .init_std = 0.02 };
    LS_TRY(read_decoder(o, m));
    LS_TRY(read_size(o, "intermediate_size", &m->ffn));
    LS_TRY(want_bool(o, "mlp_bias", 0));
    return want_real(o, "pretraining_tp", 1);
}

/* ---- experts ---- */

static ls_status read_mixtral(const json_node *o, ls_model *m)
{
    *m = (ls_model){ .architecture = LS_MIXTRAL, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.02, .norm_topk = 1,
                     .kv_heads = 8, .experts = 8, .experts_per_token = 2, .aux_coef = 0.001 };
    m->rope.theta = 1e6;
    LS_TRY(read_decoder(o, m));
    LS_TRY(read_size(o, "intermediate_size", &m->expert_ffn));
    LS_TRY(read_size_or(o, "num_local_experts", &m->experts));
    LS_TRY(read_size_or(o, "num_experts_per_tok", &m->experts_per_token));
    LS_TRY(read_real(o, "router_aux_loss_coef", &m->aux_coef));
    LS_TRY(want_real(o, "router_jitter_noise", 0));
    return want_absent(o, "sliding_window");
}

static ls_status read_qwen3_moe(const json_node *o, ls_model *m)
{
    *m = (ls_model){ .architecture = LS_QWEN3_MOE, .norm_eps = 1e-6, .rope = LS_ROPE_DEFAULTS, .init_std = 0.02, .kv_heads = 4,
                     .experts = 128, .experts_per_token = 8, .expert_ffn = 768, .aux_coef = 0.001 };
    LS_TRY(read_decoder(o, m));
    LS_TRY(read_size_or(o, "num_local_experts", &m->experts));  /* transformers 5 */
    LS_TRY(read_size_or(o, "num_experts", &m->experts));
    LS_TRY(read_size_or(o, "num_experts_per_tok", &m->experts_per_token));
    LS_TRY(read_size_or(o, "moe_intermediate_size", &m->expert_ffn));
    LS_TRY(read_bool(o, "norm_topk_prob", &m->norm_topk));
    LS_TRY(read_real(o, "router_aux_loss_coef", &m->aux_coef));
    LS_TRY(want_real(o, "decoder_sparse_step", 1));
    if (json_size(json_get(o, "mlp_only_layers")) > 0)
        return ls_fail(LS_EUNSUPPORTED, "'mlp_only_layers' lists %zu layers; only models whose every layer has experts are supported",
                       json_size(json_get(o, "mlp_only_layers")));
    return want_bool(o, "use_sliding_window", 0);
}

/* ---- the file ---- */

enum {
    IS_BOOL = 1u << JSON_BOOL, IS_INT = 1u << JSON_INT, IS_NUMBER = IS_INT | 1u << JSON_REAL, IS_STRING = 1u << JSON_STRING,
    IS_ARRAY = 1u << JSON_ARRAY, IS_OBJECT = 1u << JSON_OBJECT
};

/* What keys must be that a reader below does not look at, or looks into without asking for the kind; null stands for absent. */
static const struct kind { const char *key; unsigned kinds, items; const char *words; } kinds[] = {
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

        if (absent(n))
            continue;
        int right = is_kind(n, k->kinds);
        for (size_t item = 0; right && json_kind_of(n) == JSON_ARRAY && item < json_size(n); item++)
            right = is_kind(json_at(n, item), k->items);
        if (!right)
            return ls_fail(LS_EFORMAT, "'%s' must be %s", k->key, k->words);
    }
    return LS_OK;
}

/* By `architectures`, or by `model_type` when that is absent. */
static ls_status read_config(const json_node *o, ls_model *m)
{
    static const struct { const struct family *family; ls_status (*read)(const json_node *o, ls_model *m); } readers[] = {
        { &family_gpt2, read_gpt2 }, { &family_llama, read_llama }, { &family_mixtral, read_mixtral },
        { &family_qwen3_moe, read_qwen3_moe },
    };
    const char *name = json_string(json_at(json_get(o, "architectures"), 0), NULL);
    const char *type = json_string(json_get(o, "model_type"), NULL);

    if (json_kind_of(o) != JSON_OBJECT)
        return ls_fail(LS_EFORMAT, "not an object");
    LS_TRY(check_kinds(o));
    LS_TRY(want_absent(o, "quantization_config"));
    if (!name && !type)
        return ls_fail(LS_EFORMAT, "neither 'architectures' nor 'model_type' says what it is");
    if (json_get(o, "model_type") && !type)
        return ls_fail(LS_EFORMAT, "'model_type' is null; a string is expected");
    for (size_t i = 0; i < COUNT_OF(readers); i++)
        if (name ? strcmp(name, readers[i].family->hf_architecture) == 0 : strcmp(type, readers[i].family->hf_type) == 0) {
            if (type && strcmp(type, readers[i].family->hf_type) != 0)
                return ls_fail(LS_EFORMAT, "'architectures' is '%s', but 'model_type' is '%s'; '%s' is expected", name, type, readers[i].family->hf_type);
            return readers[i].read(o, m);
        }
    return ls_fail(LS_EUNSUPPORTED, "'%s' is '%s'; GPT2LMHeadModel, LlamaForCausalLM, MixtralForCausalLM and Qwen3MoeForCausalLM are "
                   "supported", name ? "architectures" : "model_type", name ? name : type);
}

ls_status model_parse_hf(const char *text, size_t bytes, const char *what, ls_model *out)
{
    json_node *root;
    ls_model m;
    ls_status st;

    LS_TRY(json_parse(text, bytes, what, &root));
    st = read_config(root, &m);
    if (st == LS_OK)
        st = ls_model_check(&m);
    json_close(&root);
    if (st < 0)
        return ls_fail_at(st, "%s", what);
    *out = m;
    return LS_OK;
}

ls_status ls_model_read_hf(const char *path, ls_model *out)
{
    char *file = file_path(file_is_folder(path) ? "%s/config.json" : "%s", path), *text;
    size_t bytes;
    ls_status st;

    if (!file)
        return LS_ENOMEM;
    st = file_read(file, &text, &bytes);
    if (st < 0)
        goto free_path;
    st = model_parse_hf(text, bytes, file, out);
    mem_free(text);

free_path:
    mem_free(file);
    return st;
}

static void write_gpt2(struct json_out *j, const ls_model *m)
{
    json_put_string(j, "activation_function", activation_name(m->activation));
    json_put_real(j, "attn_pdrop", 0);
    json_put_real(j, "embd_pdrop", m->dropout);
    json_put_real(j, "resid_pdrop", m->dropout);
    json_put_real(j, "layer_norm_epsilon", m->norm_eps);
    json_put_int(j, "n_ctx", (int64_t)m->max_positions);
    json_put_int(j, "n_embd", (int64_t)m->width);
    json_put_int(j, "n_head", (int64_t)m->heads);
    json_put_int(j, "n_inner", (int64_t)m->ffn);
    json_put_int(j, "n_layer", (int64_t)m->layers);
    json_put_int(j, "n_positions", (int64_t)m->max_positions);
    json_put_bool(j, "scale_attn_weights", 1);
}

static void write_rope(struct json_out *j, const ls_rope *rope)
{
    json_put_real(j, "rope_theta", rope->theta);
    if (rope->factor == 1)
        return;
    json_begin_object(j, "rope_scaling");
    json_put_string(j, "rope_type", "llama3");
    json_put_real(j, "factor", rope->factor);
    json_put_real(j, "low_freq_factor", rope->low_freq_factor);
    json_put_real(j, "high_freq_factor", rope->high_freq_factor);
    json_put_int(j, "original_max_position_embeddings", rope->original_positions);
    json_end_object(j);
}

static void write_mixtral(struct json_out *j, const ls_model *m)
{
    json_put_int(j, "intermediate_size", (int64_t)m->expert_ffn);
    json_put_int(j, "num_local_experts", (int64_t)m->experts);
    json_put_int(j, "num_experts_per_tok", (int64_t)m->experts_per_token);
    json_put_real(j, "router_aux_loss_coef", m->aux_coef);
}

static void write_qwen3_moe(struct json_out *j, const ls_model *m)
{
    json_put_int(j, "decoder_sparse_step", 1);
    json_put_int(j, "intermediate_size", (int64_t)m->expert_ffn);  /* of layers without experts: there are none */
    json_put_int(j, "moe_intermediate_size", (int64_t)m->expert_ffn);
    json_put_bool(j, "norm_topk_prob", m->norm_topk);
    json_put_int(j, "num_experts", (int64_t)m->experts);
    json_put_int(j, "num_experts_per_tok", (int64_t)m->experts_per_token);
    json_put_real(j, "router_aux_loss_coef", m->aux_coef);
}

static void write_decoder(struct json_out *j, const ls_model *m)
{
    json_put_bool(j, "attention_bias", 0);
    json_put_int(j, "head_dim", (int64_t)m->head_size);
    json_put_string(j, "hidden_act", "silu");
    json_put_int(j, "hidden_size", (int64_t)m->width);
    json_put_int(j, "max_position_embeddings", (int64_t)m->max_positions);
    json_put_int(j, "num_attention_heads", (int64_t)m->heads);
    json_put_int(j, "num_hidden_layers", (int64_t)m->layers);
    json_put_int(j, "num_key_value_heads", (int64_t)m->kv_heads);
    json_put_real(j, "rms_norm_eps", m->norm_eps);
    write_rope(j, &m->rope);
    if (m->architecture == LS_MIXTRAL) {
        write_mixtral(j, m);
    } else if (m->architecture == LS_QWEN3_MOE) {
        write_qwen3_moe(j, m);
    } else {
        json_put_int(j, "intermediate_size", (int64_t)m->ffn);
        json_put_bool(j, "mlp_bias", 0);
    }
}

/* Whether the family as Hugging Face has it computes the same. */
static ls_status check_expressible(const ls_model *m)
{
    if (m->shared_ffn || m->router != LS_ROUTER_SOFTMAX || m->balance > 0 || (m->architecture == LS_MIXTRAL && !m->norm_topk))
        return ls_fail(LS_EUNSUPPORTED, "%s at Hugging Face has no shared experts (shared_ffn %zu), no sigmoid router, no bias on "
                       "scores (balance %g), and Mixtral normalises the weights of the chosen experts: this model can't be written so",
                       model_family(m)->name, m->shared_ffn, m->balance);
    return LS_OK;
}

static const char *torch_name(ls_dtype type)
{
    return type == LS_BF16 ? "bfloat16" : type == LS_F16 ? "float16" : type == LS_F64 ? "float64" : "float32";
}

ls_status model_write_hf_config(const ls_model *m, ls_dtype type, char **text, size_t *bytes)
{
    const struct family *f = model_family(m);
    struct json_out j = { 0 };
    ls_status st;

    LS_TRY(check_expressible(m));
    json_begin_object(&j, NULL);
    json_begin_array(&j, "architectures");
    json_put_string(&j, NULL, f->hf_architecture);
    json_end_array(&j);
    json_put_string(&j, "model_type", f->hf_type);
    (m->architecture == LS_GPT2 ? write_gpt2 : write_decoder)(&j, m);
    json_put_real(&j, "initializer_range", m->init_std);
    json_put_bool(&j, "tie_word_embeddings", m->tied);
    json_put_string(&j, "torch_dtype", torch_name(type));
    json_put_bool(&j, "use_cache", 1);
    json_put_int(&j, "vocab_size", (int64_t)m->vocab);
    json_end_object(&j);
    st = json_out_status(&j);
    if (st < 0) {
        json_out_free(&j);
        return st;
    }
    *text = j.text;
    *bytes = j.bytes;
    return LS_OK;
}
