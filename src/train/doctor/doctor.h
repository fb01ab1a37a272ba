/* doctor.h - what the ranks of a run are doing or how they ended, read from RUN/calls (comm/failure/flight_recorder.h).
 *
 * A call is open on a rank if it has begun there and has not ended. A finding is a call that is open on some rank although another rank of
 * its group has not made it, has made a different call in its place, or was stopped or killed in it. Each group has at most one finding:
 * its first such call. Findings whose ranks at fault wait in no other call come first: they are the causes of the others.
 */
#ifndef LS_TRAIN_DOCTOR_DOCTOR_H
#define LS_TRAIN_DOCTOR_DOCTOR_H

#include <stdbool.h>
#include "base/text.h"
#include "comm/failure/flight_recorder.h"
#include "train/launch/launch.h"

/* NONE: the rank has no readable flight recorder and no process that our launcher started. STOPPED: by a signal or a debugger. DEAD: its
 * process has ended, or its number belongs to another process now. UNKNOWN: its process was started on another machine, or before this
 * machine was restarted. */
enum life { LIFE_NONE, LIFE_RUNNING, LIFE_STOPPED, LIFE_DEAD, LIFE_UNKNOWN };

struct rank_status {
    enum life life;
    int64_t pid;                 /* 0: unknown */
    struct recorder_read *calls; /* its flight recorder; NULL: it has none, or none yet */
    char why[160];               /* why its flight recorder cannot be read; "" */
    char end[LAUNCH_END];        /* how it ended, as seen by the launcher: "was killed by signal 9 (Killed)"; "": unknown */
};

struct finding {
    struct call_record call;         /* as recorded by a rank that has it open */
    double since, until;             /* unix time when the first rank made the call, and when a rank in it was last known to be alive */
    bool *waits, *missing, *differs; /* [ranks] */
    bool *held;                      /* [ranks] true if the rank was stopped or died in the call */
    bool killed_together;            /* all these ranks were killed at the same time; `waits` are those that waited until then */
    bool cause;                      /* no rank at fault waits in the call of another finding */
};

struct doctor {
    int ranks;
    struct rank_status *status; /* [ranks] */
    double now;                 /* unix time when the files were read */
    struct finding *finding;    /* [n] */
    int n;
    int64_t launcher; /* process number of the launcher; 0: the run was not started by `lockstep train` */
    enum life launcher_life;
    bool launched;           /* the launcher recorded how the ranks ended: `code` and `line` are set */
    int code;                /* exit code of the launcher */
    char line[RECORDER_WHY]; /* error message of the launcher */
};

/* run: a run folder, which contains calls/rank_NNNN or in which our launcher is starting ranks. LS_EINVAL if no rank is found. */
ls_status doctor_open(const char *run, struct doctor *out);
void doctor_close(struct doctor *d);
/* "starting" (it has no flight recorder yet), "running", "stopped", "finished", "failed", "dead" (it did not record how it ended),
 * "unreadable", "unknown", "never started" */
const char *doctor_state(const struct doctor *d, int rank);
/* Writes "finished at step 200 of 200, exit 0" or "failed in step 13: rank 2 was killed by signal 9 (Killed); exit 3". Returns false if
 * the run has not ended. */
bool doctor_outcome(const struct doctor *d, struct text *out);
/* Writes "training for 3.2 s, step 41 of 200, 1234 tokens/s, last step 0.3 s ago" for a live rank, "step 41 of 200" for one that ended. */
void doctor_progress(const struct doctor *d, int rank, struct text *out);
bool doctor_lives(const struct doctor *d, int rank);      /* it is running or stopped */
bool doctor_ended(const struct doctor *d, int rank);      /* it recorded how it ended */
bool doctor_unreported(const struct doctor *d, int rank); /* it is dead and did not record how it ended */
/* Writes "ranks 1, 2 are stopped by a signal (SIGSTOP, SIGTSTP) or a debugger; to continue: kill -CONT 4711 4712". Returns false if no
 * rank is stopped. */
bool doctor_stopped(const struct doctor *d, struct text *out);
/* Writes "rank 2 never called all_reduce #41 of world (...); ranks 0, 1, 3 have waited in it for 12.3 s; rank 2 is dead (...)". */
void doctor_say(const struct doctor *d, const struct finding *f, struct text *out);
/* The record of collective call `sequence` of a group on a rank; NULL: it is not among the recorded calls. */
const struct call_record *doctor_record(const struct doctor *d, int rank, uint64_t group, uint64_t sequence);
/* Converts a time in a rank's flight recorder to unix time. */
double doctor_time(const struct doctor *d, int rank, double monotonic);

#endif
