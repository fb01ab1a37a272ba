/* comm.h - collective communication among a fixed group of ranks.
 *
 * A comm is n ranks that communicate over one transport: shm (processes of one machine), mpi, or plan (no peers: knows its size, moves
 * nothing). These rules hold for all calls:
 *   1. All ranks of a comm make the same collective calls in the same order. Comms that share ranks are used in the same
 *      order too. Sends and receives have their own order per pair: the k-th send matches the k-th receive.
 *   2. `count` is in elements and is the size of ONE rank's block. Buffer sizes are written [count] or [n*count]; block i
 *      of an [n*count] buffer belongs to rank i. In the _v forms counts[n] gives the size of every rank's block (the same
 *      array on all ranks), blocks are stored one after another in rank order, and any count may be 0.
 *   3. In place: as the small buffer, pass this rank's block of the large one (send == recv if the sizes match). Any other overlap is an
 *      error.
 *   4. work == NULL: return when the result is usable. Otherwise return at once with *work set, and the comm owns the buffers until
 *      ls_work_wait(). Several may be in flight.
 *   5. Sums are formed in an order fixed by transport, n, count and type, so a run repeats bit for bit, and every rank
 *      gets the same bits. bf16 and f16 are summed in f32 and rounded once.
 *   6. Every call carries its signature: number, operation, type, operator, count, root, group. If ranks call different operations, or a
 *      peer is dead or shows no progress within the timeout, the comm ends on every rank: this and all later calls return LS_EPEER
 *      (LS_ETIMEOUT for the timeout) with one line that says which rank did what.
 * A comm belongs to one thread at a time; a progress thread advances what is in flight.
 *
 *   LS_TRY(ls_all_reduce(dp, g, g, len, LS_F32, LS_AVG, &work));  // average gradients in place
 *   layer_backward(...);                                          // overlaps
 *   LS_TRY(ls_work_wait(&work));                                  // g may be used again
 */
#ifndef LS_COMM_H
#define LS_COMM_H

#include <stddef.h>
#include <stdint.h>
#include "lockstep/dtype.h"
#include "lockstep/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_comm ls_comm; /* a group; opened and closed by all its ranks together */
typedef struct ls_work ls_work; /* one operation in flight */

/* AVG is not available for integers. */
typedef enum ls_redop { LS_SUM, LS_AVG, LS_MAX, LS_REDOPS } ls_redop;

/* where: "shm:NAME" (ranks that use the same name), "shm:fd:N" (a region inherited from the launcher), "mpi:", "plan:". n == 1 uses no
 * transport, whatever `where` names. Waits for all ranks until the deadline. Caller owns *out. */
ls_status ls_comm_open(const char *where, int rank, int n, ls_comm **out);
/* Ranks with equal color form a new comm, ordered by key, then rank. color < 0: join none, *out = NULL. Collective. */
ls_status ls_comm_split(ls_comm *comm, int color, int key, ls_comm **out);
/* Waits for work in flight, frees, sets *comm to NULL. NULL and pointer to NULL are no-ops. Parents outlive children. */
void ls_comm_close(ls_comm **comm);
int ls_comm_rank(const ls_comm *comm);              /* 0 .. n-1 */
int ls_comm_size(const ls_comm *comm);              /* n >= 1 */
const char *ls_comm_transport(const ls_comm *comm); /* "self", "shm", "mpi", "plan" */
/* Sets how many seconds a wait lasts while the rank at the end of the chain of waits, over all comms of the job, shows no progress (it is
 * stopped, or makes no call and runs no instruction of a program); default 60. Applies to this comm, and to all comms split from the same
 * opened comm, before or after. */
void ls_comm_set_timeout(ls_comm *comm, double seconds);
/* Allocates memory that the transport accesses without an intermediate copy; other memory gives the same results, only slower. NULL with
 * the message set on failure. Freed by ls_comm_free or with the comm. */
void *ls_comm_alloc(ls_comm *comm, size_t bytes);
void ls_comm_free(ls_comm *comm, void *p);

/* "moves": the least data that crosses one rank's link one way, in blocks. */

/* recv[count] = op over ranks of send[count], on every rank.            moves 2(n-1)/n blocks */
ls_status ls_all_reduce(ls_comm *comm, const void *send, void *recv, size_t count, ls_dtype type, ls_redop op, ls_work **work);
/* recv[n*count]: block i = send[count] of rank i, on every rank.             moves n-1 blocks */
ls_status ls_all_gather(ls_comm *comm, const void *send, void *recv, size_t count, ls_dtype type, ls_work **work);
ls_status ls_all_gather_v(ls_comm *comm, const void *send, void *recv, const size_t *counts, ls_dtype type, ls_work **work);
/* recv[count] = op over ranks of block `my rank` of send[n*count].           moves n-1 blocks */
ls_status ls_reduce_scatter(ls_comm *comm, const void *send, void *recv, size_t count, ls_dtype type, ls_redop op, ls_work **work);
ls_status ls_reduce_scatter_v(ls_comm *comm, const void *send, void *recv, const size_t *counts, ls_dtype type, ls_redop op,
                              ls_work **work);
/* recv[n*count]: block i = block `my rank` of send[n*count] of rank i.       moves n-1 blocks */
ls_status ls_all_to_all(ls_comm *comm, const void *send, void *recv, size_t count, ls_dtype type, ls_work **work);
/* send_counts[i]: elements that this rank sends to rank i; recv_counts[i]: elements that rank i sends to this rank. */
ls_status ls_all_to_all_v(ls_comm *comm, const void *send, const size_t *send_counts, void *recv, const size_t *recv_counts, ls_dtype type,
                          ls_work **work);
/* buf[count] of rank `root` is copied into buf[count] of every rank.           moves 1 block */
ls_status ls_broadcast(ls_comm *comm, void *buf, size_t count, ls_dtype type, int root, ls_work **work);
/* buf[count] goes to / comes from one peer. */
ls_status ls_send(ls_comm *comm, const void *buf, size_t count, ls_dtype type, int to, ls_work **work);
ls_status ls_recv(ls_comm *comm, void *buf, size_t count, ls_dtype type, int from, ls_work **work);
/* Returns once every rank has called it. */
ls_status ls_barrier(ls_comm *comm);

ls_status ls_work_test(ls_work **work); /* LS_OK: done, *work = NULL. LS_BUSY: ask again. */
ls_status ls_work_wait(ls_work **work); /* blocks; *work = NULL on success and on failure alike; NULL is LS_OK */

/* ---- statistics ---- */

/* clang-format off */
#define LS_COLLECTIVE_MAP(X) \
    X(ALL_REDUCE, "all_reduce") \
    X(ALL_GATHER, "all_gather") \
    X(REDUCE_SCATTER, "reduce_scatter") \
    X(BROADCAST, "broadcast") \
    X(ALL_TO_ALL, "all_to_all") \
    X(SEND, "send") \
    X(RECV, "recv") \
    X(BARRIER, "barrier")
/* clang-format on */
typedef enum ls_collective {
#define LS_COLLECTIVE_ENUM(id, name) LS_COLLECTIVE_##id,
    LS_COLLECTIVE_MAP(LS_COLLECTIVE_ENUM)
#undef LS_COLLECTIVE_ENUM
        LS_COLLECTIVES
} ls_collective;
const char *ls_collective_name(ls_collective c); /* "all_reduce" */

/* Counts for one operation on one rank, since the comm was opened. bytes: payload sent by this rank to others (in shared memory: what its
 * peers read from it). seconds: from start to end of each call, summed; exposed: the part of this time that the caller spent in the call or
 * in ls_work_wait. */
typedef struct ls_comm_count {
    uint64_t calls, bytes;
    double seconds, exposed;
} ls_comm_count;
ls_comm_count ls_comm_counters(const ls_comm *comm, ls_collective c);
uint64_t ls_comm_bytes_to(const ls_comm *comm, int peer); /* bytes sent to that rank by all operations */
/* The bytes that one call of c would add to this rank's counter; count as in the call (counts: for the _v form, or NULL). */
uint64_t ls_comm_bytes_of(const ls_comm *comm, ls_collective c, size_t count, const size_t *counts, ls_dtype type);

#ifdef __cplusplus
}
#endif
#endif
