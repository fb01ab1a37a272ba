/* emulator.h - a test's interface to the CUDA emulator: which memory a kernel may access, when a launch runs, what was found.
 *
 * The emulator runs the kernels of src/kernels/cuda, compiled by the C++ compiler, on the processor: each thread of a block is a fiber, and
 * the fibers of a block run in a random order between barriers and warp operations. It finds, and names with kernel, block and thread:
 *
 *   a barrier that some threads of the block do not reach, or reach elsewhere in the code
 *   a warp operation that a lane of its mask does not reach, or whose mask lacks the calling lane; for tensor cores: any lane of the warp
 *   two accesses of the same bytes of shared memory, one of them a write, with no barrier between
 *   the same for global memory, where no two blocks of a launch are in any order
 *   reads of shared memory that no thread of the block has written
 *   accesses outside of the given global memory, of the pointer's region, or of shared memory
 *   asynchronous copies whose source changes before they are waited for, or that nobody waits for
 *   writes to global memory given for reading, and accesses that are not aligned to their size
 *   launches that a device would refuse
 *
 * One thread uses it at a time.
 */
#ifndef LS_TESTS_CUDA_EMULATOR_H
#define LS_TESTS_CUDA_EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kernels may touch [base, base + bytes), whose bytes are at `real` on the host; real == base unless a device's addresses are not the
 * host's. grain: the size of its elements (1, 2, 4 or 8), for races. Regions do not overlap. */
void emulator_memory_add(void *base, size_t bytes, void *real, size_t grain, bool writable, const char *name);
void emulator_memory_remove(void *base);
void emulator_memory_clear(void);
/* Ends the region for pointers that are made from now on; those of launches that are still to run keep it until it is dropped. */
void *emulator_memory_detach(void *base);
void emulator_memory_drop(void *detached);

/* The order of threads and blocks follows from the seed and the number of launches since. */
void emulator_seed(uint64_t seed);

/* The first report since emulator_clear(), "" if there is none. A launch ends with its first report. */
const char *emulator_report(void);
void emulator_clear(void);
uint64_t emulator_launches(void); /* since the start of the process */

/* A launch is given to `enqueue` instead of running at once; NULL: at once, as after the start. run(closure) runs it, and may be called
 * later with a copy of closure[bytes]. stream: what cuda_launch_stream() returned; a launch on NULL is left out. */
typedef void emulator_enqueue_fn(void *stream, const char *kernel, void (*run)(const void *closure), const void *closure, size_t bytes);
void emulator_enqueue(emulator_enqueue_fn *enqueue);

#ifdef __cplusplus
}
#endif
#endif
