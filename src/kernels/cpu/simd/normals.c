/* normals.c - Box-Muller (base/rng.c) on LANES / 2 blocks of Philox at once, in double. kernels/cpu/normals.h specifies the results.
 *
 *   log w        w = 2^k m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh s, s = (m - 1) / (m + 1), by its series up to s^19
 *   sin, cos a   a = q pi/2 + r with q = 0 .. 4, |r| <= pi/4; pi/2 in two parts; the series of both up to r^17, exchanged and negated by q
 * a is the same double as in rng.c, where it is rounded once; w = 1 - u is exact.
 */
#include "base/rng.h"
#include "kernels/cpu/normals.h"
#include "kernels/cpu/simd/philox.h"

#define normals_range SIMD_PASTE(normals_, range, SIMD_ISA)

enum { BLOCKS = LANES / 2 };
typedef int64_t vs __attribute__((vector_size(4 * LANES)));
static const double HALVED = 0x1.8p52; /* added to a small integer, which is then in the last bits */

#ifdef SIMD_AVX512
INLINE vd normals_sqrt(vd x) { return _mm512_sqrt_pd(x); }
INLINE vd normals_less(vd a, vd b, vd c) { return _mm512_fnmadd_pd(a, b, c); } /* c - a b, rounded once */
INLINE unsigned normals_signs(vu x) { return _mm512_movepi64_mask((__m512i)x); }
#else
INLINE vd normals_sqrt(vd x) { return _mm256_sqrt_pd(x); }
INLINE vd normals_less(vd a, vd b, vd c) { return _mm256_fnmadd_pd(a, b, c); }
INLINE unsigned normals_signs(vu x) { return (unsigned)_mm256_movemask_pd((__m256d)x); }
#endif

INLINE vd normals_set(double x) { return (vd){ 0 } + x; }

/* 53 random bits as a number in [0, 1), as in rng.c. */
INLINE vd normals_unit(vu high, vu low)
{
    const uint64_t two52 = 0x4330000000000000u;
    vd top = (vd)((high & 0xffffffff) >> 5 | two52) - 0x1p52, rest = (vd)((low & 0xffffffff) >> 6 | two52) - 0x1p52;

    return (top * 0x1p26 + rest) * 0x1p-53;
}

INLINE vd normals_log(vd w)
{
    vu bits = (vu)w, above = bits - 0x3fe6a09e667f3bcdu, k = (vu)((vs)above >> 52);
    vd m = (vd)(bits - (k << 52)), power = (vd)(k + 0x4338000000000000u) - HALVED;
    vd f = m - 1.0, s = f / (f + 2.0), z = s * s, p = normals_set(2.0 / 19);

    for (int n = 17; n > 1; n -= 2) p = p * z + 2.0 / n;
    return power * 0x1.62e42fefa39efp-1 + (s * z * p + 2.0 * s);
}

INLINE void normals_turn(vd angle, vd *sine, vd *cosine)
{
    vd q = (angle * 0x1.45f306dc9c883p-1 + HALVED) - HALVED;
    vu quarter = (vu)(q + HALVED), swap = -(quarter & 1);
    vd r = normals_less(q, normals_set(0x1.1a62633145c07p-54), normals_less(q, normals_set(0x1.921fb54442d18p0), angle));
    vd z = r * r, s = normals_set(1.0 / 355687428096000), c = normals_set(1.0 / 20922789888000);

    s = s * z - 1.0 / 1307674368000;
    s = s * z + 1.0 / 6227020800;
    s = s * z - 1.0 / 39916800;
    s = s * z + 1.0 / 362880;
    s = s * z - 1.0 / 5040;
    s = s * z + 1.0 / 120;
    s = s * z - 1.0 / 6;
    s = s * z * r + r;
    c = c * z - 1.0 / 87178291200;
    c = c * z + 1.0 / 479001600;
    c = c * z - 1.0 / 3628800;
    c = c * z + 1.0 / 40320;
    c = c * z - 1.0 / 720;
    c = c * z + 1.0 / 24;
    c = c * z - 0.5;
    c = c * z + 1.0;
    vu si = ((vu)s & ~swap) | ((vu)c & swap);
    vu ci = ((vu)c & ~swap) | ((vu)s & swap);
    *sine = (vd)(si ^ (quarter & 2) << 62);
    *cosine = (vd)(ci ^ ((quarter + 1) & 2) << 62);
}

/* Sets the sign bit of each number whose rounding to f32 or to a half type the error might change. All boundaries of these roundings have
 * zeros in the last 28 bits of a double; below 2^-100, where f32 has fewer bits, all numbers count. */
INLINE vu normals_unsure(vd y)
{
    vu bits = (vu)y, last = (bits + NORMALS_MARGIN) & 0xfffffff, size = bits & 0x7fffffffffffffffu;

    return (last - 2 * NORMALS_MARGIN) | (size - 0x39b0000000000000u);
}

/* out[2 * BLOCKS]: the numbers of the blocks from `block` on. */
INLINE void normals_blocks(uint64_t seed, uint64_t stream, uint64_t block, double scale, double *out)
{
    vu word[4];
    vd even, odd;

    philox_blocks(seed, stream, block, word);
    vd radius = normals_sqrt(-2.0 * normals_log(1.0 - normals_unit(word[0], word[1]))) * scale;
    normals_turn(6.283185307179586477 * normals_unit(word[2], word[3]), &odd, &even);
    even *= radius;
    odd *= radius;
    for (int i = 0; i < BLOCKS; i++) {
        out[2 * i] = even[i];
        out[2 * i + 1] = odd[i];
    }
    unsigned redo = normals_signs(normals_unsure(even)) | normals_signs(normals_unsure(odd));
    for (unsigned i = 0; redo >> i; i++)
        if (redo >> i & 1)
            for (unsigned k = 2 * i; k < 2 * i + 2; k++) out[k] = rng_normal(seed, stream, 2 * block + k) * scale;
}

void normals_range(uint64_t seed, uint64_t stream, uint64_t from, size_t n, double scale, double *out)
{
    double some[LANES];

    for (size_t i = 0, skip = from % 2, take; i < n; i += take, skip = 0) {
        take = MIN(n - i, LANES - skip);
        if (take == LANES) {
            normals_blocks(seed, stream, (from + i) / 2, scale, out + i);
            continue;
        }
        normals_blocks(seed, stream, (from + i) / 2, scale, some);
        memcpy(out + i, some + skip, take * sizeof *out);
    }
}
