/* probe.h - whether a run will be able to write what it is going to, tried before it starts. */
#ifndef LS_TRAIN_RUN_PROBE_H
#define LS_TRAIN_RUN_PROBE_H

#include <stddef.h>
#include "lockstep/status.h"

/* Creates the folder where it is missing, writes a file in it, and removes both again: nothing stays. name: the option that it
 * comes from, for the message. LS_EIO. */
ls_status probe_folder(const char *name, const char *path);

/* LS_EIO when the file system of `path`, or of the nearest folder above it that exists, has less than `bytes` free; what: what they are. */
ls_status probe_space(const char *name, const char *path, size_t bytes, const char *what);

#endif
