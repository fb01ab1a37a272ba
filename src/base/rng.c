/* rng.c - Philox4x32-10 and the distributions drawn from it.
 *
 * Counter: words 0, 1 a block number (low word first), words 2, 3 the stream. Key: the seed, low word first.
 *   u32      word index % 4 of block index / 4
 *   uniform  words 2h, 2h + 1 of block index / 2, h = index % 2:  (word[2h] >> 5, word[2h + 1] >> 6) as 53 bits / 2^53
 *   normal   block index / 2 holds the uniforms u, v: sqrt(-2 ln(1 - u)) times cos 2 pi v (even index) or sin (odd)
 * One stream serves one of the three: their blocks are the same.
 *
 * Reference: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3".
 */
#include "base/rng.h"

#include <math.h>
#include "base/base.h"

enum { PHILOX_ROUNDS = 10, FEISTEL_ROUNDS = 8, FEISTEL_LEAST_HALF = 3 };

void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3], k0 = key[0], k1 = key[1];

    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t left = (uint64_t)0xD2511F53u * a, right = (uint64_t)0xCD9E8D57u * c;

        a = (uint32_t)(right >> 32) ^ b ^ k0;
        b = (uint32_t)right;
        c = (uint32_t)(left >> 32) ^ d ^ k1;
        d = (uint32_t)left;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = a;
    out[1] = b;
    out[2] = c;
    out[3] = d;
}

static void rng_draw(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4])
{
    const uint32_t counter[4] = { (uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream, (uint32_t)(stream >> 32) };
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };

    rng_philox(counter, key, out);
}

uint64_t rng_stream(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

uint32_t rng_u32(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t word[4];

    rng_draw(seed, stream, index / 4, word);
    return word[index % 4];
}

static double unit(const uint32_t word[2]) /* 53 bits to [0, 1) */
{
    return ((double)(word[0] >> 5) * 67108864.0 + (double)(word[1] >> 6)) / 9007199254740992.0;
}

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t word[4];

    rng_draw(seed, stream, index / 2, word);
    return unit(word + index % 2 * 2);
}

double rng_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t word[4];

    rng_draw(seed, stream, index / 2, word);
    double radius = sqrt(-2.0 * log1p(-unit(word))), angle = 6.283185307179586477 * unit(word + 2);
    return radius * (index % 2 ? sin(angle) : cos(angle));
}

void rng_normals(uint64_t seed, uint64_t stream, uint64_t from, size_t n, double *out)
{
    size_t i = 0;

    for (; i < n && (from + i) % 2; i++) out[i] = rng_normal(seed, stream, from + i);
    for (; i + 1 < n; i += 2) { /* both numbers of a block */
        uint32_t word[4];

        rng_draw(seed, stream, (from + i) / 2, word);
        double radius = sqrt(-2.0 * log1p(-unit(word))), angle = 6.283185307179586477 * unit(word + 2);
        out[i] = radius * cos(angle);
        out[i + 1] = radius * sin(angle);
    }
    for (; i < n; i++) out[i] = rng_normal(seed, stream, from + i);
}

/* A permutation of the numbers with 2 * half bits: Feistel rounds keyed by (seed, stream, round). */
static uint64_t feistel(uint64_t seed, uint64_t stream, uint64_t x, unsigned half)
{
    uint64_t mask = ((uint64_t)1 << half) - 1, left = x >> half, right = x & mask;

    for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
        uint32_t word[4];

        rng_draw(seed, stream, round << 32 | right, word);
        uint64_t mixed = left ^ (word[0] & mask);
        left = right;
        right = mixed;
    }
    return left << half | right;
}

/* The permutation acts on the least 4^half >= n numbers; a step that lands outside [0, n) is followed by
 * another, which ends inside because a permutation's cycles return. */
uint64_t rng_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n)
{
    unsigned half = FEISTEL_LEAST_HALF;

    ASSERT(index < n);
    while (half < 32 && (n - 1) >> (2 * half)) half++;
    do index = feistel(seed, stream, index, half);
    while (index >= n);
    return index;
}
