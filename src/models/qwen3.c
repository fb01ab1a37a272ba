/* qwen3.c - Qwen3 (Yang et al. 2025), as Hugging Face's Qwen3ForCausalLM: Llama with RMS norms over each head of q and k, and a head size
 * independent of the width.
 */
#include "models/llama.h"

#include "base/base.h"
#include "models/config_hf.h"

static const struct weight_row qwen3_rows[] = {
    LLAMA_EMBEDDING,
    LLAMA_NORMED_ATTENTION,
    LLAMA_MLP,
    LLAMA_HEAD,
};

static ls_status qwen3_read_config(const json_node *o, ls_model *m)
{
    *m = (ls_model){ .norm_eps = 1e-6, .rope = LS_ROPE_DEFAULTS, .init_std = 0.02, .kv_heads = 32, .head_size = 128 };
    LS_TRY(llama_read_decoder(o, m));
    LS_TRY(hf_read_size(o, "intermediate_size", &m->ffn));
    return hf_expect_bool(o, "use_sliding_window", 0);
}

static void qwen3_write_config(struct json_out *j, const ls_model *m)
{
    llama_write_decoder(j, m);
    json_put_int(j, "intermediate_size", (int64_t)m->ffn);
    json_put_bool(j, "use_sliding_window", 0);
}

/* The config.json files that Alibaba published. */
#define SIZES(layers_, width_, heads_, kv_, head_, ffn_, vocab_, positions_, tied_, theta_)                                     \
    {                                                                                                                           \
        .layers = layers_, .width = width_, .heads = heads_, .kv_heads = kv_, .head_size = head_, .ffn = ffn_, .vocab = vocab_, \
        .max_positions = positions_, .tied = tied_, .norm_eps = 1e-6, .rope = { theta_, 1, 1, 4, 8192 }, .init_std = 0.02       \
    }

static const struct preset qwen3_presets[] = {
    { "qwen3-0.6b", SIZES(28, 1024, 16, 8, 128, 3072, 151936, 40960, 1, 1000000) },
    { "qwen3-1.7b", SIZES(28, 2048, 16, 8, 128, 6144, 151936, 40960, 1, 1000000) },
    { "qwen3-8b", SIZES(36, 4096, 32, 8, 128, 12288, 151936, 40960, 0, 1000000) },
    { "qwen3-tiny", SIZES(2, 64, 4, 2, 32, 160, 256, 128, 1, 10000) },
};

const struct family family_qwen3 = {
    .has = { .title = "Qwen3", .grouped_heads = 1, .rotary = 1, .head_norms = 1 },
    .hf_architecture = "Qwen3ForCausalLM",
    .hf_type = "qwen3",
    .rows = qwen3_rows,
    .nrows = COUNT_OF(qwen3_rows),
    LLAMA_PARTS,
    .layer_forward = llama_layer,
    .presets = qwen3_presets,
    .npresets = COUNT_OF(qwen3_presets),
    .read_config = qwen3_read_config,
    .write_config = qwen3_write_config,
};
