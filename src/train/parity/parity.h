/* parity.h - compares the results of two layouts tensor by tensor.
 *
 * One side, the reference, runs some steps on random tokens (random_tokens.h: the same global batches whatever the layout) and writes their
 * results (parity_file.h). The other side follows it: before each step except its first it takes the reference's parameters and optimizer
 * state. So every step is compared separately: one gradient computed from equal weights, one update of equal moments.
 *
 *   start      both sides' state before the first step: the same bits, initialised or loaded from the checkpoint
 *   loss       to a bound from the lengths of the sums (parity_bounds.h)
 *   gradient   likewise: its root mean square error, and its largest
 *   norm       of each side, to that of its own gradients
 *   weight     of each side, to what the update rule makes of the common state and its own gradient, in double (parity_update.h)
 *   state      m and v, likewise
 *   copies     each rank holds the same bits of what is replicated
 */
#ifndef LS_TRAIN_PARITY_PARITY_H
#define LS_TRAIN_PARITY_PARITY_H

#include "train/parity/parity_bounds.h"
#include "train/run/ranks.h"

struct parity_run {
    uint64_t steps;
    const char *path;   /* of the file */
    const char *save;   /* root to save the state after step 0 in; NULL: it isn't saved */
    const char *load;   /* root whose newest checkpoint is resumed; NULL: from the start */
    const char *follow; /* the reference's file; NULL: no state is taken */
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
    char name[168];            /* of the parameter; "loss", "norm" */
    size_t element;            /* where it is largest, measured by what is allowed there */
    double a, b;               /* there */
    char side;                 /* 'a' or 'b' where one side is held against the rule; else 0 */
    double expected;           /* by the rule */
    double scale;              /* the largest element, or the least that counts: parity_bounds.h */
    double whole;              /* of a gradient: the root mean square of the whole gradient */
    double relative;           /* |a - b|, or that to the rule, / scale */
    double allowed;            /* the most that may be */
    bool copies;               /* a and b: how many elements some rank holds otherwise than rank 0 */
    double ulp;                /* the same in units of f32's last place at the scale */
    double mean, mean_allowed; /* of a gradient: the root mean square of the error / scale */
    double over;               /* the largest of error / allowed */
};

struct parity_result {
    bool equal;
    bool loaded;                                    /* the first step follows a checkpoint */
    struct parity_difference first;                 /* beyond the bounds; !equal */
    struct parity_difference largest[PARITY_KINDS]; /* measured by what is allowed */
    uint64_t taken;                                 /* ReLU inputs within rounding of zero that were set to the leader's side of it */
    uint64_t steps, tensors;                        /* tensors: names */
    uint64_t states;                                /* compared before the first step */
    uint64_t compared, same_bits;                   /* records; same_bits of them */
};

/* b followed a; b_leads: a followed b, whose states are the common ones. LS_EFORMAT when a file is cut, LS_EINVAL when the two hold
 * different tensors. */
ls_status parity_compare(const char *a, const char *b, bool b_leads, const struct parity_bounds *bounds, struct parity_result *out);

/* How far apart a step finds two sides that ran freely: the loss and norm relatively, gradients and weights in the tensor that is
 * furthest apart (parity_drift.c says relative to what). */
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
    struct parity_rounding *rounding; /* tensors left out: their gradients are zero but for rounding */
    size_t roundings;
};
/* The caller closes *out, which is empty on failure. */
ls_status parity_drift_measure(const char *a, const char *b, const struct parity_bounds *bounds, struct parity_drifts *out);
void parity_drift_close(struct parity_drifts *d);

const char *parity_kind_name(enum parity_kind k);                                /* "gradient" */
const char *parity_noun(const struct parity_difference *d);                      /* what of its name differs: "gradient", "copies" */
const char *parity_direction(const struct parity_result *r, enum parity_kind k); /* "forward", "backward", "optimizer", "checkpoint" .. */

#endif
