/* flight_recorder.h - what each rank does and has called lately: for signatures, verdicts, and a reader after a kill.
 *
 * A ring of the last CALLS_KEPT calls of one process, one file a rank (RUN/calls/rank_NNNN), mapped shared: it survives
 * SIGKILL, and `lockstep doctor RUN` reads it. Without a file the same ring is in plain memory. File layout, little-endian:
 *     0   "LSCALLS2"   8  i32 rank   12 i32 ranks   16 i64 pid   24 f64 unix time of monotonic 0   32 u64 calls so far
 *     40  i64 pid of our launcher; 0: another one, or none
 *     64  struct recorder_status, 768 bytes
 *     832 CALLS_KEPT records of 128 bytes; call k stands in slot k mod CALLS_KEPT
 */
#ifndef LS_COMM_FAILURE_FLIGHT_RECORDER_H
#define LS_COMM_FAILURE_FLIGHT_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "lockstep/comm.h"

enum { CALLS_KEPT = 256 };

/* What all ranks of a group must agree on, but for the rank's own peer (send and receive have none of this check but type and
 * count). sequence: number of the call in this comm, from 1. */
struct signature {
    uint64_t sequence, count, group; /* count: elements of the call, the sum of the _v form; group: id of the comm */
    uint64_t counts;                 /* hash of the counts of a _v call; 0 */
    int32_t op, type, redop, root;   /* ls_collective, ls_dtype, ls_redop or -1, root or peer or -1 */
};

/* Whether two ranks mean the same call. A send meets a receive of the same number of its pair, type and count; else every
 * field is compared. */
bool signature_agrees(const struct signature *a, const struct signature *b);

enum call_state { CALL_NONE, CALL_QUEUED, CALL_RUNNING, CALL_DONE, CALL_FAILED };

struct call_record { /* 128 bytes */
    struct signature signature;
    double queued, started, ended; /* monotonic seconds; 0: not yet */
    int32_t state;                 /* enum call_state */
    uint32_t step;                 /* steps of the list done */
    char name[32];                 /* of the group: "world", "shard" */
    double seen;                   /* when its rank last saw that it stood still; 0: never */
    char pad[8];
};

enum { CALLS_WHY = 512 };

/* What the process of a rank is doing, and how it ended. Times are monotonic seconds; 0: not yet. Strings end in NUL. */
struct recorder_status { /* 768 bytes */
    char host[64];
    char doing[32], unit[16];             /* "training"; "tokens" */
    double opened, since, stepped, ended; /* the ring; doing; the last step; the process wrote its end */
    uint64_t step, steps;                 /* done; of all */
    double rate;                          /* units a second in the last step, of all ranks */
    int32_t code, pad;                    /* exit code */
    char why[CALLS_WHY];                  /* "stopped by SIGTERM", or the line of a failure; "": it ran to its end */
    uint64_t skipped;                     /* steps without an update, of those that this process made */
    char more[72];
};

struct calls;                                                                   /* an open ring */
ls_status recorder_open(const char *path, int rank, int n, struct calls **out); /* path NULL: in memory */
void recorder_close(struct calls **c);
/* Every call of this process goes into the one ring set here (NULL: none). The comms of a process share it. */
void recorder_use(struct calls *c);
struct calls *recorder_used(void);
void recorder_launched_by(struct calls *c, int64_t pid);
uint64_t recorder_begin(const struct signature *s, const char *name); /* returns the call's number */
void recorder_mark(uint64_t call, enum call_state state, uint32_t step);
/* The call stands still, and its rank lives: a reader learns how long a rank waited that was killed. */
void recorder_seen(uint64_t call);
/* Of the ring in use; without one, no-ops. */
void recorder_doing(const char *what);
void recorder_stepped(uint64_t step, uint64_t steps, double rate, const char *unit);
void recorder_skipped(uint64_t steps);
void recorder_ended(int code, const char *why);

/* Reading a file that somebody else wrote, alive or dead. Trusts nothing. */
struct recorder_read {
    int rank, ranks;
    int64_t pid;
    double epoch;
    uint64_t calls;
    int64_t launcher;
    struct recorder_status status;
    struct call_record last[CALLS_KEPT];
    int n;
};
ls_status recorder_read(const char *path, struct recorder_read *out); /* last[n]: oldest first */

/* "all_reduce #12 of world (f32, 1024, sum)" into out[bytes]; returns it. */
char *signature_text(const struct signature *s, const char *name, char *out, size_t bytes);
/* "all_reduce (f32, 1024, sum)" into out[bytes]; returns it. */
char *signature_call(const struct signature *s, char *out, size_t bytes);

#endif
