/* launch_job.h - the state of a launch: its ranks, and which failure is reported. Only launch*.c include it. */
#ifndef LS_TRAIN_LAUNCH_LAUNCH_JOB_H
#define LS_TRAIN_LAUNCH_LAUNCH_JOB_H

#include <poll.h>
#include <signal.h>
#include "comm/transports/shm/region.h"
#include "train/launch/launch.h"
#include "train/launch/launch_lines.h"
#include "train/launch/launch_stops.h"
#include "train/launch/launch_orphans.h"

enum { EXIT_PEER = 3, REPORT_ROOM = LINE_MOST + 256 };

struct child {
    int code, signal; /* how it ended */
    bool by_us;       /* the launcher killed it */
    struct rank_output output;
};

struct job {
    const struct launch *launch;
    struct region *region;
    struct child *child;
    pid_t *pid;            /* [n]; 0: not started or already reaped */
    struct stop *stop;     /* [n] */
    struct pollfd *polled; /* signals, console, then two per rank */
    int n, started, left;  /* left: started and not yet reaped */
    int failed;            /* the rank whose failure is reported; -1: none */
    int overdue;           /* the rank that was stopped for too long; -1: none */
    double deadline;       /* when the grace period ends; 0: no failure yet */
    int leave;             /* the first SIGINT, SIGTERM or SIGHUP, which was forwarded; 0: none */
    bool killed, forced;   /* all ranks were killed; forced: by a second signal */
    int signals;           /* signalfd */
    sigset_t mask_before;
    struct sigaction pipe_before, child_before;
    struct orphans orphans;
    struct console console;
};

char *child_ended(const struct child *c, char out[96]); /* "was killed by signal 9 (Killed)"; returns out */
bool child_failed(const struct child *c);
bool child_blames(const struct child *c); /* its exit code says that another rank failed */

/* Called after all ranks have ended: returns the exit code; if it is not 0, sets ls_errmsg() to the report. */
int report_settle(struct job *j);
void report_ends(const struct job *j); /* fills launch.ends */

#endif
