/* measure.h - measures the kernels of this machine for a machine file: runs training steps of small models and adds up the seconds of each
 * op by the size of its operands. */
#ifndef LS_TRAIN_PLAN_MEASURE_H
#define LS_TRAIN_PLAN_MEASURE_H

#include "plan/cluster.h"
#include "train/run/step.h"

struct measured;

ls_status measured_new(struct measured **out);
void measured_free(struct measured **m);
/* Runs bench.warmup untimed and bench.steps timed steps of the model on this rank alone, and adds the seconds of the timed steps'
 * instructions. */
ls_status measured_add(struct measured *m, const struct config *c);
/* Fills c->curve: for each op at most CURVE_POINTS sizes, with neighboring sizes merged. */
ls_status measured_put(const struct measured *m, struct cluster *c);

#endif
