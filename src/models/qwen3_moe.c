/* qwen3_moe.c - Qwen3-MoE (Yang et al. 2025), as Hugging Face's Qwen3MoeForCausalLM: Llama with RMS norms over each head of q and k,
 * and a mixture of many small experts in place of each MLP. HF's folders store each expert separately, we store them stacked.
 */
#include "models/llama.h"

#include "base/base.h"
#include "models/config_hf.h"

static const struct weight_row qwen3_moe_rows[] = {
    LLAMA_EMBEDDING,
    LLAMA_NORMED_ATTENTION,
    LLAMA_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    LLAMA_HEAD,
};

static ls_status qwen3_moe_read_config(const json_node *o, ls_model *m)
{
    *m = (ls_model){ .norm_eps = 1e-6,
                     .rope = LS_ROPE_DEFAULTS,
                     .init_std = 0.02,
                     .kv_heads = 4,
                     .experts = 128,
                     .experts_per_token = 8,
                     .expert_ffn = 768,
                     .aux_coef = 0.001 };
    LS_TRY(llama_read_decoder(o, m));
    LS_TRY(hf_read_size_or(o, "num_local_experts", &m->experts)); /* transformers 5 */
    LS_TRY(hf_read_size_or(o, "num_experts", &m->experts));
    LS_TRY(hf_read_size_or(o, "num_experts_per_tok", &m->experts_per_token));
    LS_TRY(hf_read_size_or(o, "moe_intermediate_size", &m->expert_ffn));
    LS_TRY(hf_read_bool(o, "norm_topk_prob", &m->norm_topk));
    LS_TRY(hf_read_real(o, "router_aux_loss_coef", &m->aux_coef));
    LS_TRY(hf_expect_real(o, "decoder_sparse_step", 1));
    if (json_size(json_get(o, "mlp_only_layers")) > 0)
        return ls_fail(LS_EUNSUPPORTED, "'mlp_only_layers' lists %zu layers; only models whose every layer has experts are supported",
                       json_size(json_get(o, "mlp_only_layers")));
    return hf_expect_bool(o, "use_sliding_window", 0);
}

static void qwen3_moe_write_config(struct json_out *j, const ls_model *m)
{
    llama_write_decoder(j, m);
    json_put_int(j, "decoder_sparse_step", 1);
    json_put_int(j, "intermediate_size", (int64_t)m->expert_ffn); /* of layers without experts, of which there are none */
    json_put_int(j, "moe_intermediate_size", (int64_t)m->expert_ffn);
    json_put_bool(j, "norm_topk_prob", m->norm_topk);
    json_put_int(j, "num_experts", (int64_t)m->experts);
    json_put_int(j, "num_experts_per_tok", (int64_t)m->experts_per_token);
    json_put_real(j, "router_aux_loss_coef", m->aux_coef);
}

/* The config.json that Alibaba published. */
static const struct preset qwen3_moe_presets[] = {
    { "qwen3-30b-a3b", LLAMA_EXPERTS_SIZES(48, 2048, 32, 4, 128, 128, 8, 768, 151936, 40960, 1, 0.001, 1e-6, { 1000000, 1, 1, 4, 8192 }) },
    { "qwen3-moe-tiny", LLAMA_EXPERTS_SIZES(2, 64, 4, 2, 32, 4, 2, 96, 256, 128, 1, 0.001, 1e-6, LS_ROPE_DEFAULTS) },
};

const struct family family_qwen3_moe = {
    .has = { .title = "Qwen3-MoE", .grouped_heads = 1, .rotary = 1, .head_norms = 1, .experts = 1 },
    .hf_architecture = "Qwen3MoeForCausalLM",
    .hf_type = "qwen3_moe",
    .rows = qwen3_moe_rows,
    .nrows = COUNT_OF(qwen3_moe_rows),
    LLAMA_PARTS,
    .layer_forward = llama_experts_layer,
    .check = llama_experts_check,
    .presets = qwen3_moe_presets,
    .npresets = COUNT_OF(qwen3_moe_presets),
    .read_config = qwen3_moe_read_config,
    .write_config = qwen3_moe_write_config,
    .check_hf = llama_experts_check_hf,
};
