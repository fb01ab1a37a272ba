/* philox.h - blocks of Philox4x32-10 (base/rng.h), LANES / 2 at once: a vector of 64-bit lanes has a word in the low half of each lane; the
 * high halves are ignored.
 */
#ifndef LS_KERNELS_CPU_SIMD_PHILOX_H
#define LS_KERNELS_CPU_SIMD_PHILOX_H

#include "kernels/cpu/simd/simd.h"

enum { PHILOX_ROUNDS = 10 };

typedef uint64_t vu __attribute__((vector_size(4 * LANES)));
typedef uint32_t vw __attribute__((vector_size(4 * LANES)));

#ifdef SIMD_AVX512
INLINE vu multiply_low(vu a, vu b) { return (vu)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
#else
INLINE vu multiply_low(vu a, vu b) { return (vu)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
#endif

/* word[k] lane n: word k of block `block + n`. */
INLINE void philox_blocks(uint64_t seed, uint64_t stream, uint64_t block, vu word[4])
{
    vu zero = { 0 }, lane;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int i = 0; i < LANES / 2; i++) lane[i] = (uint64_t)i;
    vu a = lane + block;
    vu b = a >> 32;
    vu c = zero + (uint32_t)stream;
    vu d = zero + (stream >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        vu left = multiply_low(a, zero + 0xD2511F53u), right = multiply_low(c, zero + 0xCD9E8D57u);

        a = (right >> 32) ^ b ^ (zero + k0);
        b = right;
        c = (left >> 32) ^ d ^ (zero + k1);
        d = left;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word[0] = a;
    word[1] = b;
    word[2] = c;
    word[3] = d;
}

/* out[k] = rng_u32(seed, stream, 4 * block + k), k < 2 * LANES: four words a block. */
INLINE void philox_words(uint64_t seed, uint64_t stream, uint64_t block, uint32_t *out)
{
    vu word[4], pairs[2];

    philox_blocks(seed, stream, block, word);
    vu even = (word[0] & 0xffffffff) | word[1] << 32;
    vu odd = (word[2] & 0xffffffff) | word[3] << 32;
#ifdef SIMD_AVX512
    pairs[0] = __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11);
    pairs[1] = __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    pairs[0] = __builtin_shufflevector(even, odd, 0, 4, 1, 5);
    pairs[1] = __builtin_shufflevector(even, odd, 2, 6, 3, 7);
#endif
    memcpy(out, pairs, sizeof pairs);
}

/* out[k] = rng_u32(seed, stream, from + k), k < n <= LANES. */
INLINE void philox_u32(uint64_t seed, uint64_t stream, uint64_t from, size_t n, uint32_t *out)
{
    uint32_t word[2 * LANES];

    philox_words(seed, stream, from / 4, word);
    memcpy(out, word + from % 4, n * sizeof *out);
}

#endif
