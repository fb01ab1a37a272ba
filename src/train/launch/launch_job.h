/* launch_job.h - the state of a launch: its ranks, and which failure counts. Only for launch*.c. */
#ifndef LS_TRAIN_LAUNCH_LAUNCH_JOB_H
#define LS_TRAIN_LAUNCH_LAUNCH_JOB_H

#include <poll.h>
#include <signal.h>
#include "comm/transports/shm/segment.h"
#include "train/launch/launch.h"
#include "train/launch/launch_lines.h"
#include "train/launch/launch_stops.h"
#include "train/launch/launch_orphans.h"

enum { EXIT_PEER = 3, REPORT_ROOM = LINE_MOST + 256 };

struct child {
    int code, signal; /* how it ended */
    bool by_us;       /* killed because of another */
    struct rank_output output;
};

struct job {
    const struct launch *launch;
    struct segment *segment;
    struct child *child;
    pid_t *pid;            /* [n]; 0: not there (any more) */
    struct stop *stop;     /* [n] */
    struct pollfd *polled; /* signals, console, then two a rank */
    int n, started, left;  /* left: alive */
    int failed;            /* the rank whose failure counts; -1 */
    int overdue;           /* the rank that was stopped for too long; -1 */
    double deadline;       /* of the grace; 0: no failure yet */
    int leave;             /* the signal that asked to leave and was passed on */
    bool killed, forced;   /* all ranks were killed; because of a second signal */
    int signals;           /* signalfd */
    sigset_t mask_before;
    struct sigaction pipe_before, child_before;
    struct orphans orphans;
    struct console console;
};

char *child_ended(const struct child *c, char out[96]); /* "was killed by signal 9 (Killed)"; returns out */
bool child_failed(const struct child *c);
bool child_blames(const struct child *c); /* its exit code blames another rank */

/* All ranks have ended: the exit code, and where it is not 0 this thread's message. */
int report_settle(struct job *j);
void report_ends(const struct job *j); /* into launch.ends */

#endif
