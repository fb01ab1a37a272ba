/* comm.h - functions of a comm that other floors of the library may use beyond the public header. */
#ifndef LS_COMM_COMM_H
#define LS_COMM_COMM_H

#include <stdbool.h>
#include "lockstep/comm.h"

struct json_out;
struct device;
struct device_collectives;
struct device_stream;

struct call_args { /* the arguments of a call */
    ls_collective op;
    const void *send;
    void *recv;
    size_t count;
    bool v;
    const size_t *counts, *recv_counts; /* for the _v forms; all_to_all: counts of what is sent */
    ls_dtype type;
    ls_redop redop;
    int root;
    bool hidden; /* internal, not counted */
};
/* Enqueues the call on a stream of a device that is not immediate: arguments are checked now, the call runs when the stream reaches it, and
 * what follows on the stream waits for its end. counts are copied. */
ls_status comm_enqueue(ls_comm *c, const struct device *d, struct device_stream *s, const struct call_args *a);
/* Which of a comm's calls the device's own library makes; the rest are staged. */
struct native_spec {
    bool collectives; /* all collectives except all_to_all */
    bool exchanges;   /* all collectives */
    int step;         /* messages to rank + step and from rank - step, modulo n; 0: none */
    int share;        /* each group's share of the device's processors in units of 1 / shares: collectives.h */
    int shares;
};
/* Opens groups of one of the device's tables of collectives for the comm, which comm_enqueue() uses from then on. Collective; what has
 * been enqueued is waited for. A no-op on a comm of one rank, and on one that has its groups. After a sync the device's memory and streams
 * may be freed before the comm is closed. */
ls_status comm_open_native(ls_comm *c, const struct device *d, const struct device_collectives *by, const struct native_spec *s);
/* Makes the call at once, on an immediate device; work as in comm.h. */
ls_status operation_run(ls_comm *c, const struct call_args *a, ls_work **work);

/* Waits until one of the calls in flight has ended and returns its index, for ls_work_wait(). Some may be NULL, but not all. If several
 * have ended, the one that ended first. */
int comm_wait_any(ls_work *const *works, int n);
/* ls_comm_open() with a limit on how long it waits for the others. */
ls_status comm_open_within(const char *where, int rank, int n, double seconds, ls_comm **out);
/* A name for messages and records: "world", "shard", "replicas". At most 31 bytes. */
void comm_name(ls_comm *c, const char *name);
/* What the row of its transport has (transports/transport.h); false for one rank. */
bool comm_has_memory(const ls_comm *c);      /* ls_comm_alloc() takes the transport's memory, which is the host's, not mem_alloc()'s */
bool comm_has_collectives(const ls_comm *c); /* native ones, beside the lists of steps */
/* Called for each ended operation on the thread that waits for it: for traces. NULL: no callback. */
struct comm_seen {
    const ls_comm *comm;
    const char *name; /* the comm's name */
    ls_collective op;
    uint64_t bytes, group,
        sequence;   /* group: its id, the same on all its ranks; sequence: number of the call in the comm, or of the message in its pair */
    int rank, peer; /* in the comm; peer of SEND and RECV, else -1 */
    double queued, started, ended; /* base_now() */
};
typedef void comm_watch_fn(void *ctx, const struct comm_seen *e);
void comm_watch(comm_watch_fn *fn, void *ctx);
/* The sum of the counters of all comms of this process, including closed ones. */
ls_comm_count comm_counted(ls_collective c);
/* Like ls_comm_split(), for the case that every rank can compute every rank's color (>= 0 to join, ordered by rank); needs no
 * communication, so a comm of "plan:" can be split. Collective. */
typedef int comm_color_fn(void *ctx, int rank);
ls_status comm_split_by(ls_comm *c, comm_color_fn *color, void *ctx, ls_comm **out);
/* The same where every rank knows its group: ranks first, first + stride, .., `size` of them. A group of one rank has no comm. */
ls_status comm_split_regular(ls_comm *c, int first, int stride, int size, ls_comm **out);
/* Ends the job's communication with st and this thread's message, which names this rank on all others: what is in flight here ends at once,
 * and every other rank ends when it next checks. No effect on a comm of one rank. */
void comm_fail(ls_comm *c, ls_status st);
/* True once the job has ended with a failure, of this rank or of another. */
bool comm_has_failed(const ls_comm *c);
/* Injected faults, of all but internal calls; NULL unless train/faults/fault_points.h has armed one. */
struct signature;
/* Called before a call is issued, whose signature it may change; true: the call is skipped. */
typedef bool comm_call_fault_fn(const ls_comm *c, struct signature *s);
extern comm_call_fault_fn *comm_call_fault;
/* Returns by how many seconds a call of the host that sends or receives so many bytes begins later. */
typedef double comm_delay_fault_fn(size_t bytes);
extern comm_delay_fault_fn *comm_delay_fault;

/* This process's rank and the number of ranks, from flags and a launcher's variables (see environment.c). */
enum launcher { LAUNCHER_NONE, LAUNCHER_OWN, LAUNCHER_TORCHRUN, LAUNCHER_OPEN_MPI, LAUNCHER_PMI, LAUNCHER_PMIX, LAUNCHER_SLURM };
struct world {
    enum launcher launcher;
    int rank, size, local_rank, local_size;
    char where[96]; /* for ls_comm_open */
};
ls_status world_find(struct world *out); /* single process: rank 0 of 1 */
/* This rank's share of the cores, if our own launcher started it and says so; else 0. */
ls_status world_threads(const struct world *w, int *out);
const char *launcher_name(enum launcher l); /* "mpirun (Open MPI)" */

#endif
