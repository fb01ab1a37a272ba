/* starcoder2.c - StarCoder2 (Lozhkov et al. 2024), as Hugging Face's Starcoder2ForCausalLM: GPT-2's layers with rotary positions and
 * grouped heads.
 *
 *   a layer:  x += o(attention(q(n), k(n), v(n))), n = input_layernorm(x);   x += c_proj(gelu(c_fc(m))), m = post_attention_layernorm(x)
 *
 * Every linear layer has a bias. Dropout, if enabled, follows the embedding and both projections, and is applied to attention's
 * probabilities.
 */
#include "models/llama.h"

#include "base/base.h"
#include "models/config_hf.h"

#define BIASED(name, place, out, in) \
    WEIGHT_LINEAR(name ".weight", place, out, in), { name ".bias", name ".bias", place, out, DIM_NONE, INIT_ZEROS, 0, 0, 0, 1, 0, 0 }
#define NORM(name, place) \
    WEIGHT_NORM(name ".weight", place, DIM_WIDTH), { name ".bias", name ".bias", place, DIM_WIDTH, DIM_NONE, INIT_ZEROS, 0, 0, 0, 1, 0, 0 }

static const struct weight_row starcoder2_rows[] = {
    LLAMA_EMBEDDING,
    NORM("input_layernorm", PLACE_LAYER),
    BIASED("self_attn.q_proj", PLACE_LAYER, DIM_QUERY, DIM_WIDTH),
    BIASED("self_attn.k_proj", PLACE_LAYER, DIM_KEY, DIM_WIDTH),
    BIASED("self_attn.v_proj", PLACE_LAYER, DIM_KEY, DIM_WIDTH),
    BIASED("self_attn.o_proj", PLACE_LAYER, DIM_WIDTH, DIM_QUERY),
    NORM("post_attention_layernorm", PLACE_LAYER),
    BIASED("mlp.c_fc", PLACE_LAYER, DIM_FFN, DIM_WIDTH),
    BIASED("mlp.c_proj", PLACE_LAYER, DIM_WIDTH, DIM_FFN),
    NORM("model.norm", PLACE_AFTER),
    WEIGHT_LINEAR("lm_head.weight", PLACE_UNTIED, DIM_VOCAB, DIM_WIDTH),
};

static ls_value starcoder2_embed(ls_program *p, const struct forward *f, ls_value tokens)
{
    return model_dropout(p, f, "embedding.dropout", llama_embed(p, f, tokens));
}

static ls_value starcoder2_attention(ls_program *p, const struct forward *f, size_t i, ls_value x)
{
    ls_value q = model_linear(p, f, "self_attn.q_proj.weight", "self_attn.q_proj.bias", i, x);
    ls_value k = model_linear(p, f, "self_attn.k_proj.weight", "self_attn.k_proj.bias", i, x);
    ls_value v = model_linear(p, f, "self_attn.v_proj.weight", "self_attn.v_proj.bias", i, x);
    ls_value o = model_linear(p, f, "self_attn.o_proj.weight", "self_attn.o_proj.bias", i, model_attend(p, f, i, q, k, v));

    return model_dropout(p, f, "attention.dropout", o);
}

static ls_value starcoder2_mlp(ls_program *p, const struct forward *f, size_t i, ls_value x)
{
    ls_value h = model_activation(p, f, model_linear(p, f, "mlp.c_fc.weight", "mlp.c_fc.bias", i, x));

    return model_dropout(p, f, "mlp.dropout", model_linear(p, f, "mlp.c_proj.weight", "mlp.c_proj.bias", i, h));
}

static ls_value starcoder2_layer(ls_program *p, const struct forward *f, size_t i, ls_value x)
{
    ls_value n = model_layer_norm(p, f, "input_layernorm.weight", "input_layernorm.bias", (long)i, x);
    ls_value h = ls_add(p, x, starcoder2_attention(p, f, i, n));
    ls_value m = model_layer_norm(p, f, "post_attention_layernorm.weight", "post_attention_layernorm.bias", (long)i, h);

    return ls_add(p, h, starcoder2_mlp(p, f, i, m));
}

static ls_value starcoder2_final_norm(ls_program *p, const struct forward *f, ls_value x)
{
    return model_layer_norm(p, f, "model.norm.weight", "model.norm.bias", NO_LAYER, x);
}

static size_t starcoder2_default_ffn(size_t width) { return 4 * width; }

/* ---- Hugging Face's config.json ---- */

/* A sliding window is as good as none in samples that are no longer than it: these are the positions that the model has. */
static ls_status starcoder2_read_config(const json_node *o, ls_model *m)
{
    size_t window = 0;

    *m = (ls_model){ .tied = 1, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.018042, .kv_heads = 2 };
    LS_TRY(llama_read_shape(o, m));
    LS_TRY(hf_read_size(o, "intermediate_size", &m->ffn));
    LS_TRY(hf_read_real(o, "norm_epsilon", &m->norm_eps));
    LS_TRY(hf_read_size_or(o, "sliding_window", &window));
    if (window) m->max_positions = MIN(m->max_positions, window);
    LS_TRY(hf_read_activation(o, "hidden_act", &m->activation));
    return hf_expect_bool(o, "use_bias", 1);
}

static void starcoder2_write_config(struct json_out *j, const ls_model *m)
{
    llama_write_shape(j, m);
    json_put_string(j, "hidden_act", hf_activation_name(m->activation));
    json_put_int(j, "intermediate_size", (int64_t)m->ffn);
    json_put_real(j, "norm_epsilon", m->norm_eps);
    json_put_real(j, "attention_dropout", m->attention_dropout);
    json_put_real(j, "embedding_dropout", m->dropout);
    json_put_real(j, "residual_dropout", m->dropout);
    json_put_bool(j, "use_bias", 1);
}

/* ---- the family ---- */

/* The config.json files that BigCode published, with the positions of their sliding window. */
#define SIZES(layers_, width_, heads_, kv_, vocab_, positions_, theta_)                                                                    \
    {                                                                                                                                      \
        .layers = layers_, .width = width_, .heads = heads_, .kv_heads = kv_, .head_size = (width_) / (heads_), .ffn = 4 * (width_),       \
        .vocab = vocab_, .max_positions = positions_, .tied = 1, .norm_eps = 1e-5, .rope = { theta_, 1, 1, 4, 8192 }, .init_std = 0.018042 \
    }

static const struct preset starcoder2_presets[] = {
    { "starcoder2-3b", SIZES(30, 3072, 24, 2, 49152, 4096, 999999.4420358813) },
    { "starcoder2-7b", SIZES(32, 4608, 36, 4, 49152, 4096, 1000000) },
    { "starcoder2-tiny", SIZES(2, 64, 4, 2, 256, 128, 10000) },
};

const struct family family_starcoder2 = {
    .has = { .title = "StarCoder2", .grouped_heads = 1, .rotary = 1, .dropout = 1, .activation = 1 },
    .hf_architecture = "Starcoder2ForCausalLM",
    .hf_type = "starcoder2",
    .hf_prefix = "",
    .layer = "model.layers",
    .embedding = "model.embed_tokens.weight",
    .rows = starcoder2_rows,
    .nrows = COUNT_OF(starcoder2_rows),
    .embed = starcoder2_embed,
    .layer_forward = starcoder2_layer,
    .final_norm = starcoder2_final_norm,
    .default_ffn = starcoder2_default_ffn,
    .presets = starcoder2_presets,
    .npresets = COUNT_OF(starcoder2_presets),
    .read_config = starcoder2_read_config,
    .write_config = starcoder2_write_config,
    .hf_ignored = llama_hf_ignored,
};
