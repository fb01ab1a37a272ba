/* launch_child.h - one rank of a launch: a process of this program with its place in the world in its environment.
 *
 *     RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT    as torchrun sets them
 *     LOCKSTEP_COMM=shm:fd:N the comm of all ranks
 * The rest of the environment is the launcher's. A rank leads a process group of its own, so what a terminal sends to its
 * foreground comes once, through the launcher; it ends when the launcher does. It reads /dev/null, but for rank 0, which reads
 * what the launcher would unless that is a terminal (which only its foreground may read). SIGUSR1 is ignored until the rank
 * handles it; other signals are as the launcher found them.
 */
#ifndef LS_TRAIN_LAUNCH_LAUNCH_CHILD_H
#define LS_TRAIN_LAUNCH_LAUNCH_CHILD_H

#include <sched.h>
#include <signal.h>
#include <sys/types.h>
#include "lockstep/status.h"

struct child_args {
    int rank, ranks, segment_fd;
    char *const *argv;     /* NULL at the end */
    const cpu_set_t *bind; /* NULL: not bound */
    const sigset_t *mask;  /* of blocked signals in the child */
    struct sigaction pipe; /* SIGPIPE in the child */
};

/* *out: reading end of its standard output, -1 for rank 0; *err: of its standard error. Both non-blocking, the caller's. */
ls_status child_start(const struct child_args *s, pid_t *pid, int *out, int *err);

#endif
