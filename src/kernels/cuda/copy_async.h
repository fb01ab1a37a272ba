/* copy_async.h - copies from global to shared memory that proceed while the thread computes.
 *
 * A thread's copies form groups, which end in order. What a group has copied is there for the thread after copy_async_wait(), and for the
 * other threads of the block after a barrier that follows.
 */
#ifndef LS_KERNELS_CUDA_COPY_ASYNC_H
#define LS_KERNELS_CUDA_COPY_ASYNC_H

#include "kernels/cuda/launch.h"

#ifdef CUDA_EMULATOR
#include "emulator_copy.h"
#else

/* 16 bytes at `from`, or zeros if they are not there; both addresses are multiples of 16. */
template <typename T> static __device__ inline void copy_async16(T *to, const T *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)
                 : "memory");
}

/* The copies since the last call are a group. */
static __device__ inline void copy_async_commit(void) { asm volatile("cp.async.commit_group;" : : : "memory"); }

/* Waits until at most the last LEFT groups are in flight. */
template <int LEFT> static __device__ inline void copy_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" : : "n"(LEFT) : "memory");
}

#endif
#endif
