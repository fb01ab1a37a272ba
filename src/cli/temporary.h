/* temporary.h - a folder that goes with the command that made it, however that ends.
 *
 * A process that only waits holds the reading end of a pipe whose writing end this process and all that it starts have. When the last of
 * them is gone - at the end, by a signal, by SIGKILL - the pipe closes and the folder is removed. It leads a session of its own, so
 * that what a terminal sends to a group does not reach it, and is nobody's child here.
 */
#ifndef LS_CLI_TEMPORARY_H
#define LS_CLI_TEMPORARY_H

#include "lockstep/status.h"

struct temporary {
    char *path;
    int pipe;
};

/* $TMPDIR/NAME-XXXXXX, or in /tmp. */
ls_status temporary_open(const char *name, struct temporary *out);
/* Removes the folder, or fails with LS_EIO; of a zeroed struct a no-op. */
ls_status temporary_close(struct temporary *t);

#endif
