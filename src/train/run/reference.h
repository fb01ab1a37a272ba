/* reference.h - the first steps of a run by parallel.method=allreduce, which any other method is compared with. */
#ifndef LS_TRAIN_RUN_REFERENCE_H
#define LS_TRAIN_RUN_REFERENCE_H

#include "train/run/trainer.h"

/* Runs parallel.reference_steps of them, or train.steps if these are fewer, from the weights and with the samples that the run begins with,
 * before the run itself is opened, so that the memory of only one of them is held at a time. t->reference: their cost; with method
 * allreduce nothing is run. Collective. */
ls_status reference_run(struct trainer *t, const struct task_model *model);
/* Sets t->reference and t->method to the costs of both, and on rank 0 writes them to RUN/method.json. Collective. */
ls_status reference_compare(struct trainer *t);

#endif
