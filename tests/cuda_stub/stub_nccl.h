/* stub_nccl.h - shared by the files of the stub of NCCL: stub_nccl.c has the API and its contract, stub_nccl_memory.c memory and its
 * registration, stub_nccl_moves.c moves the data.
 *
 * A communicator is a file that its ranks map: which ranks are there, and for each rank and each pair of ranks a block of data with
 * counters. A rank holds a lock of its byte of the file, which its end releases.
 *
 * Collectives of a communicator are numbered; a rank publishes its data with the number and its call, and reads the others' once all have
 * published. A message waits until its receiver has it. The first message between two ranks makes a connection, which takes memory,
 * and for which the call waits until the peer calls too. Calls of a communicator run one after another, in the order in which this rank
 * made them, whatever streams they are on; a group is one call. That is the least that NCCL guarantees: code that needs more fails here.
 *
 * NCCL may register the buffers of any collective but a reduction to one rank: they must be registered memory on all ranks or on none; and
 * a receiver's buffer must be registered if the sender's is. The kernels of all communicators of a rank must fit on its GPU.
 *
 * ncclCommDestroy waits until all ranks have finalized. ncclCommAbort waits until all other communicators of the process that have calls
 * left are aborted too, and until all peers have aborted or finalized theirs. A process that has ended is waited for by neither.
 *
 * Half types are rounded after each addition, averages are multiplied by 1/n before the sum, and a maximum leaves out NaNs.
 */
#ifndef LS_TESTS_NCCL_STUB_H
#define LS_TESTS_NCCL_STUB_H

#include <nccl.h>
#include <stdatomic.h>
#include "stub.h"

enum { NCCL_RANKS = 8, NCCL_PARTS = 20, NCCL_BLOCK = 16 << 20, NCCL_HEAD = 64 << 10, NCCL_COMM_BYTES = 3 << 20, NCCL_PEER_BYTES = 1 << 20 };

enum nccl_op { NCCL_ALL_REDUCE, NCCL_ALL_GATHER, NCCL_REDUCE_SCATTER, NCCL_REDUCE, NCCL_BROADCAST, NCCL_SEND, NCCL_RECV };

enum { NCCL_SENDS_REGISTERED = 1, NCCL_SENDS_OTHER = 2, NCCL_RECEIVES_REGISTERED = 4, NCCL_RECEIVES_OTHER = 8 };

/* The part of a call that must be the same on all ranks. */
struct nccl_words {
    int op, type, redop, root; /* root: of messages the peer */
    uint64_t count;
    unsigned registered; /* which operands of a rank's call are registered */
};

struct nccl_shared {
    atomic_int joined[NCCL_RANKS]; /* 1 + its GPU */
    atomic_int left[NCCL_RANKS]; /* it has finalized or aborted */
    struct {
        _Atomic uint64_t posted, done; /* numbers of collectives */
        struct nccl_words words;
    } rank[NCCL_RANKS];
    struct {
        atomic_int sender, receiver; /* has made its first call */
        _Atomic uint64_t sent, received;
        struct nccl_words words;
    } pair[NCCL_RANKS][NCCL_RANKS]; /* from, to */
};

struct nccl_part {
    struct nccl_words words;
    uint64_t number; /* number of a collective */
    const void *send;
    void *recv;
    bool posted, over;
};

struct nccl_launch {
    ncclComm_t comm;
    uint64_t number;
    int n;
    struct nccl_part part[NCCL_PARTS];
};

struct ncclComm {
    ncclComm_t next;
    struct nccl_shared *shared;
    int n, rank, file, ctas, connections;
    enum { NCCL_JOINING, NCCL_READY, NCCL_FINALIZING, NCCL_FINALIZED, NCCL_ENDED } state;
    atomic_bool aborted;
    ncclResult_t broken;              /* the asynchronous error; ncclSuccess: none */
    int polls;                        /* number of ncclCommGetAsyncError calls before the launch below */
    uint64_t given, run, collectives; /* launches made and ended by this rank; collectives: given so far */
    struct nccl_launch waiting;       /* n 0: none */
    struct device_stream *stream;     /* its stream */
    char path[600];
};

size_t nccl_bytes(ncclDataType_t t);
/* The next move of a launch whose stream has reached it; LS_OK: it has ended. */
ls_status nccl_launch_run(void *launch);
/* Bytes that a part reads and writes on this rank; 0: none. */
size_t nccl_part_reads(const struct ncclComm *c, const struct nccl_part *p);
size_t nccl_part_writes(const struct ncclComm *c, const struct nccl_part *p);

/* stub_nccl_peers.c */
bool nccl_rank_hold(struct ncclComm *c);                          /* until its process ends; false: another one holds it */
void nccl_launch_connects(struct ncclComm *c);                    /* c->waiting makes first calls to peers, maybe */
bool nccl_launch_connected(const struct ncclComm *c);             /* its peers have made theirs */
void nccl_connections_end(struct ncclComm *c);
void nccl_wait_left(const struct ncclComm *c);                          /* until all peers have finalized, aborted or ended */
__attribute__((visibility("default"))) int stub_nccl_connections(void); /* for tests: connections for messages that this process has made */

/* stub_nccl.c */
ncclResult_t nccl_call(void);                                     /* at the start of each call: its result */
void nccl_need_comm(const char *call, ncclComm_t c, bool idle);   /* c may be given calls */

/* stub_nccl_memory.c */
bool nccl_is_registered(const struct ncclComm *c, const void *p, size_t bytes);
void nccl_registrations_end(const char *call, const struct ncclComm *c, bool aborted); /* none may be left, unless c was aborted */
__attribute__((visibility("default"))) int stub_nccl_registered(void);                 /* how many there are, for tests */

#endif
