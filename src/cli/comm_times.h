/* comm_times.h - collectives on real ranks, checked and timed. Every rank makes the same calls. */
#ifndef LS_CLI_COMM_TIMES_H
#define LS_CLI_COMM_TIMES_H

#include <stdbool.h>
#include "lockstep/comm.h"

/* op LS_COLLECTIVE_SEND stands for sendrecv: each rank sends to the next and receives from the one before, at once. */
struct comm_times {
    ls_comm *comm;
    int rank, n;
    ls_collective op;
    ls_dtype type;
    ls_redop redop; /* of all_reduce and reduce_scatter */
    int root;       /* of broadcast */
    bool unchecked; /* values are not checked: wrong is 0 */
    bool plain;     /* memory of this process, not from ls_comm_alloc */
    int warmup, iterations;
    char *send, *recv; /* [room] bytes each */
    size_t room;
};

/* time: seconds of one call, the mean over this many, on the slowest rank. wrong: wrong elements of all ranks in one call before them. */
struct comm_time {
    double seconds;
    int64_t wrong;
};

/* The caller has filled the members before send. room: bytes of the largest buffer that will be timed. */
ls_status comm_times_open(struct comm_times *t, size_t room);
void comm_times_close(struct comm_times *t);

bool comm_times_has(ls_collective op);                             /* those that can be timed */
size_t comm_times_count(const struct comm_times *t, size_t bytes); /* elements of a block: at least 1 */
size_t comm_times_bytes(const struct comm_times *t, size_t count); /* of the whole buffer */
double comm_times_bus(ls_collective op, int n);                    /* bus bandwidth over bytes / seconds */
ls_status comm_times_take(const struct comm_times *t, size_t count, bool in_place, struct comm_time *out);
ls_status comm_times_verdict(const struct comm_times *t, int64_t wrong); /* LS_OK if none is */

#endif
