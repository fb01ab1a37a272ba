/* reduce.h - element-wise sums and maxima, used by every collective that reduces.
 *
 * The order of operands is the order of the call, so the same call gives the same bits. bf16 and f16 are summed in f32.
 * Integers wrap. A maximum with a NaN is NaN. Averages divide floating types only: x / divide, rounded once. Buffers are aligned to their
 * elements; dst may be a source, any other overlap is an error.
 */
#ifndef LS_COMM_REDUCE_H
#define LS_COMM_REDUCE_H

#include "lockstep/comm.h"

/* dst[count] = dst op src. Half types are rounded here: for lists of many sums use reduce_wide(). AVG sums like SUM. */
void reduce_into(void *dst, const void *src, size_t count, ls_dtype type, ls_redop op);

/* dst[count] = (src[0] op src[1] op ... src[k - 1]) / divide, from the left; half types are rounded once, at the end.
 * divide: number of ranks for LS_AVG, else 1. k >= 1. */
void reduce_many(void *dst, const void *const *src, int k, size_t count, ls_dtype type, ls_redop op, int divide);

/* For half types. dst[count] = dst op src, src converted. */
void reduce_wide(float *dst, const void *src, size_t count, ls_dtype type, ls_redop op);
/* dst[count] = src converted. */
void reduce_widen(float *dst, const void *src, size_t count, ls_dtype type);
/* dst[count] = src / divide, rounded to type. */
void reduce_narrow(void *dst, const float *src, size_t count, ls_dtype type, int divide);

/* x[count] = x / divide, floating types. divide == 1 does nothing. */
void reduce_divide(void *x, size_t count, ls_dtype type, int divide);

/* For tests: no higher instruction set is used, even if the processor has it. Call before any operation runs. */
enum reduce_isa { REDUCE_PLAIN, REDUCE_AVX2, REDUCE_AVX512 };
void reduce_at_most(enum reduce_isa isa);

#endif
