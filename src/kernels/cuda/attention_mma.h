/* attention_mma.h - shared by the attention kernels on tensor cores: operands, tiles in shared memory, the two kinds of matmul.
 *
 * A block has four warps with 16 rows each (queries, or keys for dk and dv) and goes over the other side in tiles of COLUMNS. A tile in
 * shared memory has rows of a head, padded with zeros to D elements, 64, 96, 128 or 256, and to rows past the end. Matmuls have bf16 or f16
 * operands and f32 sums; values between two matmuls (p, dscore) are in f32 until they are rounded as the left operand of the second. The
 * order of every sum follows from the shape.
 */
#ifndef LS_KERNELS_CUDA_ATTENTION_MMA_H
#define LS_KERNELS_CUDA_ATTENTION_MMA_H

#include "kernels/cuda/array.h"
#include "kernels/cuda/copy_async.h"
#include "kernels/cuda/mma.h"
#include "kernels/cuda/reduce.h"

enum { WARPS = 4, ROWS = 16 * WARPS, THREADS = 32 * WARPS };

/* Bytes of shared memory for `rows` rows of D elements: the rows of an 8 x 8 matrix are in different banks. */
#define TILE_STRIDE(D)      ((D) + 8)
#define TILE_BYTES(rows, D) ((size_t)(rows)*TILE_STRIDE(D) * 2)

#define LOG2_E 1.4426950408889634f

/* An operand [B,rows,heads,d] whose last dim is contiguous. */
struct operand {
    global<byte> data;
    long long batch, row, head; /* strides */
    int aligned;                /* 8 elements at a multiple of 8 are one access */
};

struct attention {
    struct operand q, k, v, o, dout, out, out2; /* out: o; dq; dk and dv */
    global<float> lse, delta;                   /* [B,H,T]; delta: sum of do o */
    global<const int> len;
    int causal, T, S, H, G, d;
    float scale, factor; /* factor: scale of scores for exponentials of base 2 */
};

/* ---- on the host ---- */

static inline struct operand operand_none(void)
{
    struct operand x = { global<byte>(nullptr), 0, 0, 0, 0 };

    return x;
}

static inline struct operand operand_of(const struct view *v)
{
    struct operand x = { global_of<byte>(v->data), v->stride[0], v->stride[1], v->stride[2], 1 };

    for (int i = 0; i < 3; i++) x.aligned &= v->size[i] <= 1 || v->stride[i] % 8 == 0;
    x.aligned &= pack_aligned(x.data, 16);
    return x;
}

static inline struct attention attention_of(const struct call *c)
{
    const struct view *q = &c->in[0], *k = &c->in[1];
    struct attention z = {};

    z.q = operand_of(q);
    z.k = operand_of(k);
    z.v = operand_of(&c->in[2]);
    z.o = z.dout = z.out = z.out2 = operand_none();
    z.lse = z.delta = nullptr;
    z.len = nullptr;
    z.causal = c->attr.attention.causal;
    z.T = (int)q->size[1];
    z.S = (int)k->size[1];
    z.H = (int)q->size[2];
    z.G = (int)k->size[2];
    z.d = (int)q->size[3];
    z.scale = (float)c->attr.attention.scale;
    z.factor = z.scale * LOG2_E;
    return z;
}

/* True for an operand of this half type whose last dim is contiguous and a multiple of 8, at most `most`. */
static inline bool is_operand(const struct view *v, ls_dtype type, size_t most)
{
    return view_given(v) && v->dtype == type && v->size[3] % 8 == 0 && v->size[3] <= most && v->stride[3] == 1;
}

static inline bool attention_sizes_accepted(const struct call *c)
{
    const struct view *q = &c->in[0], *k = &c->in[1];
    const size_t most = 1u << 30;

    return (q->dtype == LS_BF16 || q->dtype == LS_F16) && q->size[0] <= 65535 && q->size[1] <= most && k->size[1] <= most &&
           q->size[2] <= 65535 && c->attr.attention.scale > 0;
}

/* ---- on the device ---- */

static __device__ inline int attention_keys(const struct attention &z) { return z.len ? max(0, min(z.S, (int)z.len[0])) : z.S; }

/* Keys that query t sees, of `keys`. */
static __device__ inline int attention_visible(const struct attention &z, int keys, int t)
{
    return z.causal ? max(0, min(t + 1 + keys - z.T, keys)) : keys;
}

/* Starts to load rows [first, first + COUNT) of head h into shared memory, zeros from row `end` on; they belong to the group of
 * copies that is being formed. */
template <typename T, int COUNT, int D>
static __device__ inline void tile_load(shared<T> to, const struct operand &x, int b, int h, int first, int end, int d)
{
    const int eights = D / 8;
    global<const T> from = global_as<const T>(x.data) + (b * x.batch + h * x.head + first * x.row);

    for (int i = threadIdx.x; i < COUNT * eights; i += THREADS) {
        int r = i / eights, column = i % eights * 8;
        bool there = first + r < end && column < d;
        long long at = there ? r * x.row + column : 0;
        pack<T, 8> e;

        if (x.aligned) {
            copy_async16<T>(to + (r * TILE_STRIDE(D) + column), from + at, there);
            continue;
        }
        for (int k = 0; k < 8; k++) type_of(there ? float_of(from[at + k]) : 0, &e.v[k]);
        pack_store(to, r * TILE_STRIDE(D) + column, e);
    }
}

/* s = left right': 16 rows of `left` by COLUMNS rows of `right`. */
template <typename T, int D, int COLUMNS>
static __device__ inline void tile_scores(struct mma_c *s, shared<const T> left, shared<const T> right)
{
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
        for (int i = 0; i < 4; i++) s[n].v[i] = 0;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        struct mma_a<T> a = mma_load_a<T>(left + k, TILE_STRIDE(D));

#pragma unroll
        for (int n = 0; n < COLUMNS; n += 16) {
            struct mma_b<T> b[2];

            mma_load_b_transposed<T>(b, right + n * TILE_STRIDE(D) + k, TILE_STRIDE(D));
            mma_16x8x16(&s[n / 8], a, b[0]);
            mma_16x8x16(&s[n / 8 + 1], a, b[1]);
        }
    }
}

/* own += p right, with p of 16 x COLUMNS rounded to T and COLUMNS rows of `right`. */
template <typename T, int D, int COLUMNS>
static __device__ inline void tile_accumulate(struct mma_c *own, const struct mma_c *p, shared<const T> right)
{
#pragma unroll
    for (int k = 0; k < COLUMNS; k += 16) {
        struct mma_a<T> a = mma_a_of<T>(&p[k / 8]);

#pragma unroll
        for (int n = 0; n < D; n += 16) {
            struct mma_b<T> b[2];

            mma_load_b<T>(b, right + k * TILE_STRIDE(D) + n, TILE_STRIDE(D));
            mma_16x8x16(&own[n / 8], a, b[0]);
            mma_16x8x16(&own[n / 8 + 1], a, b[1]);
        }
    }
}

/* Sums and maxima over the four lanes that share a row of a result. */
template <typename F> static __device__ inline float lanes_reduce(float x)
{
    x = F::of(x, __shfl_xor_sync((unsigned)ALL_LANES, x, 1));
    return F::of(x, __shfl_xor_sync((unsigned)ALL_LANES, x, 2));
}

/* This lane's two rows, `row` and row + 8, times their factors. */
template <typename T, int D>
static __device__ inline void rows_put(const struct operand &to, int b, int h, int row, int end, const struct mma_c *own,
                                       const float *factors, int d)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        long long at = b * to.batch + h * to.head + (row + 8 * i) * to.row + mma_column(lane, 0);

        if (row + 8 * i >= end) continue;
#pragma unroll
        for (int n = 0; n < D; n += 8) {
            pack<T, 2> two;

            if (n >= d) break;
            for (int k = 0; k < 2; k++) type_of(own[n / 8].v[2 * i + k] * factors[i], &two.v[k]);
            if (to.aligned)
                pack_store(global_as<T>(to.data), (size_t)(at + n), two);
            else
                for (int k = 0; k < 2; k++) global_as<T>(to.data)[at + n + k] = two.v[k];
        }
    }
}

#endif
