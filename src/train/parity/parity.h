/* parity.h - compares the results of two layouts tensor by tensor.
 *
 * One side, the reference, runs some steps on random tokens (random_tokens.h: the same global batches whatever the layout) and writes their
 * results (parity_file.h). The other side follows it: before each step except its first it loads the reference's parameters and optimizer
 * state. So every step is compared separately: gradients are computed from equal weights, and updates from equal moments.
 *
 *   start      both sides' state before the first step: the same bits, initialized or loaded from the checkpoint
 *   loss       to a bound from the lengths of the sums (parity_bounds.h)
 *   gradient   its root mean square error and its largest error, to bounds of the same kind
 *   norm       each side's norm, to the norm of its own gradients
 *   weight     each side's new weights, to what the update rule in double makes of the common state and its own gradient (parity_update.h)
 *   state      m and v, likewise
 *   copies     each rank holds the same bits of what is replicated
 */
#ifndef LS_TRAIN_PARITY_PARITY_H
#define LS_TRAIN_PARITY_PARITY_H

#include "train/parity/parity_bounds.h"
#include "train/run/ranks.h"

struct parity_run {
    uint64_t steps;
    const char *path;   /* the file that rank 0 writes */
    const char *save;   /* folder in which a checkpoint is saved after step 0; NULL: none */
    const char *load;   /* folder whose newest checkpoint is resumed; NULL: start from the initialization */
    const char *follow; /* the reference's file, whose states are loaded; NULL: the side runs freely */
};

/* Runs one side on this process's ranks; rank 0 writes the file. Collective. */
ls_status parity_write(const struct config *c, const struct ranks *ranks, const struct parity_run *run);

enum parity_kind {
    PARITY_START,
    PARITY_LOSS,
    PARITY_GRADIENT,
    PARITY_NORM,
    PARITY_WEIGHT,
    PARITY_STATE,
    PARITY_STATISTIC,
    PARITY_COPIES,
    PARITY_KINDS
};

struct parity_difference {
    enum parity_kind kind;
    uint64_t step;             /* 0, 1, ... */
    char name[168];            /* the parameter's name; "loss"; "norm" */
    size_t element;            /* the element with the largest error relative to what is allowed there */
    double a, b;               /* the two values of that element */
    char side;                 /* 'a' or 'b' if one side differs from the update rule; else 0 */
    double expected;           /* value by the update rule */
    double scale;              /* the largest element, or the least scale of a gradient: parity_bounds.h */
    double gradient_rms;       /* for a gradient: the root mean square over all parameters' gradients */
    double relative;           /* |a - b| / scale, or the difference from the update rule / scale */
    double allowed;            /* the largest `relative` that is allowed */
    bool copies;               /* a and b are the numbers of elements in which some rank differs from rank 0 */
    double ulp;                /* the error in units of f32's last place at the scale */
    double mean, mean_allowed; /* for a gradient: the root mean square of the error / scale */
    double of_allowed;         /* the largest error / allowed error */
};

struct parity_result {
    bool equal;
    bool loaded;                                    /* the compared steps follow a checkpoint */
    struct parity_difference first;                 /* the first difference beyond the bounds, if !equal */
    struct parity_difference largest[PARITY_KINDS]; /* for each kind the difference with the largest of_allowed */
    uint64_t taken;                                 /* ReLU inputs within rounding of zero whose sign was taken from the reference */
    uint64_t steps, tensors;                        /* tensors: number of parameters */
    uint64_t states;                                /* parameters and optimizer states that were compared before the first step */
    uint64_t compared, same_bits;                   /* records that were compared, and how many of them have the same bits */
};

/* Compares the files of two sides. b_leads: b is the reference; else a is. LS_EFORMAT if a file is truncated; LS_EINVAL if the two sides
 * have different tensors. */
ls_status parity_compare(const char *a, const char *b, bool b_leads, const struct parity_bounds *bounds, struct parity_result *out);

/* The distance of two sides that ran freely, in one step: the relative difference of loss and norm, and the difference of gradients and
 * weights in the tensor that differs most (parity_drift.c defines its scale). */
struct parity_drift {
    double loss, norm, gradient, weight;
    char gradient_name[160], weight_name[160];
};
struct parity_rounding {
    char name[160];
    size_t parameter;
};
struct parity_drifts {
    uint64_t first, steps; /* step[0] is step `first` */
    struct parity_drift *step;
    struct parity_rounding *rounding; /* tensors that are left out because their gradients are only rounding */
    size_t roundings;
};
/* The caller closes *out, which is empty after a failure. */
ls_status parity_drift_measure(const char *a, const char *b, const struct parity_bounds *bounds, struct parity_drifts *out);
void parity_drift_close(struct parity_drifts *d);

const char *parity_kind_name(enum parity_kind k);                                /* "gradient" */
const char *parity_noun(const struct parity_difference *d);                      /* what differs: "gradient", "copies" */
const char *parity_direction(const struct parity_result *r, enum parity_kind k); /* "forward", "backward", "optimizer", "checkpoint" .. */

#endif
