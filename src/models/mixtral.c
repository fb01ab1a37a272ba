/* mixtral.c - Mixtral (Jiang et al. 2024), as Hugging Face's MixtralForCausalLM: Llama with a mixture of experts in place of each
 * MLP. HF's folders store each expert separately (w1 gate, w3 up, w2 down), we store them stacked.
 */
#include "models/llama.h"

#include "base/base.h"
#include "models/config_hf.h"

static const struct weight_row mixtral_rows[] = {
    LLAMA_EMBEDDING,
    LLAMA_ATTENTION,
    LLAMA_EXPERTS("block_sparse_moe", "w1", "w3", "w2"),
    LLAMA_HEAD,
};

static ls_status mixtral_read_config(const json_node *o, ls_model *m)
{
    *m = (ls_model){ .norm_eps = 1e-5,
                     .rope = LS_ROPE_DEFAULTS,
                     .init_std = 0.02,
                     .norm_topk = 1,
                     .kv_heads = 8,
                     .experts = 8,
                     .experts_per_token = 2,
                     .aux_coef = 0.001 };
    m->rope.theta = 1e6;
    LS_TRY(llama_read_decoder(o, m));
    LS_TRY(hf_read_size(o, "intermediate_size", &m->expert_ffn));
    LS_TRY(hf_read_size_or(o, "num_local_experts", &m->experts));
    LS_TRY(hf_read_size_or(o, "num_experts_per_tok", &m->experts_per_token));
    LS_TRY(hf_read_real(o, "router_aux_loss_coef", &m->aux_coef));
    LS_TRY(hf_expect_real(o, "router_jitter_noise", 0));
    return hf_expect_absent(o, "sliding_window");
}

static void mixtral_write_config(struct json_out *j, const ls_model *m)
{
    llama_write_decoder(j, m);
    json_put_int(j, "intermediate_size", (int64_t)m->expert_ffn);
    json_put_int(j, "num_local_experts", (int64_t)m->experts);
    json_put_int(j, "num_experts_per_tok", (int64_t)m->experts_per_token);
    json_put_real(j, "router_aux_loss_coef", m->aux_coef);
}

static ls_status check_hf(const ls_model *m)
{
    LS_TRY(llama_experts_check_hf(m));
    if (!m->norm_topk)
        return ls_fail(LS_EUNSUPPORTED,
                       "Hugging Face's Mixtral normalizes the weights of the chosen experts: this model, whose norm_topk is false, "
                       "cannot be exported");
    return LS_OK;
}

/* The config.json that Mistral AI published. */
static const struct preset mixtral_presets[] = {
    { "mixtral-8x7b", LLAMA_EXPERTS_SIZES(32, 4096, 32, 8, 128, 8, 2, 14336, 32000, 32768, 1, 0.02, 1e-5, { 1000000, 1, 1, 4, 8192 }) },
    { "mixtral-tiny", LLAMA_EXPERTS_SIZES(2, 64, 4, 2, 16, 4, 2, 96, 256, 128, 1, 0.02, 1e-5, LS_ROPE_DEFAULTS) },
};

const struct family family_mixtral = {
    .has = { .title = "Mixtral", .grouped_heads = 1, .rotary = 1, .experts = 1 },
    .hf_architecture = "MixtralForCausalLM",
    .hf_type = "mixtral",
    .rows = mixtral_rows,
    .nrows = COUNT_OF(mixtral_rows),
    LLAMA_PARTS,
    .layer_forward = llama_experts_layer,
    .check = llama_experts_check,
    .presets = mixtral_presets,
    .npresets = COUNT_OF(mixtral_presets),
    .read_config = mixtral_read_config,
    .write_config = mixtral_write_config,
    .check_hf = check_hf,
};
