/* llama.c - Llama (Touvron et al. 2023; Llama 3: Grattafiori et al. 2024), as Hugging Face's LlamaForCausalLM.
 *
 *   x = embed[tokens]
 *   a layer:  x += o(attention(rope(q(n)), rope(k(n)), v(n))), n = norm(x)
 *             x += down(silu(gate(m)) * up(m)), m = norm(x)
 *   logits = norm(x) head^T
 *
 * No biases; RMS norms; grouped key/value heads; rotary positions by halves (HF's rotate_half), with Llama 3's scaling.
 * Names and shapes are exactly Hugging Face's.
 */
#include "models/llama.h"

#include <string.h>
#include "base/base.h"
#include "models/config_hf.h"

static const struct weight_row llama_rows[] = {
    LLAMA_EMBEDDING,
    LLAMA_ATTENTION,
    LLAMA_MLP,
    LLAMA_HEAD,
};

ls_value llama_linear(ls_program *p, const struct forward *f, const char *weight, size_t layer, ls_value x)
{
    return ls_linear(p, x, model_param(p, f->m, weight, (long)layer), LS_NONE);
}

ls_value llama_norm(ls_program *p, const struct forward *f, const char *weight, long layer, ls_value x)
{
    return ls_rms_norm(p, x, model_param(p, f->m, weight, layer), f->m->norm_eps);
}

ls_value llama_embed(ls_program *p, const struct forward *f, ls_value tokens)
{
    return ls_embedding(p, tokens, model_param(p, f->m, "model.embed_tokens.weight", NO_LAYER));
}

/* Normalizes each head of x[B,T,heads*D] over its D elements. */
static ls_value norm_heads(ls_program *p, const struct forward *f, const char *weight, size_t layer, size_t heads, ls_value x)
{
    size_t size[] = { ls_value_size(p, x, 0), ls_value_size(p, x, 1), heads, f->m->head_size };
    ls_value y = llama_norm(p, f, weight, (long)layer, ls_reshape(p, x, 4, size));

    size[2] *= size[3];
    return ls_reshape(p, y, 3, size);
}

ls_value llama_attention(ls_program *p, const struct forward *f, size_t i, ls_value x)
{
    ls_value q = llama_linear(p, f, "self_attn.q_proj.weight", i, x);
    ls_value k = llama_linear(p, f, "self_attn.k_proj.weight", i, x);
    ls_value v = llama_linear(p, f, "self_attn.v_proj.weight", i, x);

    if (model_family(f->m)->has.head_norms) {
        q = norm_heads(p, f, "self_attn.q_norm.weight", i, f->m->heads, q);
        k = norm_heads(p, f, "self_attn.k_norm.weight", i, f->m->kv_heads, k);
    }
    return llama_linear(p, f, "self_attn.o_proj.weight", i, model_attend(p, f, i, q, k, v));
}

ls_value llama_mlp_inner(ls_program *p, const struct forward *f, const char *const names[3], size_t i, ls_value x)
{
    ls_value gate = llama_linear(p, f, names[0], i, x), up = llama_linear(p, f, names[1], i, x);

    return ls_swiglu(p, gate, up);
}

ls_value llama_mlp(ls_program *p, const struct forward *f, const char *const names[3], size_t i, ls_value x)
{
    return llama_linear(p, f, names[2], i, llama_mlp_inner(p, f, names, i, x));
}

ls_value llama_layer(ls_program *p, const struct forward *f, size_t i, ls_value x)
{
    static const char *const names[] = { "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight" };
    ls_value n = llama_norm(p, f, "input_layernorm.weight", (long)i, x), h = ls_add(p, x, llama_attention(p, f, i, n));
    ls_value m = llama_norm(p, f, "post_attention_layernorm.weight", (long)i, h);

    return ls_add(p, h, llama_mlp(p, f, names, i, m));
}

ls_value llama_final_norm(ls_program *p, const struct forward *f, ls_value x) { return llama_norm(p, f, "model.norm.weight", NO_LAYER, x); }

size_t llama_default_ffn(size_t width) { return (width * 8 / 3 + 31) / 32 * 32; }

const char *const llama_hf_ignored[] = { ".rotary_emb.inv_freq", NULL };

/* ---- Hugging Face's config.json ---- */

/* o: rope_scaling or rope_parameters. The kind is in `rope_type`, or in `type` in old files. */
static ls_status read_rope(const json_node *o, const char *key, ls_rope *rope)
{
    const char *kind = "default";
    size_t original = 0;

    if (json_kind_of(o) != JSON_OBJECT) return ls_fail(LS_EFORMAT, "'%s' must be an object", key);
    LS_TRY(hf_read_name(o, "type", &kind));
    LS_TRY(hf_read_name(o, "rope_type", &kind));
    LS_TRY(hf_read_real(o, "rope_theta", &rope->theta));
    LS_TRY(hf_expect_real(o, "partial_rotary_factor", 1));
    if (strcmp(kind, "default") == 0) return LS_OK;
    if (strcmp(kind, "llama3") != 0)
        return ls_fail(LS_EUNSUPPORTED, "'%s.rope_type' is '%s'; 'default' and 'llama3' are supported", key, kind);
    if (hf_absent(json_get(o, "factor")) || hf_absent(json_get(o, "low_freq_factor")) || hf_absent(json_get(o, "high_freq_factor")))
        return ls_fail(LS_EFORMAT, "'%s' of type llama3 lacks factor, low_freq_factor or high_freq_factor", key);
    LS_TRY(hf_read_real(o, "factor", &rope->factor));
    LS_TRY(hf_read_real(o, "low_freq_factor", &rope->low_freq_factor));
    LS_TRY(hf_read_real(o, "high_freq_factor", &rope->high_freq_factor));
    LS_TRY(hf_read_size(o, "original_max_position_embeddings", &original));
    rope->original_positions = (int64_t)original;
    return LS_OK;
}

ls_status llama_read_shape(const json_node *o, ls_model *m)
{
    static const char *const ropes[] = { "rope_scaling", "rope_parameters" };

    LS_TRY(hf_read_size(o, "num_hidden_layers", &m->layers));
    LS_TRY(hf_read_size(o, "hidden_size", &m->width));
    LS_TRY(hf_read_size(o, "num_attention_heads", &m->heads));
    LS_TRY(hf_read_size(o, "vocab_size", &m->vocab));
    LS_TRY(hf_read_size(o, "max_position_embeddings", &m->max_positions));
    LS_TRY(hf_read_size_or(o, "num_key_value_heads", &m->kv_heads));
    LS_TRY(hf_read_size_or(o, "head_dim", &m->head_size));
    LS_TRY(hf_read_real(o, "initializer_range", &m->init_std));
    LS_TRY(hf_read_bool(o, "tie_word_embeddings", &m->tied));
    LS_TRY(hf_read_real(o, "rope_theta", &m->rope.theta));
    for (size_t i = 0; i < COUNT_OF(ropes); i++)
        if (!hf_absent(json_get(o, ropes[i]))) LS_TRY(read_rope(json_get(o, ropes[i]), ropes[i], &m->rope));
    return LS_OK;
}

ls_status llama_read_decoder(const json_node *o, ls_model *m)
{
    const char *act = "silu";

    LS_TRY(llama_read_shape(o, m));
    LS_TRY(hf_read_real(o, "rms_norm_eps", &m->norm_eps));
    LS_TRY(hf_read_name(o, "hidden_act", &act));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return ls_fail(LS_EUNSUPPORTED, "'hidden_act' is '%s'; only 'silu' is supported", act);
    return hf_expect_bool(o, "attention_bias", 0);
}

static ls_status llama_read_config(const json_node *o, ls_model *m)
{
    *m = (ls_model){ .norm_eps = 1e-6, .rope = LS_ROPE_DEFAULTS, .init_std = 0.02 };
    LS_TRY(llama_read_decoder(o, m));
    LS_TRY(hf_read_size(o, "intermediate_size", &m->ffn));
    LS_TRY(hf_expect_bool(o, "mlp_bias", 0));
    return hf_expect_real(o, "pretraining_tp", 1);
}

static void write_rope(struct json_out *j, const ls_rope *rope)
{
    json_put_real(j, "rope_theta", rope->theta);
    if (rope->factor == 1) return;
    json_begin_object(j, "rope_scaling");
    json_put_string(j, "rope_type", "llama3");
    json_put_real(j, "factor", rope->factor);
    json_put_real(j, "low_freq_factor", rope->low_freq_factor);
    json_put_real(j, "high_freq_factor", rope->high_freq_factor);
    json_put_int(j, "original_max_position_embeddings", rope->original_positions);
    json_end_object(j);
}

void llama_write_shape(struct json_out *j, const ls_model *m)
{
    json_put_int(j, "head_dim", (int64_t)m->head_size);
    json_put_int(j, "hidden_size", (int64_t)m->width);
    json_put_int(j, "max_position_embeddings", (int64_t)m->max_positions);
    json_put_int(j, "num_attention_heads", (int64_t)m->heads);
    json_put_int(j, "num_hidden_layers", (int64_t)m->layers);
    json_put_int(j, "num_key_value_heads", (int64_t)m->kv_heads);
    write_rope(j, &m->rope);
}

void llama_write_decoder(struct json_out *j, const ls_model *m)
{
    json_put_bool(j, "attention_bias", 0);
    json_put_string(j, "hidden_act", "silu");
    json_put_real(j, "rms_norm_eps", m->norm_eps);
    llama_write_shape(j, m);
}

static void llama_write_config(struct json_out *j, const ls_model *m)
{
    llama_write_decoder(j, m);
    json_put_int(j, "intermediate_size", (int64_t)m->ffn);
    json_put_bool(j, "mlp_bias", 0);
}

/* ---- the family ---- */

/* The config.json files that Meta published with Llama 3. Last: theta, factor, low_freq_factor, high_freq_factor, original positions. */
#define SIZES(layers_, width_, heads_, kv_, ffn_, vocab_, positions_, tied_, ...)                                            \
    {                                                                                                                        \
        .layers = layers_, .width = width_, .heads = heads_, .kv_heads = kv_, .head_size = (width_) / (heads_), .ffn = ffn_, \
        .vocab = vocab_, .max_positions = positions_, .tied = tied_, .norm_eps = 1e-5, .rope = __VA_ARGS__, .init_std = 0.02 \
    }

static const struct preset llama_presets[] = {
    { "llama3-405b", SIZES(126, 16384, 128, 8, 53248, 128256, 131072, 0, { 500000, 8, 1, 4, 8192 }) },
    { "llama3-70b", SIZES(80, 8192, 64, 8, 28672, 128256, 8192, 0, { 500000, 1, 1, 4, 8192 }) },
    { "llama3-8b", SIZES(32, 4096, 32, 8, 14336, 128256, 8192, 0, { 500000, 1, 1, 4, 8192 }) },
    { "llama3.2-1b", SIZES(16, 2048, 32, 8, 8192, 128256, 131072, 1, { 500000, 32, 1, 4, 8192 }) },
    { "llama-demo", SIZES(6, 256, 8, 4, 704, 256, 1024, 1, LS_ROPE_DEFAULTS) },
    { "llama-tiny", SIZES(2, 64, 4, 2, 160, 256, 128, 0, LS_ROPE_DEFAULTS) },
};

const struct family family_llama = {
    .has = { .title = "Llama", .grouped_heads = 1, .rotary = 1 },
    .hf_architecture = "LlamaForCausalLM",
    .hf_type = "llama",
    .rows = llama_rows,
    .nrows = COUNT_OF(llama_rows),
    LLAMA_PARTS,
    .layer_forward = llama_layer,
    .presets = llama_presets,
    .npresets = COUNT_OF(llama_presets),
    .read_config = llama_read_config,
    .write_config = llama_write_config,
};
