/* mixtral.c - Mixtral (Jiang et al. 2024), as Hugging Face's MixtralForCausalLM: Llama with a mixture of experts in place of each
 * MLP. HF's folders hold each expert by itself (w1 gate, w3 up, w2 down), we hold them stacked.
 */
#include "nn/llama.h"

#include "base/base.h"

static const struct weight_row rows[] = {
    LLAMA_EMBEDDING,
    LLAMA_ATTENTION,
    LLAMA_EXPERTS("block_sparse_moe", "w1", "w3", "w2"),
    LLAMA_HEAD,
};

const struct family family_mixtral = {
    .name = "Mixtral", .hf_architecture = "MixtralForCausalLM", .hf_type = "mixtral", .hf_prefix = "",
    .layer = "model.layers", .embedding = "model.embed_tokens.weight", .rows = rows, .nrows = COUNT_OF(rows),
    .embed = llama_embed, .layer_forward = llama_experts_layer, .final_norm = llama_final_norm, .check = llama_experts_check,
    .rotates = true, .has_experts = true,
};
