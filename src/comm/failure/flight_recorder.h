/* flight_recorder.h - records the recent calls and the status of each rank, for verdicts and for readers after a kill.
 *
 * A recorder is a ring buffer of the last RECORDER_CALLS calls of one process. There is one file per rank (RUN/calls/rank_NNNN), which is
 * mapped shared, so it survives SIGKILL; `lockstep doctor RUN` reads it. Without a file the recorder is in plain memory. File layout,
 * little-endian:
 *     0   "LSCALLS2"   8  i32 rank   12 i32 ranks   16 i64 pid   24 f64 unix time of monotonic 0   32 u64 calls so far
 *     40  i64 pid of the launcher; 0: not started by `lockstep train`
 *     64  struct recorder_status, 768 bytes
 *     832 RECORDER_CALLS records of 128 bytes; call k is in record k mod RECORDER_CALLS
 */
#ifndef LS_COMM_FAILURE_FLIGHT_RECORDER_H
#define LS_COMM_FAILURE_FLIGHT_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "lockstep/comm.h"

enum { RECORDER_CALLS = 256 };

/* What must be equal on all ranks of a group that make a call; the two ends of a send and a receive must agree only on type and count.
 * sequence: number of the call in this comm, from 1. */
struct signature {
    uint64_t sequence, count, group; /* count: elements, for a _v call their sum over ranks; group: id of the comm */
    uint64_t counts;                 /* hash of the counts of a _v call; else 0 */
    int32_t op, type, redop, root;   /* ls_collective; ls_dtype; ls_redop or -1; root, peer or -1 */
};

/* True if two signatures belong to the same call. A send matches a receive that has the same number between the two ranks, the same type
 * and the same count; for collectives every field must be equal. */
bool signature_agrees(const struct signature *a, const struct signature *b);

enum call_state { CALL_NONE, CALL_QUEUED, CALL_RUNNING, CALL_DONE, CALL_FAILED };

struct call_record { /* 128 bytes */
    struct signature signature;
    double queued, started, ended; /* monotonic seconds; 0: not yet */
    int32_t state;                 /* enum call_state */
    uint32_t step;                 /* finished steps of the algorithm's list */
    char name[32];                 /* name of the group: "world", "shard" */
    double seen;                   /* when its rank last found it stalled; 0: never */
    char pad[8];
};

enum { RECORDER_WHY = 512 };

/* What the process of a rank is doing, and how it ended. Times are monotonic seconds; 0: not yet. Strings end in NUL. */
struct recorder_status { /* 768 bytes */
    char host[64];
    char doing[32], unit[16];             /* "training"; "tokens" */
    double opened, since, stepped, ended; /* when the recorder was opened, `doing` began, the last step ended, the rank ended */
    uint64_t step, steps;                 /* steps done; steps of the whole run */
    double rate;                          /* units per second in the last step, over all ranks */
    int32_t code, pad;                    /* exit code */
    char why[RECORDER_WHY];               /* "stopped by SIGTERM", or the error message; "": it ran to completion */
    uint64_t skipped;                     /* steps of this process whose update was skipped */
    char more[72];
};

struct recorder;
ls_status recorder_open(const char *path, int rank, int n, struct recorder **out); /* path NULL: in plain memory */
void recorder_close(struct recorder **c);
/* Sets the recorder of this process, which all its comms share; NULL: none. */
void recorder_use(struct recorder *c);
struct recorder *recorder_used(void);
void recorder_launched_by(struct recorder *c, int64_t pid);
/* at: base_now(). A call is queued: returns its number. */
uint64_t recorder_begin(const struct signature *s, const char *name, double at);
void recorder_update(uint64_t call, enum call_state state, uint32_t step, double at);
/* Records that the call is stalled but its rank is alive: a reader can then tell how long a killed rank had waited. */
void recorder_seen(uint64_t call);
/* These update the status in the recorder of this process; without a recorder they are no-ops. */
void recorder_doing(const char *what);
void recorder_stepped(uint64_t step, uint64_t steps, double rate, const char *unit);
void recorder_skipped(uint64_t steps);
void recorder_ended(int code, const char *why);

/* The file of another process, which may be alive or dead. Every field is checked. */
struct recorder_read {
    int rank, ranks;
    int64_t pid;
    double epoch;
    uint64_t calls;
    int64_t launcher;
    struct recorder_status status;
    struct call_record last[RECORDER_CALLS];
    int n;
};
ls_status recorder_read(const char *path, struct recorder_read *out); /* last[n]: oldest first */

/* Writes "all_reduce #12 of world (f32, 1024, sum)" into out[bytes] and returns it. */
char *signature_text(const struct signature *s, const char *name, char *out, size_t bytes);
/* Writes "all_reduce (f32, 1024, sum)" into out[bytes] and returns it. */
char *signature_call(const struct signature *s, char *out, size_t bytes);

#endif
