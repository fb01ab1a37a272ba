/* emulator_state.h - the state of the emulator, shared by its files: fibers and blocks (emulator.cc), warp operations (emulator_warp.cc),
 * tensor cores (emulator_mma.cc), asynchronous copies (emulator_copy.cc), memory and races (emulator_memory.cc).
 */
#ifndef LS_TESTS_CUDA_EMULATOR_STATE_H
#define LS_TESTS_CUDA_EMULATOR_STATE_H

#include "cuda_emulator.h"

enum { WARP = 32, MOST_THREADS = 1024, MOST_WARPS = MOST_THREADS / WARP };
/* Shared memory of a block: the limit of a launch is that of compute capabilities 8.6, 8.9 and 12.0, the least of the supported GPUs. */
enum { MOST_SHARED = 99 << 10, MOST_STATIC = 48 << 10 };
enum fiber_state { FIBER_READY, FIBER_BARRIER, FIBER_WARP, FIBER_DONE };

/* One thread of the block that runs. clock[lane]: the clock of each lane of its warp that it has seen through __syncwarp; its own entry is
 * its clock. */
struct fiber {
    emulator_where where;
    int index, lane, warp;
    fiber_state state;
    void *stack_pointer, *stack; /* stack: its lowest byte */
    const char *file; /* where it waits */
    int line;
    emulator_warp_op op;
    unsigned mask;
    uint64_t value, result;
    int from;
    uint32_t clock[WARP];
};

struct block {
    const char *kernel;
    dim3 grid, size;
    int threads, waiting, done; /* waiting: at a barrier */
    uint32_t serial;            /* of this block, over all launches */
    uint32_t launch;            /* serial of the launch's first block */
    uint32_t epoch;             /* barriers so far */
    size_t dynamic_bytes, static_bytes;
};

extern fiber emulator_fibers[MOST_THREADS];
extern fiber *emulator_now;
extern block emulator_block;

void fiber_wait(fiber_state state, const char *file, int line); /* suspends the running fiber; returns when it is made ready */
void fiber_make_ready(fiber *f);
/* Reports an error of the running thread, ends the launch; does not return. */
[[noreturn]] void emulator_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same of thread f, or of the launch (NULL), from the scheduler: returns. */
void emulator_note(const fiber *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool emulator_failed(void);
/* Why the waiting thread f was never released: from the scheduler. */
void warp_explain(const fiber *f);
/* Writes the results of all lanes of a warp, of whose operands value[lane] is the address: emulator_mma.cc. */
void emulator_warp_compute(emulator_warp_op op, const uint64_t *value);
/* Asynchronous copies of a thread: called when it begins; true if it has some that it did not wait for. */
void copy_thread_begin(int thread);
bool copy_thread_waits(int thread);
void memory_block_begin(void);
void warp_block_begin(void);

#endif
