/* simd_math.h - exp and functions based on it, for vectors of floats.
 *
 *   vexp      2^n poly(r), x = n ln 2 + r, |r| <= ln 2 / 2; relative error at most 1.3e-7 (2 units in the last place)
 *             over the range of floats; results below 2^-149 are 0, above the largest float infinity; NaN stays
 *   vsigmoid  1 / (1 + exp(-x)); relative error at most 2e-7
 *   vphi      the normal distribution function, (1 + erf(x / sqrt 2)) / 2. With a = |x| / sqrt 2, t = 1 / (1 + 0.3 a):
 *             exp(-a^2) t poly(t) / 2, or one minus that for x > 0; relative error at most 2e-6 from -4 on,
 *             absolute error at most 3e-7 everywhere
 * The polynomials interpolate at Chebyshev nodes, the last one over 0 <= a <= 10.
 */
#ifndef LS_KERNELS_CPU_SIMD_SIMD_MATH_H
#define LS_KERNELS_CPU_SIMD_SIMD_MATH_H

#include "kernels/cpu/simd/simd.h"

#ifdef SIMD_AVX512
INLINE vf vscale2(vf x, vf n) { return _mm512_scalef_ps(x, n); }
#else
/* x 2^n in two steps: n reaches past the exponents of a float on both sides. */
INLINE vf vscale2(vf x, vf n)
{
    __m256i all = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(all, 1), rest = _mm256_sub_epi32(all, half);
    __m256i one = viset(127);

    x *= _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, one), 23));
    return x * _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, one), 23));
}
#endif

INLINE vf vexp(vf x)
{
    x = vmin(vset(89.0f), vmax(vset(-104.0f), x));
    vf n = vround(x * vset(1.44269504f));
    vf r = x - n * vset(0.693359375f);
    r = r - n * vset(-2.12194440e-4f);
    vf r2 = r * r; /* in pairs of terms: the loops that call this are limited by latency, not by throughput */
    vf y =
        r2 * (r2 * (r2 * vset(0.00139411189f) + (r * vset(0.00837513477f) + vset(0.0416663528f))) + (r * vset(0.166664154f) + vset(0.5f))) +
        (r + vset(1.0f));
    return vscale2(y, n);
}

INLINE vf vsigmoid(vf x) { return vset(1.0f) / (vset(1.0f) + vexp(vset(0.0f) - x)); }

INLINE vf vphi(vf x)
{
    vf a = vabs(x) * vset(0.707106781f), t = vset(1.0f) / (vset(1.0f) + vset(0.3f) * a);
    vf y = t * vset(-0.130770877f) + vset(0.491934271f);

    y = y * t + vset(-0.526151663f);
    y = y * t + vset(0.564514242f);
    y = y * t + vset(-0.106983363f);
    y = y * t + vset(0.220539169f);
    y = y * t + vset(0.146796022f);
    y = y * t + vset(0.17094912f);
    y = y * t + vset(0.169173058f);
    y = vset(0.5f) * t * y * vexp(vset(0.0f) - a * a);
    return vselect(vless(x, vset(0.0f)), y, vset(1.0f) - y);
}

#endif
