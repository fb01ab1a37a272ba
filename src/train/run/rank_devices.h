/* rank_devices.h - compares the devices of a run's ranks, and chooses what runs collectives between them. */
#ifndef LS_TRAIN_RUN_RANK_DEVICES_H
#define LS_TRAIN_RUN_RANK_DEVICES_H

#include "train/run/ranks.h"

/* Checks that all ranks compute on the same kind of device, and no two on the same GPU unless launch.share_gpus allows it. Sets r->native,
 * collectives and collectives_why: the device's first table that all ranks can use, of those that launch.comm allows. LS_EINVAL: the
 * devices differ, or what launch.comm names cannot be used. Collective over r->comm. */
ls_status rank_devices_compare(const struct config *c, const struct world *w, struct ranks *r);

#endif
