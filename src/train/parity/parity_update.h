/* parity_update.h - the expected results of an update: the optimizers' rules (kernels/cpu/ref/optim.c) in double, and how far single
 * precision may deviate from them.
 *
 * Each allowed error comes from a running error analysis of the rule (Higham, Accuracy and Stability of Numerical Algorithms, 2nd
 * ed., 3.3): every operation adds an error of at most u times its result, u = 2^-24, and propagates the errors of its operands. It is a
 * bound, not an estimate.
 */
#ifndef LS_TRAIN_PARITY_PARITY_UPDATE_H
#define LS_TRAIN_PARITY_PARITY_UPDATE_H

#include "train/parity/parity_file.h"
#include "lockstep/optim.h"

/* One parameter of one side in one step. NULL: the optimizer has no such state. */
struct update_records {
    const unsigned char *gradient, *weight, *m, *v;
};

struct update_rule {
    const ls_optimizer *optimizer;
    bool moments;                /* the optimizer has m and v */
    double lr, c1, c2;           /* c1, c2: bias corrections of step t, as ls_optimizer_set() computes them */
    double factor, factor_error; /* the clip factor */
    double weight_unit;          /* unit roundoff of the type of the weight */
    /* the parameter: */
    struct update_records r;
    size_t elements;
    bool matrix;
    double sign_rate;
    double ratio, ratio_error; /* trust ratio of LAMB and LARS, set by update_rule_begin() */
};

struct update_expected {
    double value, allowed;
};

enum update_result { UPDATE_WEIGHT, UPDATE_M, UPDATE_V, UPDATE_RESULTS };

/* Sets the rule of update number t (1, 2, ..). norm: the one by which it is clipped. */
void update_rule_step(struct update_rule *u, const ls_optimizer *o, double lr, uint64_t t, double norm);
bool update_rule_reads_v(const struct update_rule *u);
/* Must be called after the fields of the parameter are set. */
void update_rule_begin(struct update_rule *u);
/* The expected values of element i of the new weight, "m" and "v", except those of states that the records lack. */
void update_rule_expect(const struct update_rule *u, size_t i, struct update_expected out[UPDATE_RESULTS]);

#endif
