/* qwen3_moe.c - Qwen3-MoE (Yang et al. 2025), as Hugging Face's Qwen3MoeForCausalLM: Llama with RMS norms over each head of q and k,
 * and a mixture of many small experts in place of each MLP. HF's folders hold each expert by itself, we hold them stacked.
 */
#include "nn/llama.h"

#include "base/base.h"

static const struct weight_row rows[] = {
    LLAMA_EMBEDDING,
    WEIGHT_NORM("input_layernorm.weight", PLACE_LAYER, DIM_WIDTH),
    WEIGHT_LINEAR("self_attn.q_proj.weight", PLACE_LAYER, DIM_QUERY, DIM_WIDTH),
    WEIGHT_LINEAR("self_attn.k_proj.weight", PLACE_LAYER, DIM_KEY, DIM_WIDTH),
    WEIGHT_LINEAR("self_attn.v_proj.weight", PLACE_LAYER, DIM_KEY, DIM_WIDTH),
    WEIGHT_NORM("self_attn.q_norm.weight", PLACE_LAYER, DIM_HEAD),
    WEIGHT_NORM("self_attn.k_norm.weight", PLACE_LAYER, DIM_HEAD),
    WEIGHT_LINEAR("self_attn.o_proj.weight", PLACE_LAYER, DIM_WIDTH, DIM_QUERY),
    WEIGHT_NORM("post_attention_layernorm.weight", PLACE_LAYER, DIM_WIDTH),
    LLAMA_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    LLAMA_HEAD,
};

const struct family family_qwen3_moe = {
    .name = "Qwen3-MoE", .hf_architecture = "Qwen3MoeForCausalLM", .hf_type = "qwen3_moe", .hf_prefix = "",
    .layer = "model.layers", .embedding = "model.embed_tokens.weight", .rows = rows, .nrows = COUNT_OF(rows),
    .embed = llama_embed, .layer_forward = llama_experts_layer, .final_norm = llama_final_norm, .check = llama_experts_check,
    .rotates = true, .norms_heads = true, .has_experts = true,
};
