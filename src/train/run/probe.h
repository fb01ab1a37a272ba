/* probe.h - checks before a run starts that it will be able to write its files. */
#ifndef LS_TRAIN_RUN_PROBE_H
#define LS_TRAIN_RUN_PROBE_H

#include <stddef.h>
#include "lockstep/status.h"

/* Creates the folder if it does not exist, writes a file in it, and removes what it created. name: the option that names the folder, for
 * the message. LS_EIO if the folder cannot be written. */
ls_status probe_folder(const char *name, const char *path);

/* LS_EIO if the file system of `path`, or of its nearest existing parent, has less than `bytes` free. what: what needs them ("a
 * checkpoint"), for the message. */
ls_status probe_space(const char *name, const char *path, size_t bytes, const char *what);

#endif
