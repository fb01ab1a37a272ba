/* mma.h - a warp's tensor core: C += A B with A of 16 x 16, B of 16 x 8, both bf16 or f16, C of 16 x 8 in f32.
 *
 * The 32 lanes of a warp hold a matrix together, in registers (a fragment); the layout is that of the PTX ISA's mma.m16n8k16. All lanes
 * call these functions together. In shared memory a matrix is row-major, its rows `stride` elements apart and aligned to 16 bytes; a stride
 * of 8 times an odd number lets the rows of an 8 x 8 matrix be read without bank conflicts.
 */
#ifndef LS_KERNELS_CUDA_MMA_H
#define LS_KERNELS_CUDA_MMA_H

#include "kernels/cuda/launch.h"

/* Two elements a register. */
template <typename T> struct mma_a {
    uint32_t r[4];
};
template <typename T> struct mma_b {
    uint32_t r[2];
};
/* Element i of a lane is C(mma_row(lane, i), mma_column(lane, i)). */
struct mma_c {
    float v[4];
};

static __device__ inline int mma_row(int lane, int i) { return lane / 4 + i / 2 * 8; }
static __device__ inline int mma_column(int lane, int i) { return lane % 4 * 2 + i % 2; }

#ifdef CUDA_EMULATOR
#include "emulator_mma.h"
#else

struct mma_site {
};

#define MMA_PTX(type)                                                                                                  \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, " \
                 "{%0,%1,%2,%3};"                                                                                      \
                 : "+f"(c->v[0]), "+f"(c->v[1]), "+f"(c->v[2]), "+f"(c->v[3])                                          \
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]))

static __device__ inline void mma_16x8x16(struct mma_c *c, const struct mma_a<__nv_bfloat16> &a, const struct mma_b<__nv_bfloat16> &b)
{
    MMA_PTX("bf16");
}
static __device__ inline void mma_16x8x16(struct mma_c *c, const struct mma_a<__half> &a, const struct mma_b<__half> &b) { MMA_PTX("f16"); }

/* Four 8 x 8 matrices, whose rows begin where lanes 0-7, 8-15, 16-23, 24-31 say. */
template <bool TRANSPOSED, typename T> static __device__ inline void mma_ldmatrix(uint32_t *r, const T *row, struct mma_site)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);

    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
}

static __device__ inline uint32_t mma_pair(__nv_bfloat16 low, __nv_bfloat16 high)
{
    return __bfloat16_as_ushort(low) | (uint32_t)__bfloat16_as_ushort(high) << 16;
}
static __device__ inline uint32_t mma_pair(__half low, __half high)
{
    return __half_as_ushort(low) | (uint32_t)__half_as_ushort(high) << 16;
}

#endif

/* A = the 16 x 16 elements at `tile`. */
template <typename T>
static __device__ inline struct mma_a<T> mma_load_a(shared<const T> tile, int stride, struct mma_site at = mma_site()) {
    int lane = threadIdx.x % 32, matrix = lane / 8;
    struct mma_a<T> a;

    mma_ldmatrix<false, T>(a.r, tile + (matrix % 2 * 8 + lane % 8) * stride + matrix / 2 * 8, at);
    return a;
}

/* The same of the transpose: row k of `tile` is column k of A. */
template <typename T>
static __device__ inline struct mma_a<T> mma_load_a_transposed(shared<const T> tile, int stride, struct mma_site at = mma_site()) {
    int lane = threadIdx.x % 32, matrix = lane / 8;
    struct mma_a<T> a;

    mma_ldmatrix<true, T>(a.r, tile + (matrix / 2 * 8 + lane % 8) * stride + matrix % 2 * 8, at);
    return a;
}

/* B[0] and B[1], side by side, are the 16 x 16 elements at `tile`. */
template <typename T>
static __device__ inline void mma_load_b(struct mma_b<T> *b, shared<const T> tile, int stride, struct mma_site at = mma_site())
{
    int lane = threadIdx.x % 32, matrix = lane / 8;
    uint32_t r[4];

    mma_ldmatrix<true, T>(r, tile + (matrix % 2 * 8 + lane % 8) * stride + matrix / 2 * 8, at);
    for (int i = 0; i < 4; i++) b[i / 2].r[i % 2] = r[i];
}

/* The same of the transpose: row n of `tile` is column n of the two. */
template <typename T>
static __device__ inline void mma_load_b_transposed(struct mma_b<T> *b, shared<const T> tile, int stride, struct mma_site at = mma_site())
{
    int lane = threadIdx.x % 32, matrix = lane / 8;
    uint32_t r[4];

    mma_ldmatrix<false, T>(r, tile + (matrix / 2 * 8 + lane % 8) * stride + matrix % 2 * 8, at);
    for (int i = 0; i < 4; i++) b[i / 2].r[i % 2] = r[i];
}

static __device__ inline void type_of(float x, __nv_bfloat16 *y) { *y = __float2bfloat16_rn(x); }
static __device__ inline void type_of(float x, __half *y) { *y = __float2half_rn(x); }
static __device__ inline float float_of(__nv_bfloat16 x) { return __bfloat162float(x); }
static __device__ inline float float_of(__half x) { return __half2float(x); }

template <typename T> static __device__ inline uint32_t mma_pair_of(float low, float high)
{
    T a, b;

    type_of(low, &a);
    type_of(high, &b);
    return mma_pair(a, b);
}

/* Two results side by side, rounded, as the left operand of the next matmul: no lane needs another's elements. */
template <typename T> static __device__ inline struct mma_a<T> mma_a_of(const struct mma_c *c) {
    struct mma_a<T> a;

    for (int i = 0; i < 4; i++) a.r[i] = mma_pair_of<T>(c[i / 2].v[i % 2 * 2], c[i / 2].v[i % 2 * 2 + 1]);
    return a;
}

#endif
