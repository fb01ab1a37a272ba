/* temporary.h - a folder that is removed when the command that made it ends, however it ends.
 *
 * A guard process waits at the reading end of a pipe; this process and all processes that it starts have the writing end. When the last of
 * them has ended, normally or by any signal, the pipe closes and the guard removes the folder. The guard has its own session, so that a
 * terminal's signals to a process group do not reach it, and it is not a child of this process.
 */
#ifndef LS_CLI_TEMPORARY_H
#define LS_CLI_TEMPORARY_H

#include "lockstep/status.h"

struct temporary {
    char *path;
    int pipe;
};

/* Creates $TMPDIR/NAME-XXXXXX, or /tmp/NAME-XXXXXX if TMPDIR is not set. */
ls_status temporary_open(const char *name, struct temporary *out);
/* Removes the folder, or fails with LS_EIO; a no-op on a zeroed struct. */
ls_status temporary_close(struct temporary *t);

#endif
