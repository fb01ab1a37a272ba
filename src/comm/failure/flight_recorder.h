/* flight_recorder.h - records what each rank does and its recent calls: for signatures, verdicts, and readers after a kill.
 *
 * A ring of the last CALLS_KEPT calls of one process, one file per rank (RUN/calls/rank_NNNN), mapped shared: it survives SIGKILL, and
 * `lockstep doctor RUN` reads it. Without a file the same ring is in plain memory. File layout, little-endian:
 *     0   "LSCALLS2"   8  i32 rank   12 i32 ranks   16 i64 pid   24 f64 unix time of monotonic 0   32 u64 calls so far
 *     40  i64 pid of our launcher; 0: another one, or none
 *     64  struct recorder_status, 768 bytes
 *     832 CALLS_KEPT records of 128 bytes; call k is in record k mod CALLS_KEPT
 */
#ifndef LS_COMM_FAILURE_FLIGHT_RECORDER_H
#define LS_COMM_FAILURE_FLIGHT_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "lockstep/comm.h"

enum { CALLS_KEPT = 256 };

/* The properties of a call that must be the same on all ranks of a group, except the peer (for send and receive only type and count are
 * compared). sequence: number of the call in this comm, from 1. */
struct signature {
    uint64_t sequence, count, group; /* count: elements of the call, the sum of the _v form; group: id of the comm */
    uint64_t counts;                 /* hash of the counts of a _v call; else 0 */
    int32_t op, type, redop, root;   /* ls_collective, ls_dtype, ls_redop or -1, root or peer or -1 */
};

/* True if two signatures are of the same call. A send matches a receive with the same number in its pair, type and count; otherwise every
 * field is compared. */
bool signature_agrees(const struct signature *a, const struct signature *b);

enum call_state { CALL_NONE, CALL_QUEUED, CALL_RUNNING, CALL_DONE, CALL_FAILED };

struct call_record { /* 128 bytes */
    struct signature signature;
    double queued, started, ended; /* monotonic seconds; 0: not yet */
    int32_t state;                 /* enum call_state */
    uint32_t step;                 /* finished steps of the list */
    char name[32];                 /* of the group: "world", "shard" */
    double seen;                   /* when its rank last saw it stalled; 0: never */
    char pad[8];
};

enum { CALLS_WHY = 512 };

/* What the process of a rank is doing, and how it ended. Times are monotonic seconds; 0: not yet. Strings end in NUL. */
struct recorder_status { /* 768 bytes */
    char host[64];
    char doing[32], unit[16];             /* "training"; "tokens" */
    double opened, since, stepped, ended; /* the ring; doing; the last step; the process wrote its end */
    uint64_t step, steps;                 /* done; of all */
    double rate;                          /* units per second in the last step, over all ranks */
    int32_t code, pad;                    /* exit code */
    char why[CALLS_WHY];                  /* "stopped by SIGTERM", or the line of a failure; "": it ran to its end */
    uint64_t skipped;                     /* steps without an update, of those that this process made */
    char more[72];
};

struct calls;                                                                   /* an open ring */
ls_status recorder_open(const char *path, int rank, int n, struct calls **out); /* path NULL: in memory */
void recorder_close(struct calls **c);
/* Sets the ring that records every call of this process (NULL: none). All comms of the process share it. */
void recorder_use(struct calls *c);
struct calls *recorder_used(void);
void recorder_launched_by(struct calls *c, int64_t pid);
uint64_t recorder_begin(const struct signature *s, const char *name); /* returns the call's number */
void recorder_mark(uint64_t call, enum call_state state, uint32_t step);
/* Marks the call as stalled in a live rank: a reader then sees how long a killed rank had waited. */
void recorder_seen(uint64_t call);
/* These update the ring in use; without one they are no-ops. */
void recorder_doing(const char *what);
void recorder_stepped(uint64_t step, uint64_t steps, double rate, const char *unit);
void recorder_skipped(uint64_t steps);
void recorder_ended(int code, const char *why);

/* Reads the file of another process, alive or dead. Every field is checked. */
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

/* Writes "all_reduce #12 of world (f32, 1024, sum)" into out[bytes] and returns it. */
char *signature_text(const struct signature *s, const char *name, char *out, size_t bytes);
/* Writes "all_reduce (f32, 1024, sum)" into out[bytes] and returns it. */
char *signature_call(const struct signature *s, char *out, size_t bytes);

#endif
