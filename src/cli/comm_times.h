/* comm_times.h - checks and times collectives on real ranks. Every rank makes the same calls. */
#ifndef LS_CLI_COMM_TIMES_H
#define LS_CLI_COMM_TIMES_H

#include <stdbool.h>
#include "lockstep/comm.h"

struct device;
struct device_stream;

/* op LS_COLLECTIVE_SEND means sendrecv: each rank sends to the next rank and at the same time receives from the one before. */
struct comm_times {
    ls_comm *comm;
    int rank, n;
    ls_collective op;
    ls_dtype type;
    ls_redop redop; /* for all_reduce and reduce_scatter */
    int root;       /* for broadcast */
    bool unchecked; /* results are not checked, and `wrong` is 0 */
    bool plain;     /* buffers are in the process's own memory, not from ls_comm_alloc() */
    int warmup, iterations;
    const struct device *device; /* device that has the buffers, and a stream for the calls; NULL: the processor */
    char *send, *recv;           /* buffers of `room` bytes each */
    size_t room;
    char *host;                           /* room bytes: what a device's buffer gets or had; NULL: there is no device */
    struct device_stream *stream, *other; /* other: receives while `stream` sends */
};

/* A call takes the time from the end of the call before it to its own, on the slowest rank; on a device the host waits for each. wrong:
 * wrong elements on all ranks in one call before the timed ones. */
struct comm_time {
    double seconds, least, most; /* median, minimum and maximum of the calls */
    int64_t wrong;
};

/* Allocates the buffers; the caller has filled the members before `send`. room: bytes of the largest buffer that will be timed. */
ls_status comm_times_open(struct comm_times *t, size_t room);
void comm_times_close(struct comm_times *t);

bool comm_times_has(ls_collective op);                             /* true if the operation can be timed */
size_t comm_times_count(const struct comm_times *t, size_t bytes); /* elements of a block of a buffer of so many bytes, at least 1 */
size_t comm_times_bytes(const struct comm_times *t, size_t count); /* bytes of the complete buffer, by the elements of a block */
double comm_times_bus(ls_collective op, int n);                    /* ratio of busbw to algbw */
ls_status comm_times_take(const struct comm_times *t, size_t count, bool in_place, struct comm_time *out);
ls_status comm_times_verdict(const struct comm_times *t, int64_t wrong); /* LS_OK if wrong is 0 */

#endif
