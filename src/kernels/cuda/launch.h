/* launch.h - how a .cu file of kernels is written: launches, pointers, shared memory; under nvcc and under the emulator.
 *
 * A .cu file is compiled by nvcc into the CUDA module, and by the C++ compiler against tests/cuda_emulator (CUDA_EMULATOR is defined),
 * where every access is checked. It uses this subset of CUDA C++:
 *
 *   global memory    global<T>, which is T * under nvcc: global_of<T>(data), p[i], p + i; no * and no other pointer to global memory
 *                    pack_load<N>(p, i), pack_store(p, i, pack): N elements in one access, aligned to its size; global_as<U>(p): a cast
 *   shared memory    shared<T>, which is T * under nvcc: SHARED(float, name, 32); or, for the bytes that the launch asked for,
 *                    DYNAMIC_SHARED(float, name)
 *   barriers         __syncthreads(), __syncwarp(mask)
 *   warps            __shfl_sync, __shfl_xor_sync, __shfl_up_sync, __shfl_down_sync, __ballot_sync, __any_sync, __all_sync
 *   tensor cores     mma.h: matmuls of a warp and their operands in shared memory
 *   atomics          of integers alone: atomic_add(p, i, x), atomic_max, atomic_min; sums of floats have a fixed order instead
 *   async copies     copy_async.h: from global to shared memory
 *   types            float, double, integers, __nv_bfloat16, __half and their conversions
 *
 * A launch is launch(c, KERNEL(name<T>), grid, block, dynamic shared bytes, arguments). It is enqueued on c->stream, and a grid without
 * blocks is not launched. What fails in a launch is reported through cuda_launch_failed(): the next wait of the host returns it.
 */
#ifndef LS_KERNELS_CUDA_LAUNCH_H
#define LS_KERNELS_CUDA_LAUNCH_H

#ifdef CUDA_EMULATOR
#include "cuda_emulator.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif
#include "kernels/cuda/parts.h"

constexpr int BLOCK_THREADS = 256; /* threads of a block, unless a kernel needs another number */

extern "C" {

/* Defined by the program that links the kernels: the module, or the emulator. */
/* The cudaStream_t of s (NULL: of the default stream), which has room for one launch; NULL: the device has failed. */
void *cuda_launch_stream(struct device_stream *s);
/* error: a cudaError_t. The first one is kept. */
void cuda_launch_failed(const char *kernel, int error, const char *text);
}

#define KERNEL(...) #__VA_ARGS__, __VA_ARGS__

#define CUDA_ROW_AT(name_, priority_, id, accepts_, scratch_, run_, run_many_)                                                           \
    {                                                                                                                                    \
        .op = OP_##id, .name = name_, .device = "cuda", .priority = priority_, .isa = ISA_ANY, .accepts = accepts_, .scratch = scratch_, \
        .prepare = NULL, .release = NULL, .run = run_, .run_many = run_many_                                                             \
    }
/* A kernel of ours that is correct for every call of models; faster rows have a higher priority and a name of their own. */
#define CUDA_ROW(id, accepts, scratch, run) CUDA_ROW_AT("cuda", PRIORITY_DEVICE, id, accepts, scratch, run, NULL)
/* One that takes many calls at once; its run() is a list of one. */
#define CUDA_MANY_ROW(id, accepts, scratch, run, run_many) CUDA_ROW_AT("cuda", PRIORITY_DEVICE, id, accepts, scratch, run, run_many)
/* One on tensor cores. */
#define CUDA_MMA_ROW(id, accepts, scratch, run) CUDA_ROW_AT("cuda_mma", PRIORITY_BLOCKED, id, accepts, scratch, run, NULL)
#define CUDA_ROWS_END                                                                                                              \
    {                                                                                                                              \
        .op = OPS, .name = NULL, .device = NULL, .priority = PRIORITY_REFERENCE, .isa = ISA_ANY, .accepts = NULL, .scratch = NULL, \
        .prepare = NULL, .release = NULL, .run = NULL, .run_many = NULL                                                            \
    }

#ifndef CUDA_EMULATOR

/* The arguments of a launch have at most 4 KB on every GPU. */
#define LAUNCH_ARGUMENTS_FIT(...) static_assert(sizeof(__VA_ARGS__) <= 4096, "more than the arguments of a launch")

template <typename T> using global = T *;
template <typename T> using shared = T *;
template <typename T> __host__ __device__ inline T *global_of(void *data) { return (T *)data; }
template <typename T> __host__ __device__ inline const T *global_of(const void *data) { return (const T *)data; }

#define SHARED(T, name, count) __shared__ __align__(16) T name[count]
#define DYNAMIC_SHARED(T, name)                                     \
    extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
    T *name = (T *)dynamic_shared

template <typename U, typename T> __host__ __device__ inline U *global_as(T *p) { return (U *)p; }
template <typename U, typename T> __device__ inline U *shared_as(T *p) { return (U *)p; }

/* N elements that are read or written at once. */
template <typename T, int N> struct alignas(sizeof(T) * N) pack {
    T v[N];
};
template <int N, typename T> __device__ inline pack<T, N> pack_load(const T *p, size_t i) { return *(const pack<T, N> *)(p + i); }
template <int N, typename T> __device__ inline void pack_store(T *p, size_t i, pack<T, N> x) { *(pack<T, N> *)(p + i) = x; }
template <typename T> __host__ __device__ inline bool pack_aligned(const T *p, size_t bytes) { return (uintptr_t)p % bytes == 0; }

template <typename T> __device__ inline T atomic_add(T *p, size_t i, T x) { return atomicAdd(p + i, x); }
template <typename T> __device__ inline T atomic_max(T *p, size_t i, T x) { return atomicMax(p + i, x); }
template <typename T> __device__ inline T atomic_min(T *p, size_t i, T x) { return atomicMin(p + i, x); }

/* More shared memory than a block gets unasked has to be allowed for the kernel. */
template <typename... P> inline cudaError_t launch_allow_shared(void (*kernel)(P...), size_t bytes)
{
    return bytes <= 48 << 10 ? cudaSuccess : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

template <typename... P, typename... A>
inline void launch(const struct call *c, const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A... args)
{
    cudaStream_t stream;

    if (!grid.x || !grid.y || !grid.z || !(stream = (cudaStream_t)cuda_launch_stream(c->stream))) return;
    cudaError_t e = launch_allow_shared(kernel, shared_bytes);
    if (e == cudaSuccess) {
        kernel<<<grid, block, shared_bytes, stream>>>((P)args...);
        e = cudaGetLastError();
    }
    if (e != cudaSuccess) cuda_launch_failed(name, (int)e, cudaGetErrorString(e));
}

#else

#define LAUNCH_ARGUMENTS_FIT(...) static_assert(sizeof(__VA_ARGS__) > 0, "the emulator's pointers are larger")

template <typename... P, typename... A>
inline void launch(const struct call *c, const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A... args)
{
    if (grid.x && grid.y && grid.z) emulator_launch(c->stream, name, kernel, grid, block, shared_bytes, args...);
}

#endif
#endif
