/* ipc.h - collectives and messages among ranks of one machine through device memory that they map from each other (CUDA IPC), with a
 * kernel of ours for sums: for ranks that share a GPU, which NCCL refuses, and where there is no NCCL.
 *
 *   ipc.c        opening and ending groups
 *   ipc_calls.c  the calls
 *   ipc_sum.h    the kernel
 *
 * Each rank of a group has a window of device memory that all others map: two buffers, filled in turn. A call is divided into rounds. In a
 * round a rank copies what the others need into a buffer and signals them; once the others have signalled the same, it reads from their
 * buffers, and signals that it has read. So nothing is written into a peer's memory, and no operand needs to be registered.
 *
 * Streams signal streams: one writes a number into a word of pinned host memory that all ranks map, and the other waits for the word to
 * reach that number (cuStreamWriteValue64, cuStreamWaitValue64). So no kernel waits for another rank, which on a shared GPU would keep that
 * rank from running. Every pair of ranks has words of its own: a rank that gives up sets the words that it waits for itself, and changes
 * nothing for the others.
 */
#ifndef LS_DEVICE_CUDA_IPC_H
#define LS_DEVICE_CUDA_IPC_H

#include <stdatomic.h>
#include "device/cuda/cuda.h"
#include "device/cuda/ipc_sum.h"

/* A buffer has a 4096th of the GPU's memory, within these bounds: at least the pages of which a handle stands for whole ones. A round of a
 * call takes several operations of its stream, which has room for STREAM_DEPTH: the larger the buffers, the longer a call that the host can
 * enqueue before its peers have begun it. */
enum { IPC_BUFFERS = 2, IPC_BUFFER_LEAST = 1 << 20, IPC_BUFFER_MOST = 16 << 20, WORDS_PAGE = 4096 };

/* What one rank signals another: it has filled its buffer of the round; its share of the buffer is reduced; it has read the other's buffer.
 */
enum ipc_word { IPC_FILLED, IPC_REDUCED, IPC_READ, IPC_WORDS };

/* A rank reaches each stage once: its window exists; it has mapped the others'; its calls have ended; it maps none of them any more. */
enum ipc_stage { IPC_JOINED = 1, IPC_MAPPED, IPC_DONE, IPC_UNMAPPED };

/* In a file without a name, which rank 0 made. */
struct ipc_shared {
    struct {
        cudaIpcMemHandle_t window;
        uint64_t buffer;          /* bytes of this rank's buffer; the smallest of the group's is used */
        atomic_int stage, failed; /* stage: the last ipc_stage that it has reached */
    } rank[IPC_RANKS];
    _Alignas(WORDS_PAGE) uint64_t word[IPC_RANKS * IPC_RANKS * IPC_WORDS]; /* of n ranks: [to][from][ipc_word] */
};

enum ipc_state { IPC_OPENING, IPC_OPENED, IPC_OPEN, IPC_FINISHING, IPC_CLOSING, IPC_FINISHED };

/* Not NCCL's struct of that name, which none of these files sees. */
struct device_group {
    struct device_group *next;
    int rank, n;
    enum ipc_state state;
    struct ipc_shared *shared;
    int file; /* on rank 0, until all have mapped it; else -1 */
    bool pinned;
    uintptr_t words;          /* the device's address of shared->word */
    size_t taken, buffer;     /* bytes of this rank's window; of a buffer */
    char *window[IPC_RANKS];  /* this rank's, and the others' as they are mapped here */
    uint64_t call, filled;    /* calls so far; the last one in which this rank filled buffers */
    struct device_stream *on; /* where the last call is, which ends at `ended` */
    cudaEvent_t ended;
};

static inline uint64_t *ipc_word_of(const struct device_group *g, int to, int from, enum ipc_word w)
{
    return &g->shared->word[((size_t)to * (size_t)g->n + (size_t)from) * IPC_WORDS + w];
}

/* ---- ipc_calls.c ---- */

bool ipc_takes(const struct device_call *c);
ls_status ipc_enqueue(struct device_group *g, struct device_stream *stream, const struct device_call *c, const struct device_watch *w);

/* ---- ipc.c ---- */

/* Functions of the driver. flags 0: until (int64_t)(*at - value) >= 0; after all that the stream did before is visible everywhere. */
typedef int ipc_value_fn(cudaStream_t s, unsigned long long at, uint64_t value, unsigned flags);
struct ipc_functions {
    ipc_value_fn *wait, *write;
};
extern struct ipc_functions ipc;
bool ipc_spoiled(void *group); /* what calls leave may be wrong, though they end */

#endif
