/* parity.h - two layouts, one run: what each came to, held against the other by name.
 *
 * One side runs some steps on random tokens (random_tokens.h: the same global batches whatever the layout) and writes
 * a file of records, little-endian:
 *     u32 kind, u32 step, u64 bytes of the name, u64 count, name, f64[count] (loss, norm) or f32[count] (the rest)
 * in this order: for each step loss, norm, every gradient, every weight as the update left it. Gradients are the whole
 * step's, summed over ranks and micro-batches, before clipping.
 *
 * A side may save a checkpoint behind its first step, and another go on from there in place of making that step. Both then write
 * what they hold at that point: every parameter and every optimizer state, which must be the same to the bit.
 */
#ifndef LS_TRAIN_PARITY_H
#define LS_TRAIN_PARITY_H

#include "train/step.h"

struct parity_run {
    uint64_t    steps;
    const char *path;   /* of the file */
    const char *save;   /* root to save the state behind step 0 in; NULL: it isn't saved */
    const char *load;   /* root whose newest checkpoint is gone on with; NULL: from the start */
};

/* Runs one side on this process's ranks; rank 0 writes the file. Collective. */
ls_status parity_write(const struct config *c, const struct ranks *ranks, const struct parity_run *run);

/* PARITY_STATE: "NAME/parameter", "NAME/m", .. at the checkpoint. */
enum parity_kind { PARITY_LOSS, PARITY_NORM, PARITY_GRADIENT, PARITY_WEIGHT, PARITY_STATE, PARITY_KINDS };

struct parity_difference {
    enum parity_kind kind;
    uint64_t step;          /* 0, 1, ... */
    char     name[160];     /* of the parameter; "loss", "norm" */
    size_t   element;       /* where it is largest, measured by what is allowed there */
    double   a, b;          /* there */
    double   relative;      /* |a - b| / scale */
    double   allowed;       /* the most that may be */
    double   ulp;           /* |a - b| in units of f32's last place at the scale */
};

/* How far two files may lie apart. For gradients the scale is the tensor's largest element, or the root mean square of the
 * whole gradient where that is larger (a gradient that is zero but for rounding has no scale of its own). A weight may also
 * differ by what the update rule makes of its gradients' rounding: `plain` times it (sgd, lars: the learning rate, with all that
 * momentum makes of it); of rules that divide by the gradient's size (adam, adamw, lamb), whose learning rate is `sensitive`,
 * as much of a whole update as rounding is of the gradient.
 *
 * Behind the first step gradients and norms may lie `later` times further apart. Rules that divide make large updates of
 * gradients that are rounding alone, which the next gradients feel (10). Where rounding pushes the input of a ReLU across
 * zero, its sample's gradient appears or goes as a whole (image models: 1e4; their losses hardly move). Otherwise 1. */
struct parity_bounds { double loss, norm, gradient, weight, plain, sensitive, later; };

struct parity_result {
    bool     equal;
    struct parity_difference first;    /* beyond the bounds; !equal */
    struct parity_difference largest[PARITY_KINDS];  /* measured by what is allowed */
    uint64_t steps, tensors, states, same_bits, compared;  /* tensors: names of weights; compared: records, states of them;
                                                              same_bits of them */
};

/* Of a file that goes on from a checkpoint b, what a has before the checkpoint is left out. Frees nothing of the caller's. LS_EFORMAT
 * when a file is cut or the two hold different tensors. */
ls_status parity_compare(const char *a, const char *b, const struct parity_bounds *bounds, struct parity_result *out);
const char *parity_kind_name(enum parity_kind k);       /* "gradient" */
const char *parity_direction(enum parity_kind k);       /* "forward", "backward", "optimizer", "checkpoint" */

#endif
