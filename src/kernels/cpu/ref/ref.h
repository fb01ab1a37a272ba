/* ref.h - element access for the reference kernels.
 *
 * The reference is written for clarity: one loop or one ref_dot() per sum of the formula, elements by row-major index for any strides and
 * floating types, and every intermediate a double.
 */
#ifndef LS_KERNELS_CPU_REF_REF_H
#define LS_KERNELS_CPU_REF_REF_H

#include "base/base.h"
#include "kernels/kernel.h"

double ref_get_converted(const struct view *v, size_t i); /* for any type */
void ref_put_converted(const struct view *v, size_t i, double x);

/* Element i in row-major order. */
static inline double ref_get(const struct view *v, size_t i)
{
    switch (v->dtype) {
    case LS_F32: return ((const float *)v->data)[view_offset(v, i)];
    case LS_F64: return ((const double *)v->data)[view_offset(v, i)];
    case LS_BF16: return ls_bf16_to_f32(((const uint16_t *)v->data)[view_offset(v, i)]);
    case LS_F16: return ls_f16_to_f32(((const uint16_t *)v->data)[view_offset(v, i)]);
    default: return ref_get_converted(v, i);
    }
}

/* Rounds once, to nearest even. */
static inline void ref_put(const struct view *v, size_t i, double x)
{
    if (v->dtype == LS_F32)
        ((float *)v->data)[view_offset(v, i)] = (float)x;
    else
        ref_put_converted(v, i, x);
}

/* Element i of a view of i32 or i64. */
static inline int64_t ref_int(const struct view *v, size_t i)
{
    return v->dtype == LS_I32 ? ((const int32_t *)v->data)[view_offset(v, i)] : ((const int64_t *)v->data)[view_offset(v, i)];
}

void ref_put_int(const struct view *v, size_t i, int64_t x);
static inline void ref_add(const struct view *v, size_t i, double x) { ref_put(v, i, ref_get(v, i) + x); }

/* sum + x[0] v[i] + x[1] v[i + step] + .. of n products, added one after another. */
double ref_dot_doubles(double sum, const double *x, const struct view *v, size_t i, size_t step, size_t n);
/* sum + a[i] b[j] + a[i + a_step] b[j + b_step] + .. of n products, added one after another. */
double ref_dot(double sum, const struct view *a, size_t i, size_t a_step, const struct view *b, size_t j, size_t b_step, size_t n);
/* to[k] += factor v[i + k], k < n */
void ref_add_scaled(double *to, double factor, const struct view *v, size_t i, size_t n);

/* accepts() of every reference entry. */
bool ref_accepts(const struct call *c);

#define REF_ROW(id, function, bytes)                                                                                                   \
    {                                                                                                                                  \
        .op = OP_##id, .name = "reference", .device = "cpu", .priority = PRIORITY_REFERENCE, .accepts = ref_accepts, .scratch = bytes, \
        .run = function                                                                                                                \
    }

#endif
