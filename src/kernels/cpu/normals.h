/* normals.h - normally distributed numbers (base/rng.h), many at once: the initial values of parameters.
 *
 * normals() computes LANES numbers at once, in double, by another way than the C library's functions, and therefore differs from it in the
 * last bits of the double. Rounded to f32, bf16 or f16, the numbers are the same bit for bit: one that is closer than NORMALS_MARGIN units
 * in the last place to where the rounding changes is computed again by rng_normal().
 */
#ifndef LS_KERNELS_CPU_NORMALS_H
#define LS_KERNELS_CPU_NORMALS_H

#include <stddef.h>
#include <stdint.h>

/* In units in the last place of a double: the vectors' error is below a sixteenth of it (test_normals). */
enum { NORMALS_MARGIN = 256 };

/* out[i] rounds to the same f32, bf16 and f16 as scale * rng_normal(seed, stream, from + i). */
void normals(uint64_t seed, uint64_t stream, uint64_t from, size_t n, double scale, double *out);

/* The functions that normals() calls, by instruction set: simd/normals.c. */
typedef void normals_fn(uint64_t seed, uint64_t stream, uint64_t from, size_t n, double scale, double *out);
normals_fn normals_range_avx2, normals_range_avx512;

#endif
