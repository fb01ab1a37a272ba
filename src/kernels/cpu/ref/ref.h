/* ref.h - element access for the reference kernels.
 *
 * The reference is written for clarity: one loop per sum of the formula, elements by row-major index for any strides and floating types,
 * and every intermediate a double.
 */
#ifndef LS_KERNELS_CPU_REF_REF_H
#define LS_KERNELS_CPU_REF_REF_H

#include "base/base.h"
#include "kernels/kernel.h"

/* Element i in row-major order. */
double ref_get(const struct view *v, size_t i);
int64_t ref_int(const struct view *v, size_t i); /* of a view of i32 or i64 */
void ref_put_int(const struct view *v, size_t i, int64_t x);
void ref_put(const struct view *v, size_t i, double x); /* rounds once, to nearest even */
static inline void ref_add(const struct view *v, size_t i, double x) { ref_put(v, i, ref_get(v, i) + x); }

/* accepts() of every reference entry. */
bool ref_accepts(const struct call *c);

#define REF_ROW(id, function, bytes)                                                                                                  \
    {                                                                                                                                 \
        .op = OP_##id, .name = "reference", .priority = PRIORITY_REFERENCE, .accepts = ref_accepts, .scratch = bytes, .run = function \
    }

#endif
