/* preset.c - models by name. Sizes: Radford et al. 2019, table 2; the config.json files that Meta published with
 * Llama 3, Mistral AI with Mixtral and Alibaba with Qwen3. */
#include "lockstep/nn.h"

#include <string.h>
#include "base/base.h"

#define GPT2(layers_, width_, heads_, vocab_, positions_)                                                  \
    { .architecture = LS_GPT2, .layers = layers_, .width = width_, .heads = heads_, .kv_heads = heads_,    \
      .head_size = (width_) / (heads_), .ffn = 4 * (width_), .vocab = vocab_, .max_positions = positions_, \
      .tied = 1, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.02 }
#define LLAMA(layers_, width_, heads_, kv_, ffn_, vocab_, positions_, tied_, ...)                          \
    { .architecture = LS_LLAMA, .layers = layers_, .width = width_, .heads = heads_, .kv_heads = kv_,      \
      .head_size = (width_) / (heads_), .ffn = ffn_, .vocab = vocab_, .max_positions = positions_,         \
      .tied = tied_, .norm_eps = 1e-5, .rope = __VA_ARGS__, .init_std = 0.02 }

#define EXPERTS(family_, layers_, width_, heads_, kv_, head_, experts_, chosen_, ffn_, vocab_, positions_, norm_topk_, aux_, ...) \
    { .architecture = family_, .layers = layers_, .width = width_, .heads = heads_, .kv_heads = kv_, .head_size = head_, \
      .vocab = vocab_, .max_positions = positions_, .experts = experts_, .experts_per_token = chosen_, .expert_ffn = ffn_, \
      .norm_topk = norm_topk_, .aux_coef = aux_, .norm_eps = (family_) == LS_MIXTRAL ? 1e-5 : 1e-6, .rope = __VA_ARGS__, .init_std = 0.02 }

/* theta, factor, low_freq_factor, high_freq_factor, original positions */
static const struct { const char *name; ls_model model; } presets[] = {
    { "gpt2-124m", GPT2(12, 768, 12, 50257, 1024) },
    { "gpt2-350m", GPT2(24, 1024, 16, 50257, 1024) },
    { "gpt2-774m", GPT2(36, 1280, 20, 50257, 1024) },
    { "gpt2-1.5b", GPT2(48, 1600, 25, 50257, 1024) },
    { "gpt2-tiny", GPT2(2, 64, 4, 256, 64) },
    { "llama3-8b", LLAMA(32, 4096, 32, 8, 14336, 128256, 8192, 0, { 500000, 1, 1, 4, 8192 }) },
    { "llama3.2-1b", LLAMA(16, 2048, 32, 8, 8192, 128256, 131072, 1, { 500000, 32, 1, 4, 8192 }) },
    { "llama-demo", LLAMA(6, 256, 8, 4, 704, 256, 1024, 1, LS_ROPE_DEFAULTS) },
    { "mixtral-8x7b", EXPERTS(LS_MIXTRAL, 32, 4096, 32, 8, 128, 8, 2, 14336, 32000, 32768, 1, 0.02, { 1000000, 1, 1, 4, 8192 }) },
    { "qwen3-30b-a3b", EXPERTS(LS_QWEN3_MOE, 48, 2048, 32, 4, 128, 128, 8, 768, 151936, 40960, 1, 0.001, { 1000000, 1, 1, 4, 8192 }) },
    { "mixtral-tiny", EXPERTS(LS_MIXTRAL, 2, 64, 4, 2, 16, 4, 2, 96, 256, 128, 1, 0.02, LS_ROPE_DEFAULTS) },
    { "qwen3-moe-tiny", EXPERTS(LS_QWEN3_MOE, 2, 64, 4, 2, 32, 4, 2, 96, 256, 128, 1, 0.001, LS_ROPE_DEFAULTS) },
    { "llama-tiny", LLAMA(2, 64, 4, 2, 160, 256, 128, 0, LS_ROPE_DEFAULTS) },
};

const char *ls_model_preset_name(int i)
{
    return i >= 0 && (size_t)i < COUNT_OF(presets) ? presets[i].name : NULL;
}

ls_status ls_model_preset(const char *name, ls_model *out)
{
    for (size_t i = 0; i < COUNT_OF(presets); i++)
        if (strcmp(presets[i].name, name) == 0) {
            *out = presets[i].model;
            return LS_OK;
        }
    return ls_fail(LS_EINVAL, "model: no preset '%s'; there are gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1.5b, gpt2-tiny, "
                   "llama3-8b, llama3.2-1b, llama-demo, llama-tiny, mixtral-8x7b, mixtral-tiny, qwen3-30b-a3b, qwen3-moe-tiny", name);
}
