/* optim.h - optimizers and learning-rate schedules.
 *
 * ls_optimizer_append() adds the optimizer segment to a program: the global gradient norm, which counts every parameter once, the clip
 * factor, and one update per parameter that isn't frozen. It adds the states it needs to the store: "m" the first moment or momentum, "v"
 * the second moment. Append it after the model and before ls_program_compile(). In each step the caller sets the hyper-parameters with
 * ls_optimizer_set() and runs LS_OPTIMIZER_STEP. If the norm is NaN or infinite, that fails with LS_EINVAL on all ranks before any
 * parameter or state is written.
 */
#ifndef LS_OPTIM_H
#define LS_OPTIM_H

#include "lockstep/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every optimizer: its constant LS_..., its name, and which fields of ls_optimizer it reads beside weight_decay and clip:
 *   moments   beta1, beta2, eps      momentum  momentum      nesterov  nesterov      trust  trust_coefficient
 * Then layer_wise: the norm of a parameter's update or gradient, and its own, scale its learning rate. */
/* clang-format off */
#define LS_OPTIMIZER_MAP(OPTIMIZER) \
    OPTIMIZER(SGD,   sgd,   0, 1, 1, 0, 0) \
    OPTIMIZER(ADAM,  adam,  1, 0, 0, 0, 0) \
    OPTIMIZER(ADAMW, adamw, 1, 0, 0, 0, 0) \
    OPTIMIZER(LAMB,  lamb,  1, 0, 0, 0, 1) \
    OPTIMIZER(LARS,  lars,  0, 1, 0, 1, 1)
/* clang-format on */

#define LS_OPTIMIZER_ENUM(upper, ...) LS_##upper,
typedef enum ls_optimizer_kind { LS_OPTIMIZER_MAP(LS_OPTIMIZER_ENUM) LS_OPTIMIZERS } ls_optimizer_kind;

typedef struct ls_optimizer_facts {
    const char *name; /* "adamw" */
    int moments, momentum, nesterov, trust, layer_wise;
} ls_optimizer_facts;
/* NULL for a kind that does not exist. */
const ls_optimizer_facts *ls_optimizer_facts_of(ls_optimizer_kind kind);

typedef struct ls_optimizer {
    ls_optimizer_kind kind;
    double beta1, beta2, eps;
    double momentum;          /* SGD, LARS; 0: no momentum, no state */
    int nesterov;             /* SGD */
    double trust_coefficient; /* LARS: trust coefficient */
    double weight_decay;      /* applies to parameters with two dims or more; norms and biases are not decayed. Decoupled in AdamW */
    double clip;              /* largest global gradient norm; 0: no clipping */
    int clip_previous;        /* 1: clip by the norm that ls_optimizer_set_norm() gives, of the update before, not by this update's */
    /* 1: updated bf16 parameters without a master copy are rounded up or down at random, so that the mean is exact; router biases, which
     * move by fixed steps, are rounded to nearest */
    int stochastic_rounding;
    uint64_t seed; /* of stochastic_rounding: the bits are a function of seed, parameter, element and step */
    /* 1: a parameter is updated in LS_BACKWARD | LS_LAST, as soon as its gradient is final, and the gradient's memory is used again: it is
     * in an arena, and the store has no gradients. On several ranks the gradients of a bucket or FSDP unit are reduced, used and freed
     * together. Same bits. LS_OPTIMIZER_STEP computes the norm alone. Requires clip 0 or clip_previous, one micro-batch, no pipeline, no
     * offloaded state, the cpu, and for LAMB and LARS no shards of parameters. Call ls_optimizer_set() before the backward. Updates stop
     * before the first gradient that is not finite; parameters that were updated before it in the same backward keep their update. */
    int in_backward;
} ls_optimizer;
#define LS_OPTIMIZER_DEFAULTS                                          \
    {                                                                  \
        LS_ADAMW, 0.9, 0.95, 1e-8, 0.9, 0, 0.001, 0.1, 1.0, 0, 0, 0, 0 \
    }

ls_status ls_optimizer_append(ls_program *p, const ls_optimizer *o);
/* Learning rate and step number t (1, 2, ...) of the update that runs next. After ls_program_compile(). */
ls_status ls_optimizer_set(ls_program *p, const ls_optimizer *o, double lr, uint64_t t);
/* With clip_previous, before each update: ls_optimizer_norm() of the update before, by which this one is clipped. 0: there was none, and
 * this one is not clipped. Any other optimizer ignores it. */
ls_status ls_optimizer_set_norm(ls_program *p, const ls_optimizer *o, double norm);
/* The global gradient norm, before clipping, of the last update, whether applied or rejected; NaN if the program has no optimizer. */
double ls_optimizer_norm(const ls_program *p);
ls_status ls_optimizer_read_norm(const ls_program *p, double *norm); /* the same, or why it cannot be read */

typedef enum ls_schedule_kind { LS_CONSTANT, LS_LINEAR, LS_COSINE, LS_WSD } ls_schedule_kind;
typedef struct ls_schedule {
    ls_schedule_kind kind;
    double lr, min_lr; /* peak and final learning rate */
    uint64_t warmup;   /* steps of linear growth: step s (0, 1, ...) of them gets lr * (s+1) / warmup */
    uint64_t steps;    /* length of the whole schedule */
    uint64_t decay;    /* WSD: number of last steps, over which the rate falls linearly to min_lr */
} ls_schedule;
double ls_schedule_lr(const ls_schedule *s, uint64_t step); /* step 0, 1, ...; past the end: min_lr (constant: lr) */

#ifdef __cplusplus
}
#endif
#endif
