/* cuda_emulator.h - CUDA C++ as a .cu file of kernels sees it under the emulator. src/kernels/cuda/launch.h defines the subset and includes
 * this instead of the toolkit's headers; emulator.h lists the errors that it finds.
 */
#ifndef LS_TESTS_CUDA_EMULATOR_LANGUAGE_H
#define LS_TESTS_CUDA_EMULATOR_LANGUAGE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>
#include "emulator.h"
#include "emulator_types.h"

#define __global__      __attribute__((noinline))
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
    unsigned x, y, z;

    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/* ---- what the scheduler offers: emulator.cc, emulator_warp.cc, emulator_memory.cc ---- */

struct emulator_region; /* memory that a pointer may access */
enum emulator_access { EMULATOR_READ, EMULATOR_WRITE, EMULATOR_ATOMIC };
enum emulator_warp_op {
    EMULATOR_SHUFFLE,
    EMULATOR_BALLOT,
    EMULATOR_SYNC,
    EMULATOR_MMA_BF16, /* from here on: of all lanes, computed by the last one; emulator_mma.h */
    EMULATOR_MMA_F16,
    EMULATOR_LDMATRIX,
    EMULATOR_LDMATRIX_TRANSPOSED
};

struct emulator_where {
    dim3 thread, block, block_dim, grid_dim;
};
extern emulator_where *emulator_here; /* the running thread's indices */

emulator_region *emulator_region_at(const void *p);
/* The address on the host of the bytes at p. Does not return if the access is an error. */
void *emulator_touch(emulator_region *r, const void *p, size_t bytes, size_t align, emulator_access access);
emulator_region *emulator_shared_region(const char *key, const char *name, size_t bytes, void **base);
emulator_region *emulator_dynamic_region(void **base);
void emulator_barrier(const char *file, int line);
/* Waits for the lanes of mask. SHUFFLE: the value of lane `from`. BALLOT: a bit for each lane of mask whose value is not 0. */
uint64_t emulator_warp(emulator_warp_op op, unsigned mask, uint64_t value, int from, const char *file, int line);
int emulator_lane(void);
void emulator_submit(void *stream, const char *name, void (*run)(const void *closure), const void *closure, size_t bytes);
void emulator_grid(const char *name, dim3 grid, dim3 block, size_t shared_bytes, void (*entry)(const void *closure), const void *closure);

#define threadIdx emulator_here->thread
#define blockIdx  emulator_here->block
#define blockDim  emulator_here->block_dim
#define gridDim   emulator_here->grid_dim
#define warpSize  32

#define __syncthreads()                      emulator_barrier(__FILE__, __LINE__)
#define EMULATOR_SYNCWARP(mask, ...)         ((void)emulator_warp(EMULATOR_SYNC, mask, 0, 0, __FILE__, __LINE__))
#define __syncwarp(...)                      EMULATOR_SYNCWARP(__VA_ARGS__ __VA_OPT__(, ) 0xffffffffu)
#define __ballot_sync(mask, x)               ((unsigned)emulator_warp(EMULATOR_BALLOT, mask, (x) ? 1 : 0, 0, __FILE__, __LINE__))
#define __any_sync(mask, x)                  (__ballot_sync(mask, x) != 0)
#define __all_sync(mask, x)                  (__ballot_sync(mask, !(x)) == 0)
#define __shfl_sync(mask, x, from)           emulator_shuffle(mask, x, (from) & 31, __FILE__, __LINE__)
#define __shfl_xor_sync(mask, x, lanes)      emulator_shuffle(mask, x, emulator_lane() ^ (lanes), __FILE__, __LINE__)
/* A lane that would read past the warp gets its own value. */
#define __shfl_down_sync(mask, x, lanes)     emulator_shuffle(mask, x, emulator_lane_at(lanes), __FILE__, __LINE__)
#define __shfl_up_sync(mask, x, lanes)       emulator_shuffle(mask, x, emulator_lane_at(-(int)(lanes)), __FILE__, __LINE__)

inline int emulator_lane_at(int away)
{
    int lane = emulator_lane() + away;

    return lane < 0 || lane > 31 ? emulator_lane() : lane;
}

template <typename T> T emulator_shuffle(unsigned mask, T x, int from, const char *file, int line)
{
    uint64_t bits = 0;

    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
    memcpy(&bits, &x, sizeof x);
    bits = emulator_warp(EMULATOR_SHUFFLE, mask, bits, from, file, line);
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- pointers ---- */

/* An element that can be written: of a pointer whose T is not const. */
template <typename T> struct emulator_element {
    emulator_region *region;
    T *at;

    T get() const { return *(T *)emulator_touch(region, at, sizeof(T), alignof(T), EMULATOR_READ); }
    T put(T x) const { return *(T *)emulator_touch(region, at, sizeof(T), alignof(T), EMULATOR_WRITE) = x; }
    operator T() const { return get(); }
    T operator=(T x) const { return put(x); }
    T operator=(const emulator_element &x) const { return put(x.get()); }
    T operator+=(T x) const { return put((T)(get() + x)); }
    T operator-=(T x) const { return put((T)(get() - x)); }
    T operator*=(T x) const { return put((T)(get() * x)); }
};

/* The same class twice, so that shared and global memory are different types. */
template <typename T, int SPACE> struct emulator_pointer {
    emulator_region *region;
    T *at;

    emulator_pointer() = default;
    emulator_pointer(emulator_region *r, T *p) : region(r), at(p) {}
    emulator_pointer(decltype(nullptr)) : region(nullptr), at(nullptr) {}
    template <typename U, typename = std::enable_if_t<std::is_same<const U, T>::value>>
    emulator_pointer(const emulator_pointer<U, SPACE> &p) : region(p.region), at(p.at)
    {
    }
    explicit operator bool() const { return at; }
    emulator_pointer operator+(ptrdiff_t i) const { return { region, (T *)((uintptr_t)at + (uintptr_t)i * sizeof(T)) }; }
    emulator_pointer operator-(ptrdiff_t i) const { return *this + -i; }
    emulator_pointer &operator+=(ptrdiff_t i) { return *this = *this + i; }
    template <typename I> auto operator[](I i) const
    {
        if constexpr (std::is_const<T>::value)
            return *(T *)emulator_touch(region, (*this + (ptrdiff_t)i).at, sizeof(T), alignof(T), EMULATOR_READ);
        else
            return emulator_element<T>{ region, (*this + (ptrdiff_t)i).at };
    }
};

template <typename T> using global = emulator_pointer<T, 0>;
template <typename T> using shared = emulator_pointer<T, 1>;
template <typename T> global<T> global_of(void *data) { return { emulator_region_at(data), (T *)data }; }
template <typename T> global<T> global_of(const void *data) { return { emulator_region_at(data), (T *)data }; }
template <typename T, typename U> global<T> global_as(global<U> p) { return { p.region, (T *)p.at }; }
template <typename T, typename U> shared<T> shared_as(shared<U> p) { return { p.region, (T *)p.at }; }

template <typename T> shared<T> emulator_shared(const char *key, const char *name, size_t count)
{
    void *base;
    emulator_region *r = emulator_shared_region(key, name, count * sizeof(T), &base);

    static_assert(sizeof(T) % 2 == 0, "an element of shared memory has at least two bytes");
    return { r, (T *)base };
}

template <typename T> shared<T> emulator_dynamic()
{
    void *base;
    emulator_region *r = emulator_dynamic_region(&base);

    return { r, (T *)base };
}

#define SHARED(T, name, count)  \
    static const char name##_key = 0; \
    shared<T> name = emulator_shared<T>(&name##_key, #name, count)
#define DYNAMIC_SHARED(T, name) shared<T> name = emulator_dynamic<T>()

/* N elements at p + i in one access. */
template <int N, typename T, int SPACE> pack<std::remove_const_t<T>, N> pack_load(emulator_pointer<T, SPACE> p, size_t i)
{
    typedef pack<std::remove_const_t<T>, N> packed;
    T *at = (p + (ptrdiff_t)i).at;

    return *(const packed *)emulator_touch(p.region, at, sizeof(packed), sizeof(packed), EMULATOR_READ);
}
template <int N, typename T, int SPACE> void pack_store(emulator_pointer<T, SPACE> p, size_t i, pack<T, N> x)
{
    T *at = (p + (ptrdiff_t)i).at;

    *(pack<T, N> *)emulator_touch(p.region, at, sizeof x, sizeof x, EMULATOR_WRITE) = x;
}
template <typename T> bool pack_aligned(global<T> p, size_t bytes) { return (uintptr_t)p.at % bytes == 0; }

/* ---- atomics of integers ---- */

template <typename T, int SPACE, typename F> T emulator_atomic(emulator_pointer<T, SPACE> p, size_t i, F next)
{
    T *at = (T *)emulator_touch(p.region, (p + (ptrdiff_t)i).at, sizeof(T), sizeof(T), EMULATOR_ATOMIC), old = *at;

    static_assert(std::is_integral<T>::value, "a sum of floats has a fixed order");
    *at = next(old);
    return old;
}
template <typename T, int SPACE> T atomic_add(emulator_pointer<T, SPACE> p, size_t i, T x)
{
    return emulator_atomic(p, i, [x](T old) { return (T)(old + x); });
}
template <typename T, int SPACE> T atomic_max(emulator_pointer<T, SPACE> p, size_t i, T x)
{
    return emulator_atomic(p, i, [x](T old) { return old > x ? old : x; });
}
template <typename T, int SPACE> T atomic_min(emulator_pointer<T, SPACE> p, size_t i, T x)
{
    return emulator_atomic(p, i, [x](T old) { return old < x ? old : x; });
}

/* ---- launches ---- */

template <typename... P> struct emulator_closure {
    const char *name;
    void (*kernel)(P...);
    dim3 grid, block;
    size_t shared_bytes;
    std::tuple<P...> args;

    static void thread(const void *self) { std::apply(((const emulator_closure *)self)->kernel, ((const emulator_closure *)self)->args); }
    static void run(const void *self)
    {
        const emulator_closure *c = (const emulator_closure *)self;

        emulator_grid(c->name, c->grid, c->block, c->shared_bytes, thread, c);
    }
};

extern "C" {
struct call;
struct device_stream;
void *cuda_launch_stream(struct device_stream *s);
void cuda_launch_failed(const char *kernel, int error, const char *text);
}

template <typename... P, typename... A>
void emulator_launch(struct device_stream *stream, const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                     A... args)
{
    emulator_closure<P...> c = { name, kernel, grid, block, shared_bytes, std::tuple<P...>((P)args...) };

    emulator_submit(cuda_launch_stream(stream), name, emulator_closure<P...>::run, &c, sizeof c);
}

#endif
