/* trainer_probe.h - what a run tries before anything that takes long: its folders can be written, its checkpoints have room. */
#ifndef LS_TRAIN_RUN_TRAINER_PROBE_H
#define LS_TRAIN_RUN_TRAINER_PROBE_H

#include "train/run/trainer.h"

ls_status trainer_probe_folders(const struct trainer *t);
ls_status trainer_probe_space(const struct trainer *t);

#endif
