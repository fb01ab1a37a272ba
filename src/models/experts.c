/* experts.c - the MLP of a layer as a mixture of experts (Shazeer et al. 2017; Mixtral: Jiang et al. 2024).
 *
 *   logits = x gate^T                                    in f32, whatever the model's type
 *   y = sum over the token's experts e of weight[e] * down_e(silu(gate_e(x)) * up_e(x)) + shared(x)
 *
 * The experts' weights are stacked: [E,F,C], [E,F,C] and [E,C,F]. A token that exceeds an expert's capacity bypasses it.
 *
 * The shared expert is computed in two halves, each after rows have been sent to other ranks and before they are read, so that it overlaps
 * with the exchange: its inner width while rows go to the ranks of their experts, its output while they come back.
 */
#include "models/llama.h"

#include <math.h>
#include <stdio.h>
#include "base/base.h"

static ls_value exact(ls_program *p, ls_value x) { return x.id == 0 || ls_value_dtype(p, x) == LS_F64 ? x : ls_cast(p, x, LS_F32); }

static ls_route_options options_of(const struct forward *f, size_t tokens)
{
    const ls_model *m = f->m;
    ls_route_options o = { .chosen = m->experts_per_token,
                           .sigmoid = m->router == LS_ROUTER_SIGMOID,
                           .normalize = m->norm_topk,
                           .by_probability = m->drop == LS_DROP_PROBABILITY };

    if (m->capacity > 0 && !f->texts) /* a generated token is never dropped */
        o.capacity = (size_t)ceil(m->capacity * (double)tokens * (double)o.chosen / (double)m->experts);
    return o;
}

static ls_value bias_of(ls_program *p, const struct forward *f, size_t layer)
{
    char name[96], in[64];

    if (f->m->router_bias_rate == 0) return LS_NONE;
    ls_model_layer_name(f->m, layer, in, sizeof in);
    snprintf(name, sizeof name, "%s.mlp.gate.bias", in);
    return ls_balance_bias(p, name, f->m->experts, f->m->router_bias_rate);
}

static void put_losses(ls_program *p, const struct forward *f, size_t layer, ls_value logits, const ls_routing *r)
{
    const ls_model *m = f->m;
    ls_router_loss_options o = { m->router == LS_ROUTER_SIGMOID, m->aux_coef, m->z_coef, m->aux_over_micro_batch };
    char name[96], in[64];

    ls_model_layer_name(m, layer, in, sizeof in);
    if (m->aux_coef > 0 || m->z_coef > 0) {
        snprintf(name, sizeof name, "%s.router_loss", in);
        ls_output(p, name, ls_router_loss(p, logits, r, f->samples, &o));
    }
    snprintf(name, sizeof name, "%s.expert_load", in);
    ls_output(p, name, ls_route_load(p, r, 0));
}

static ls_routing route(ls_program *p, const struct forward *f, size_t layer, ls_value x)
{
    ls_value logits = ls_linear(p, exact(p, x), exact(p, model_param(p, f->m, "mlp.gate.weight", (long)layer)), LS_NONE);
    ls_route_options o = options_of(f, ls_value_size(p, x, 1));
    ls_routing r = ls_route(p, logits, bias_of(p, f, layer), f->samples, &o);

    if (f->losses && r.weight.id) put_losses(p, f, layer, logits, &r);
    return r;
}

static ls_value grouped(ls_program *p, const struct forward *f, const char *weight, size_t layer, ls_value x, const ls_routing *r)
{
    return ls_grouped_linear(p, x, model_param(p, f->m, weight, (long)layer), r->counts);
}

ls_value model_experts(ls_program *p, const struct forward *f, size_t i, ls_value x)
{
    static const char *const shared[] = { "mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight",
                                          "mlp.shared_experts.down_proj.weight" };
    ls_routing r = route(p, f, i, x);
    ls_value rows = ls_rows_permute(p, x, &r);
    ls_value inner = f->m->shared_ffn ? llama_mlp_inner(p, f, shared, i, x) : LS_NONE;
    ls_value gate = grouped(p, f, "mlp.experts.gate_proj.weight", i, rows, &r);
    ls_value up = grouped(p, f, "mlp.experts.up_proj.weight", i, rows, &r);
    ls_value y = grouped(p, f, "mlp.experts.down_proj.weight", i, ls_swiglu(p, gate, up), &r);

    if (!f->m->shared_ffn) return ls_rows_unpermute(p, y, &r);
    inner = llama_linear(p, f, shared[2], i, inner);
    return ls_add(p, ls_rows_unpermute(p, y, &r), inner);
}

ls_value llama_experts_layer(ls_program *p, const struct forward *f, size_t i, ls_value x)
{
    ls_value n = llama_norm(p, f, "input_layernorm.weight", (long)i, x), h = ls_add(p, x, llama_attention(p, f, i, n));

    return ls_add(p, h, model_experts(p, f, i, llama_norm(p, f, "post_attention_layernorm.weight", (long)i, h)));
}

static bool is_rate(double x) { return x >= 0 && x < 1e6; }

ls_status llama_experts_check(const ls_model *m)
{
    if (m->experts < 1 || m->experts > 1 << 16) return ls_fail(LS_EINVAL, "model: experts is %zu; must be 1 to %d", m->experts, 1 << 16);
    if (m->experts_per_token < 1 || m->experts_per_token > m->experts)
        return ls_fail(LS_EINVAL, "model: experts_per_token is %zu; with %zu experts it must be 1 to %zu", m->experts_per_token, m->experts,
                       m->experts);
    if (m->expert_ffn < 1 || m->expert_ffn > INT32_MAX || m->shared_ffn > INT32_MAX)
        return ls_fail(LS_EINVAL, "model: expert_ffn is %zu, shared_ffn %zu; must be 1 (0 for no shared expert) to %d", m->expert_ffn,
                       m->shared_ffn, INT32_MAX);
    if ((unsigned)m->router >= LS_ROUTERS) return ls_fail(LS_EINVAL, "model: router %d does not exist", (int)m->router);
    if ((unsigned)m->drop >= LS_DROPS) return ls_fail(LS_EINVAL, "model: drop %d does not exist", (int)m->drop);
    if (!is_rate(m->capacity) || !is_rate(m->aux_coef) || !is_rate(m->z_coef) || !is_rate(m->router_bias_rate))
        return ls_fail(LS_EINVAL, "model: capacity %g, aux_coef %g, z_coef %g and router_bias_rate %g must be 0 or more", m->capacity,
                       m->aux_coef, m->z_coef, m->router_bias_rate);
    return LS_OK;
}

ls_status llama_experts_check_hf(const ls_model *m)
{
    if (m->shared_ffn || m->router != LS_ROUTER_SOFTMAX || m->router_bias_rate > 0)
        return ls_fail(
            LS_EUNSUPPORTED,
            "Hugging Face's %s has no shared experts (shared_ffn %zu), no sigmoid router and no bias on scores (router_bias_rate %g): "
            "this model cannot be exported",
            model_family(m)->has.title, m->shared_ffn, m->router_bias_rate);
    return LS_OK;
}
