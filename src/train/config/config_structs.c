/* config_structs.c - the library's structs from the options, but for the layout (config_layout.c) and the model (config_model.c). */
#include "train/config/config.h"

#include "base/base.h"
#include "base/file.h"

ls_dtype config_type(const struct config *c) { return c->precision.compute == COMPUTE_BF16 ? LS_BF16 : LS_F32; }

ls_optimizer config_optimizer(const struct config *c)
{
    return (ls_optimizer){
        .kind = (ls_optimizer_kind)c->optim.name,
        .beta1 = c->optim.beta1,
        .beta2 = c->optim.beta2,
        .eps = c->optim.eps,
        .momentum = c->optim.momentum,
        .nesterov = c->optim.nesterov,
        .trust_coefficient = c->optim.trust_coefficient,
        .weight_decay = c->optim.weight_decay,
        .clip = c->optim.in_backward && c->optim.clip_by == CLIP_BY_CURRENT ? 0 : c->optim.clip,
        .clip_previous = c->optim.clip_by == CLIP_BY_PREVIOUS,
        .stochastic_rounding = c->precision.stochastic_rounding,
        .in_backward = c->optim.in_backward,
        .seed = (uint64_t)c->train.seed,
    };
}

ls_schedule config_schedule(const struct config *c)
{
    double scale = c->optim.lr_scale_batch ? (double)c->train.global_batch / (double)c->optim.lr_scale_batch : 1;

    return (ls_schedule){
        .kind = (ls_schedule_kind)c->optim.schedule,
        .lr = c->optim.lr * scale,
        .min_lr = c->optim.min_lr * scale,
        .warmup = (uint64_t)c->optim.warmup,
        .steps = (uint64_t)c->train.schedule_steps,
        .decay = (uint64_t)MAX(c->optim.decay, 0),
    };
}

const char *config_format(const struct config *c)
{
#define FORMAT_NAME(id, name) name,
    static const char *const formats[] = { NULL, LS_TOKEN_FORMAT_MAP(FORMAT_NAME) };
#undef FORMAT_NAME

    return formats[c->data.format];
}

bool config_has_weights(const struct config *c) { return c->model.hf[0] && file_is_folder(c->model.hf); }
