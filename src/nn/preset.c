/* preset.c - models by name. Sizes: Radford et al. 2019, table 2; the config.json files that Meta published with
 * Llama 3. */
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
                   "llama3-8b, llama3.2-1b, llama-demo, llama-tiny", name);
}
