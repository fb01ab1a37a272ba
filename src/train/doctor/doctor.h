/* doctor.h - the state of a run's ranks, or how they ended, read from RUN/calls (comm/failure/flight_recorder.h).
 *
 * A call of a group is open on a rank if it has begun there and has not ended. A finding is a call that is open somewhere and that some
 * rank of its group has not entered, or in whose place some rank has called something else; only the first such call of each group. A rank
 * that entered and was stopped or killed in it blocks the others in the same way. Findings whose blamed ranks wait for no other come first:
 * they are the causes of the others.
 */
#ifndef LS_TRAIN_DOCTOR_DOCTOR_H
#define LS_TRAIN_DOCTOR_DOCTOR_H

#include <stdbool.h>
#include "base/text.h"
#include "comm/failure/flight_recorder.h"
#include "train/launch/launch.h"

/* NONE: it has no readable ring, and no process that our launcher started. STOPPED: by a signal or a debugger. DEAD: its process is gone,
 * or another has its number. UNKNOWN: its process was started on another machine, or before this one was restarted. */
enum life { LIFE_NONE, LIFE_RUNNING, LIFE_STOPPED, LIFE_DEAD, LIFE_UNKNOWN };

struct rank_status {
    enum life life;
    int64_t pid;                 /* 0: not known */
    struct recorder_read *calls; /* NULL: none, or none yet */
    char why[160];               /* why there is none; "" */
    char end[LAUNCH_END];        /* how the launcher saw it end: "was killed by signal 9 (Killed)"; "": unknown */
};

struct finding {
    struct call_record call;         /* as recorded by the first rank that entered it */
    double since, until;             /* unix time when that rank entered, and when a rank in it was last seen alive */
    bool *waits, *missing, *differs; /* [ranks] */
    bool *held;                      /* [ranks] that entered it and were stopped in it, or died in it */
    bool cut;                        /* all of these ranks were killed at once: waits are those that did until then */
    bool cause;                      /* no missing rank waits in another finding's call */
};

struct doctor {
    int ranks;
    struct rank_status *status; /* [ranks] */
    double now;                 /* unix time of the reading */
    struct finding *finding;    /* [n] */
    int n;
    int64_t launcher; /* process number of our launcher; 0: another one, or none */
    enum life launcher_life;
    bool launched;        /* the launcher wrote how the ranks ended: */
    int code;             /* its exit code, */
    char line[CALLS_WHY]; /* and its line */
};

/* run: the folder of a run, which has calls/rank_NNNN, with one rank too, or one in which our launcher starts ranks now. LS_EINVAL when it
 * has no ranks. */
ls_status doctor_open(const char *run, struct doctor *out);
void doctor_close(struct doctor *d);
/* "running", "starting" (it has no ring yet), "stopped", "finished", "failed", "dead" (without a word), "unknown", "never started" */
const char *doctor_state(const struct doctor *d, int rank);
/* "finished at step 200 of 200, exit 0", "failed in step 13: rank 2 was killed by signal 9 (Killed);
 * exit 3". False: the run is not over. */
bool doctor_outcome(const struct doctor *d, struct text *out);
/* "training for 3.2 s, step 41 of 200, 1234 tokens/s, last step 0.3 s ago" of a rank that lives; of one that ended, "step 41 of 200". */
void doctor_progress(const struct doctor *d, int rank, struct text *out);
bool doctor_lives(const struct doctor *d, int rank);  /* running, or stopped */
bool doctor_ended(const struct doctor *d, int rank);  /* it recorded how */
bool doctor_silent(const struct doctor *d, int rank); /* dead, and did not record how */
/* "ranks 1, 2 are stopped, by a signal (SIGSTOP, SIGTSTP) or a debugger; to continue: kill -CONT 4711 4712". False: none is. */
bool doctor_stopped(const struct doctor *d, struct text *out);
/* "rank 2 never came to all_reduce #41 of world (...); ranks 0, 1, 3 wait in it since 12.3 s; rank 2 is dead (...)". */
void doctor_say(const struct doctor *d, const struct finding *f, struct text *out);
/* The collective call `sequence` of a group as rank has it; NULL: it is none of those kept. */
const struct call_record *doctor_record(const struct doctor *d, int rank, uint64_t group, uint64_t sequence);
/* When in unix time, of a record of rank's. */
double doctor_time(const struct doctor *d, int rank, double monotonic);

#endif
