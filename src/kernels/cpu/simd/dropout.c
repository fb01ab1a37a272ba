/* dropout.c - dropout with the mask drawn from Philox4x32-10 as it goes, never stored.
 *
 * Element i is kept when rng_uniform(seed, stream ^ step, index) >= p: block index / 2 of the generator gives two
 * elements, words 0, 1 the even and words 2, 3 the odd one (rng.c). A vector of 64-bit lanes runs LANES / 2 blocks at
 * once, each word in the low half of its lane; what stands in the high halves is ignored until the end. With
 * U the 53 random bits, U / 2^53 >= p is the same as U >= ceil(p 2^53).
 */
#include <math.h>
#include "base/rng.h"
#include "kernels/cpu/simd/simd.h"

typedef uint64_t vu __attribute__((vector_size(4 * LANES)));

enum { ROUNDS = 10 };

#ifdef SIMD_AVX512
INLINE vu multiply_low(vu a, vu b) { return (vu)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
#else
INLINE vu multiply_low(vu a, vu b) { return (vu)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
#endif

struct draw {
    uint64_t seed, stream, threshold;
    float scale;
};

INLINE vu bits53(vu high, vu low) { return ((high & 0xffffffff) >> 5) << 26 | (low & 0xffffffff) >> 6; }

/* All bits of a 32-bit lane for each of the LANES elements from 2 * block on that is kept. */
INLINE vu keep_mask(const struct draw *z, uint64_t block)
{
    vu zero = { 0 }, lane, a, b, c, d;
    uint32_t k0 = (uint32_t)z->seed, k1 = (uint32_t)(z->seed >> 32);

    for (int i = 0; i < LANES / 2; i++) lane[i] = (uint64_t)i;
    a = lane + block;
    b = a >> 32;
    c = zero + (uint32_t)z->stream;
    d = zero + (z->stream >> 32);
    for (int round = 0; round < ROUNDS; round++) {
        vu left = multiply_low(a, zero + 0xD2511F53u), right = multiply_low(c, zero + 0xCD9E8D57u);

        a = (right >> 32) ^ b ^ (zero + k0);
        b = right;
        c = (left >> 32) ^ d ^ (zero + k1);
        d = left;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return ((vu)(bits53(a, b) >= zero + z->threshold) & 0xffffffff) | ((vu)(bits53(c, d) >= zero + z->threshold) & ~(uint64_t)0xffffffff);
}

INLINE void dropout_of(ls_dtype T, const struct draw *z, uint64_t first, const void *x, void *y, size_t begin, size_t end)
{
    if ((first + begin) % 2 && begin < end) { /* the second element of a block */
        vu kept = keep_mask(z, (first + begin) / 2) >> 32;
        vf one = load(T, x, begin, 1) * vset(z->scale);

        store(T, y, begin, 1, (vf)((vu)one & kept));
        begin++;
    }
    EACH(i, n, begin, end)
    store(T, y, i, n, (vf)((vu)(load(T, x, i, n) * vset(z->scale)) & keep_mask(z, (first + i) / 2)));
}

static void dropout_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    double p = c->attr.dropout.p;
    struct draw z = { c->attr.dropout.seed, c->attr.dropout.stream ^ (uint64_t) * (const int64_t *)c->in[1].data,
                      (uint64_t)ceil(p * 0x1p53), (float)(1 / (1 - p)) };

    (void)thread;
    for (size_t i = begin, run; i < end; i += run) {
        uint64_t index = dropout_index(c, i, &run);

        run = MIN(run, end - i);
        BY_TYPE(c->in[0].dtype, T, dropout_of(T, &z, index - i, c->in[0].data, c->out[0].data, i, i + run))
    }
}

static bool dropout_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_plain(&c->out[0]) && c->in[0].dtype == c->out[0].dtype && c->in[1].dtype == LS_I64 &&
           c->attr.dropout.p >= 0 && c->attr.dropout.p < 1;
}

static void dropout(const struct call *c) { threads_for(view_count(&c->in[0]), GRAIN, dropout_range, (void *)c); }

const struct kernel SIMD_TABLE(dropout)[] = {
    SIMD_ROW(DROPOUT, dropout_accepts, NULL, dropout),
    KERNELS_END,
};
