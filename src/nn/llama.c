/* llama.c - Llama (Touvron et al. 2023; Llama 3: Grattafiori et al. 2024), as Hugging Face's LlamaForCausalLM.
 *
 *   x = embed[tokens]
 *   a layer:  x += o(attention(rope(q(n)), rope(k(n)), v(n))), n = norm(x)
 *             x += down(silu(gate(m)) * up(m)), m = norm(x)
 *   logits = norm(x) head^T
 *
 * No biases; RMS norms; grouped key/value heads; rotary positions by halves (HF's rotate_half), with Llama 3's scaling.
 * Names and shapes are Hugging Face's without change.
 */
#include "nn/model.h"

#include "base/base.h"

#define LINEAR(name, place, out, in) { name, name, place, out, in, INIT_NORMAL, 1, 0, 0, 1 }
#define NORM(name, place)            { name, name, place, DIM_WIDTH, DIM_NONE, INIT_ONES, 0, 0, 0, 1 }

static const struct weight_row rows[] = {
    { "model.embed_tokens.weight", "model.embed_tokens.weight", PLACE_BEFORE, DIM_VOCAB, DIM_WIDTH, INIT_NORMAL, 0, 0,
      0, 1 },
    NORM("input_layernorm.weight", PLACE_LAYER),
    LINEAR("self_attn.q_proj.weight", PLACE_LAYER, DIM_QUERY, DIM_WIDTH),
    LINEAR("self_attn.k_proj.weight", PLACE_LAYER, DIM_KEY, DIM_WIDTH),
    LINEAR("self_attn.v_proj.weight", PLACE_LAYER, DIM_KEY, DIM_WIDTH),
    LINEAR("self_attn.o_proj.weight", PLACE_LAYER, DIM_WIDTH, DIM_QUERY),
    NORM("post_attention_layernorm.weight", PLACE_LAYER),
    LINEAR("mlp.gate_proj.weight", PLACE_LAYER, DIM_FFN, DIM_WIDTH),
    LINEAR("mlp.up_proj.weight", PLACE_LAYER, DIM_FFN, DIM_WIDTH),
    LINEAR("mlp.down_proj.weight", PLACE_LAYER, DIM_WIDTH, DIM_FFN),
    NORM("model.norm.weight", PLACE_AFTER),
    LINEAR("lm_head.weight", PLACE_UNTIED, DIM_VOCAB, DIM_WIDTH),
};

static ls_value linear(ls_program *p, const struct forward *f, const char *weight, size_t layer, ls_value x)
{
    return ls_linear(p, x, model_param(p, f->m, weight, (long)layer), LS_NONE);
}

static ls_value norm(ls_program *p, const struct forward *f, const char *weight, long layer, ls_value x)
{
    return ls_rms_norm(p, x, model_param(p, f->m, weight, layer), f->m->norm_eps);
}

static ls_value embed(ls_program *p, const struct forward *f, ls_value tokens)
{
    return ls_embedding(p, tokens, model_param(p, f->m, "model.embed_tokens.weight", NO_LAYER));
}

static ls_value attention(ls_program *p, const struct forward *f, size_t i, ls_value x)
{
    ls_value q = linear(p, f, "self_attn.q_proj.weight", i, x);
    ls_value k = linear(p, f, "self_attn.k_proj.weight", i, x);
    ls_value v = linear(p, f, "self_attn.v_proj.weight", i, x);

    return linear(p, f, "self_attn.o_proj.weight", i, model_attend(p, f, i, q, k, v));
}

static ls_value mlp(ls_program *p, const struct forward *f, size_t i, ls_value x)
{
    ls_value gate = linear(p, f, "mlp.gate_proj.weight", i, x), up = linear(p, f, "mlp.up_proj.weight", i, x);

    return linear(p, f, "mlp.down_proj.weight", i, ls_swiglu(p, gate, up));
}

static ls_value layer_forward(ls_program *p, const struct forward *f, size_t i, ls_value x)
{
    ls_value n = norm(p, f, "input_layernorm.weight", (long)i, x), h = ls_add(p, x, attention(p, f, i, n)), m;

    m = norm(p, f, "post_attention_layernorm.weight", (long)i, h);
    return ls_add(p, h, mlp(p, f, i, m));
}

static ls_value final_norm(ls_program *p, const struct forward *f, ls_value x)
{
    return norm(p, f, "model.norm.weight", NO_LAYER, x);
}

static ls_status check(const ls_model *m)
{
    if (m->head_size % 2)
        return ls_fail(LS_EINVAL, "model: rotary positions turn pairs: head_size %zu must be even", m->head_size);
    if (m->dropout != 0)
        return ls_fail(LS_EINVAL, "model: Llama has no dropout: %g must be 0", m->dropout);
    if (!(m->rope.theta > 0) || !(m->rope.factor >= 1) || m->rope.original_positions < 1)
        return ls_fail(LS_EINVAL, "model: rope theta %g must be positive, factor %g 1 or more, original positions %lld "
                       "1 or more", m->rope.theta, m->rope.factor, (long long)m->rope.original_positions);
    if (m->rope.factor != 1 && !(m->rope.high_freq_factor > m->rope.low_freq_factor && m->rope.low_freq_factor > 0))
        return ls_fail(LS_EINVAL, "model: rope's high_freq_factor %g must be above low_freq_factor %g, and that above "
                       "0", m->rope.high_freq_factor, m->rope.low_freq_factor);
    return LS_OK;
}

const struct family family_llama = {
    .name = "Llama", .hf_architecture = "LlamaForCausalLM", .hf_type = "llama", .hf_prefix = "",
    .layer = "model.layers", .embedding = "model.embed_tokens.weight", .rows = rows, .nrows = COUNT_OF(rows),
    .embed = embed, .layer_forward = layer_forward, .final_norm = final_norm, .check = check,
};
