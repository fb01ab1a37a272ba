/* doctor.h - where the ranks of a run stand, or how they ended, read from what they leave in RUN/calls (comm/calls.h).
 *
 * A call of a group is open on a rank when it has begun there and is not done. A finding is a call that is open somewhere and
 * that some rank of its group has not come to, or in whose place some rank has called something else; of each group the first
 * such call. Findings whose blamed ranks wait for nobody come first: they are the causes, the others follow from them.
 */
#ifndef LS_TRAIN_DOCTOR_H
#define LS_TRAIN_DOCTOR_H

#include <stdbool.h>
#include "base/text.h"
#include "comm/calls.h"

/* UNKNOWN: its process was started on another machine, or before this one was restarted. */
enum life { LIFE_NONE, LIFE_ALIVE, LIFE_STOPPED, LIFE_DEAD, LIFE_UNKNOWN };  /* NONE: there is no (readable) ring */

struct patient {
    enum life          life;
    struct calls_read *calls;      /* NULL: none */
    char               why[160];   /* why there is none; "" */
};

struct finding {
    struct call_record call;       /* as the first rank that came has it */
    double since;                  /* unix time when it came */
    bool  *waits, *missing, *differs;  /* [ranks] */
    bool   cause;                  /* no missing rank waits in another finding's call */
};

struct doctor {
    int             ranks;
    struct patient *patient;       /* [ranks] */
    double          now;           /* unix time of the reading */
    struct finding *finding;       /* [n] */
    int             n;
    bool            launched;      /* the launcher wrote how the ranks ended: */
    int             code;          /* its exit code, */
    char            line[CALLS_WHY];  /* and its line */
};

/* run: the folder of a run, which has calls/rank_NNNN, with one rank too. LS_EINVAL when it has none. */
ls_status   doctor_open(const char *run, struct doctor *out);
void        doctor_close(struct doctor *d);
/* "alive", "stopped", "finished", "failed", "dead" (without a word), "unknown", "no calls" */
const char *doctor_state(const struct doctor *d, int rank);
/* "finished at step 200 of 200, exit 0", "failed at step 12: rank 2 was killed by signal 9 (Killed);
 * exit 3". False: the run is not over. */
bool        doctor_outcome(const struct doctor *d, struct text *out);
/* "training for 3.2 s, step 41 of 200, 1234 tokens/s, last step 0.3 s ago" of a rank that lives; of one that ended, "step 41 of 200". */
void        doctor_progress(const struct doctor *d, int rank, struct text *out);
const char *doctor_life(enum life l);  /* "alive" */
bool        doctor_lives(const struct doctor *d, int rank);  /* alive or stopped */
/* "rank 2 never came to all_reduce #41 of world (...); ranks 0, 1, 3 wait in it since 12.3 s; rank 2 is dead (...)". */
void        doctor_say(const struct doctor *d, const struct finding *f, struct text *out);
/* The collective call `sequence` of a group as rank has it; NULL: it is none of those kept. */
const struct call_record *doctor_record(const struct doctor *d, int rank, uint64_t group, uint64_t sequence);
/* When in unix time, of a record of rank's. */
double      doctor_time(const struct doctor *d, int rank, double monotonic);

#endif
