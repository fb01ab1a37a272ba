/* philox.h - blocks of Philox4x32-10 (base/rng.h). */
#ifndef LS_KERNELS_CUDA_PHILOX_H
#define LS_KERNELS_CUDA_PHILOX_H

#include "kernels/cuda/launch.h"

/* The four words of a block. */
static __device__ inline void philox(unsigned long long seed, unsigned long long stream, unsigned long long block, unsigned word[4])
{
    unsigned a = (unsigned)block, b = (unsigned)(block >> 32), x = (unsigned)stream, d = (unsigned)(stream >> 32);
    unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);

    for (int round = 0; round < 10; round++) {
        unsigned left = __umulhi(0xD2511F53u, a), right = __umulhi(0xCD9E8D57u, x), low = 0xD2511F53u * a;

        a = right ^ b ^ k0;
        b = 0xCD9E8D57u * x;
        x = left ^ d ^ k1;
        d = low;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word[0] = a;
    word[1] = b;
    word[2] = x;
    word[3] = d;
}

/* word[n], kept in registers. */
static __device__ inline unsigned philox_word(const unsigned word[4], unsigned n)
{
    return n < 2 ? (n ? word[1] : word[0]) : (n == 2 ? word[2] : word[3]);
}

#endif
