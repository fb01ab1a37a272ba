/* gpt2.c - GPT-2 (Radford et al. 2019), as Hugging Face's GPT2LMHeadModel computes it.
 *
 *   x = wte[tokens] + wpe[positions]
 *   a layer:  x += proj(attention(q(n), k(n), v(n))), n = ln_1(x);   x += proj(gelu(fc(m))), m = ln_2(x); gelu or another activation
 *   logits = ln_f(x) wte^T
 *
 * Every linear layer has a bias. Hugging Face stores q, k and v as one `c_attn` and all linear weights as [in,out]; here they are three
 * weights, [out,in]. Dropout, if enabled, follows the embedding and both projections, and is applied to attention's probabilities.
 */
#include "models/model.h"

#include "base/base.h"
#include "models/config_hf.h"

#define CONV(ours, hfs, place, out, in, init, part, parts)                                   \
    { ours ".weight", hfs ".weight", place, out, in, init, 1, 1, part, parts, 0, 0 },        \
    {                                                                                        \
        ours ".bias", hfs ".bias", place, out, DIM_NONE, INIT_ZEROS, 0, 0, part, parts, 0, 0 \
    }
#define NORM(ours, place)                                                                        \
    { ours ".weight", ours ".weight", place, DIM_WIDTH, DIM_NONE, INIT_ONES, 0, 0, 0, 1, 0, 0 }, \
    {                                                                                            \
        ours ".bias", ours ".bias", place, DIM_WIDTH, DIM_NONE, INIT_ZEROS, 0, 0, 0, 1, 0, 0     \
    }
#define TABLE(ours, place, gpt2_rows, product)                                       \
    {                                                                                \
        ours, ours, place, gpt2_rows, DIM_WIDTH, INIT_NORMAL, product, 0, 0, 1, 0, 0 \
    }

static const struct weight_row gpt2_rows[] = {
    TABLE("wte.weight", PLACE_BEFORE, DIM_VOCAB, 0),
    TABLE("wpe.weight", PLACE_BEFORE, DIM_POSITIONS, 0),
    NORM("ln_1", PLACE_LAYER),
    CONV("attn.q", "attn.c_attn", PLACE_LAYER, DIM_QUERY, DIM_WIDTH, INIT_NORMAL, 0, 3),
    CONV("attn.k", "attn.c_attn", PLACE_LAYER, DIM_KEY, DIM_WIDTH, INIT_NORMAL, 1, 3),
    CONV("attn.v", "attn.c_attn", PLACE_LAYER, DIM_KEY, DIM_WIDTH, INIT_NORMAL, 2, 3),
    CONV("attn.proj", "attn.c_proj", PLACE_LAYER, DIM_WIDTH, DIM_QUERY, INIT_RESIDUAL, 0, 1),
    NORM("ln_2", PLACE_LAYER),
    CONV("mlp.fc", "mlp.c_fc", PLACE_LAYER, DIM_FFN, DIM_WIDTH, INIT_NORMAL, 0, 1),
    CONV("mlp.proj", "mlp.c_proj", PLACE_LAYER, DIM_WIDTH, DIM_FFN, INIT_RESIDUAL, 0, 1),
    NORM("ln_f", PLACE_AFTER),
    TABLE("lm_head.weight", PLACE_UNTIED, DIM_VOCAB, 1),
};

static ls_value embed(ls_program *p, const struct forward *f, ls_value tokens)
{
    ls_value x = ls_embedding(p, tokens, model_param(p, f->m, "wte.weight", NO_LAYER));
    ls_value at = ls_embedding(p, f->positions, model_param(p, f->m, "wpe.weight", NO_LAYER));

    return model_dropout(p, f, "embedding.dropout", ls_add(p, x, at));
}

static ls_value attention(ls_program *p, const struct forward *f, size_t i, ls_value x)
{
    ls_value q = model_linear(p, f, "attn.q.weight", "attn.q.bias", i, x);
    ls_value k = model_linear(p, f, "attn.k.weight", "attn.k.bias", i, x);
    ls_value v = model_linear(p, f, "attn.v.weight", "attn.v.bias", i, x);
    ls_value o = model_linear(p, f, "attn.proj.weight", "attn.proj.bias", i, model_attend(p, f, i, q, k, v));

    return model_dropout(p, f, "attention.dropout", o);
}

static ls_value mlp(ls_program *p, const struct forward *f, size_t i, ls_value x)
{
    ls_value h = model_linear(p, f, "mlp.fc.weight", "mlp.fc.bias", i, x);

    h = model_activation(p, f, h);
    return model_dropout(p, f, "mlp.dropout", model_linear(p, f, "mlp.proj.weight", "mlp.proj.bias", i, h));
}

static ls_value layer_forward(ls_program *p, const struct forward *f, size_t i, ls_value x)
{
    ls_value n = model_layer_norm(p, f, "ln_1.weight", "ln_1.bias", (long)i, x), h = ls_add(p, x, attention(p, f, i, n));
    ls_value m = model_layer_norm(p, f, "ln_2.weight", "ln_2.bias", (long)i, h);

    return ls_add(p, h, mlp(p, f, i, m));
}

static ls_value final_norm(ls_program *p, const struct forward *f, ls_value x)
{
    return model_layer_norm(p, f, "ln_f.weight", "ln_f.bias", NO_LAYER, x);
}

static ls_status gpt2_check(const ls_model *m)
{
    if (m->heads * m->head_size != m->width)
        return ls_fail(LS_EINVAL,
                       "model.head_size=%zu: GPT-2 has head_size = width / heads, but heads %zu * head_size %zu is not width %zu; use "
                       "model.head_size=%zu, or leave it out",
                       m->head_size, m->heads, m->head_size, m->width, m->width / m->heads);
    return LS_OK;
}

static size_t default_ffn(size_t width) { return 4 * width; }

/* ---- Hugging Face's config.json ---- */

static ls_status gpt2_read_config(const json_node *o, ls_model *m)
{
    *m = (ls_model){ .tied = 1, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.02 };
    LS_TRY(hf_read_size(o, "n_layer", &m->layers));
    LS_TRY(hf_read_size(o, "n_embd", &m->width));
    LS_TRY(hf_read_size(o, "n_head", &m->heads));
    LS_TRY(hf_read_size(o, "vocab_size", &m->vocab));
    LS_TRY(hf_read_size(o, "n_positions", &m->max_positions));
    m->ffn = default_ffn(m->width);
    LS_TRY(hf_read_size_or(o, "n_inner", &m->ffn));
    LS_TRY(hf_read_real(o, "layer_norm_epsilon", &m->norm_eps));
    LS_TRY(hf_read_real(o, "initializer_range", &m->init_std));
    LS_TRY(hf_read_bool(o, "tie_word_embeddings", &m->tied));
    LS_TRY(hf_read_activation(o, "activation_function", &m->activation));
    LS_TRY(hf_expect_bool(o, "scale_attn_weights", 1));
    LS_TRY(hf_expect_bool(o, "scale_attn_by_inverse_layer_idx", 0));
    return hf_expect_bool(o, "add_cross_attention", 0);
}

static void gpt2_write_config(struct json_out *j, const ls_model *m)
{
    json_put_string(j, "activation_function", hf_activation_name(m->activation));
    json_put_real(j, "attn_pdrop", m->attention_dropout);
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

/* ---- the family ---- */

/* Radford et al. 2019, table 2. */
#define SIZES(layers_, width_, heads_, vocab_, positions_)                                                                              \
    {                                                                                                                                   \
        .layers = layers_, .width = width_, .heads = heads_, .kv_heads = heads_, .head_size = (width_) / (heads_), .ffn = 4 * (width_), \
        .vocab = vocab_, .max_positions = positions_, .tied = 1, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.02           \
    }

static const struct preset gpt2_presets[] = {
    { "gpt2-124m", SIZES(12, 768, 12, 50257, 1024) },  { "gpt2-350m", SIZES(24, 1024, 16, 50257, 1024) },
    { "gpt2-774m", SIZES(36, 1280, 20, 50257, 1024) }, { "gpt2-1.5b", SIZES(48, 1600, 25, 50257, 1024) },
    { "gpt2-tiny", SIZES(2, 64, 4, 256, 64) },
};

static const char *const hf_ignored[] = { ".attn.bias", ".attn.masked_bias", NULL }; /* causal masks */

const struct family family_gpt2 = {
    .has = { .title = "GPT-2", .dropout = 1, .activation = 1 },
    .hf_architecture = "GPT2LMHeadModel",
    .hf_type = "gpt2",
    .hf_prefix = "transformer.",
    .layer = "h",
    .embedding = "wte.weight",
    .rows = gpt2_rows,
    .nrows = COUNT_OF(gpt2_rows),
    .embed = embed,
    .layer_forward = layer_forward,
    .final_norm = final_norm,
    .check = gpt2_check,
    .default_ffn = default_ffn,
    .presets = gpt2_presets,
    .npresets = COUNT_OF(gpt2_presets),
    .read_config = gpt2_read_config,
    .write_config = gpt2_write_config,
    .hf_ignored = hf_ignored,
};
