/* parity_update.h - what an update must have made of a gradient: the optimizers' rules (kernels/cpu/ref/optim.c) in double, and how far
 * single precision may be from them.
 *
 * Each allowed error is a running error analysis of the rule (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.3): every
 * operation adds at most u times its result, u = 2^-24, and what an operand was off by goes through. It is a bound, not an estimate.
 */
#ifndef LS_TRAIN_PARITY_PARITY_UPDATE_H
#define LS_TRAIN_PARITY_PARITY_UPDATE_H

#include "train/parity/parity_file.h"
#include "lockstep/optim.h"

/* One parameter of one side in one step. States that there are not: NULL. */
struct update_records {
    const unsigned char *gradient, *weight, *m, *v;
};

struct update_rule {
    const ls_optimizer *optimizer;
    double lr, c1, c2;           /* c1, c2: of step t, as ls_optimizer_set() gives them */
    double factor, factor_error; /* of clipping */
    double weight_unit;          /* unit roundoff of the type that keeps the weight */
    /* of the parameter: */
    struct update_records r;
    size_t elements;
    bool matrix;
    double sign_rate;
    double ratio, ratio_error; /* of LAMB and LARS; update_rule_begin() sets them */
};

struct update_expected {
    double value, allowed;
};

/* The rule of update number t (1, 2, ..) with a clip factor for a gradient of that norm. */
void update_rule_step(struct update_rule *u, const ls_optimizer *o, double lr, uint64_t t, double norm);
bool update_rule_reads_v(const struct update_rule *u);
/* To be called when the parameter is set. */
void update_rule_begin(struct update_rule *u);
/* What element i of the new weight, "m" or "v" must be. */
struct update_expected update_rule_weight(const struct update_rule *u, size_t i);
struct update_expected update_rule_m(const struct update_rule *u, size_t i);
struct update_expected update_rule_v(const struct update_rule *u, size_t i);

#endif
