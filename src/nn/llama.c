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
#include "nn/llama.h"

#include "base/base.h"

static const struct weight_row rows[] = {
    LLAMA_EMBEDDING,
    LLAMA_ATTENTION,
    WEIGHT_LINEAR("mlp.gate_proj.weight", PLACE_LAYER, DIM_FFN, DIM_WIDTH),
    WEIGHT_LINEAR("mlp.up_proj.weight", PLACE_LAYER, DIM_FFN, DIM_WIDTH),
    WEIGHT_LINEAR("mlp.down_proj.weight", PLACE_LAYER, DIM_WIDTH, DIM_FFN),
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

/* Each head of x[B,T,heads*D] normalised over its D elements. */
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

    if (model_family(f->m)->norms_heads) {
        q = norm_heads(p, f, "self_attn.q_norm.weight", i, f->m->heads, q);
        k = norm_heads(p, f, "self_attn.k_norm.weight", i, f->m->kv_heads, k);
    }
    return llama_linear(p, f, "self_attn.o_proj.weight", i, model_attend(p, f, i, q, k, v));
}

ls_value llama_mlp(ls_program *p, const struct forward *f, const char *const names[3], size_t i, ls_value x)
{
    ls_value gate = llama_linear(p, f, names[0], i, x), up = llama_linear(p, f, names[1], i, x);

    return llama_linear(p, f, names[2], i, ls_swiglu(p, gate, up));
}

static ls_value layer_forward(ls_program *p, const struct forward *f, size_t i, ls_value x)
{
    static const char *const names[] = { "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight" };
    ls_value n = llama_norm(p, f, "input_layernorm.weight", (long)i, x), h = ls_add(p, x, llama_attention(p, f, i, n)), m;

    m = llama_norm(p, f, "post_attention_layernorm.weight", (long)i, h);
    return ls_add(p, h, llama_mlp(p, f, names, i, m));
}

ls_value llama_final_norm(ls_program *p, const struct forward *f, ls_value x)
{
    return llama_norm(p, f, "model.norm.weight", NO_LAYER, x);
}

ls_status llama_check(const ls_model *m)
{
    if (m->head_size % 2)
        return ls_fail(LS_EINVAL, "model: rotary positions turn pairs: head_size %zu must be even", m->head_size);
    if (m->dropout != 0)
        return ls_fail(LS_EINVAL, "model: %s has no dropout: %g must be 0", model_family(m)->name, m->dropout);
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
    .embed = llama_embed, .layer_forward = layer_forward, .final_norm = llama_final_norm, .check = llama_check,
    .rotates = true,
};
