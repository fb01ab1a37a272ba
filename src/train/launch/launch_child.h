/* launch_child.h - one rank of a launch: a process of this program with these environment variables:
 *
 *     RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT    as torchrun sets them
 *     LOCKSTEP_COMM=shm:fd:N    where the ranks open the world comm
 *     LOCKSTEP_THREADS=N        the rank's share of the cores: its number of threads, unless launch.threads sets it
 * It inherits the rest of the launcher's environment. A rank leads a process group of its own, so that it receives a signal from the
 * terminal only once, through the launcher. It is killed when the launcher dies. Its standard input is /dev/null; rank 0 inherits the
 * launcher's unless that is a terminal, which only its foreground group may read. SIGUSR1 is ignored until the rank installs a handler; the
 * dispositions of other signals are those that the launcher started with.
 */
#ifndef LS_TRAIN_LAUNCH_LAUNCH_CHILD_H
#define LS_TRAIN_LAUNCH_LAUNCH_CHILD_H

#include <sched.h>
#include <signal.h>
#include <sys/types.h>
#include "lockstep/status.h"

struct child_args {
    int rank, ranks, threads, region_fd;
    char *const *argv;     /* terminated by NULL */
    const cpu_set_t *bind; /* NULL: not bound */
    const sigset_t *mask;  /* blocked signals in the child */
    struct sigaction pipe; /* disposition of SIGPIPE in the child */
};

/* *out, *err: non-blocking read ends of the pipes from its standard output (-1 for rank 0) and standard error. The caller closes them. */
ls_status child_start(const struct child_args *s, pid_t *pid, int *out, int *err);

#endif
