/* trainer_probe.h - checks at the start of a run, before anything slow, that its folders can be written and have space for its checkpoints.
 */
#ifndef LS_TRAIN_RUN_TRAINER_PROBE_H
#define LS_TRAIN_RUN_TRAINER_PROBE_H

#include "train/run/trainer.h"

ls_status trainer_probe_folders(const struct trainer *t);
ls_status trainer_probe_space(const struct trainer *t);

#endif
