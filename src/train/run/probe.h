/* probe.h - checks before a run starts that it will be able to write its files. */
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
