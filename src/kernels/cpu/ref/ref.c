/* ref.c - element access for the reference kernels. */
#include "kernels/cpu/ref/ref.h"

static char *ref_element(const struct view *v, size_t i)
{
    return (char *)v->data + view_offset(v, i) * (ptrdiff_t)ls_dtype_bytes(v->dtype);
}

double ref_get_converted(const struct view *v, size_t i)
{
    double x;

    ls_convert(&x, LS_F64, ref_element(v, i), v->dtype, 1);
    return x;
}

void ref_put_int(const struct view *v, size_t i, int64_t x) { ls_convert(ref_element(v, i), v->dtype, &x, LS_I64, 1); }

void ref_put_converted(const struct view *v, size_t i, double x) { ls_convert(ref_element(v, i), v->dtype, &x, LS_F64, 1); }

/* ---- elements that follow each other ---- */

enum { RUN = 64 }; /* that are read at a time */

/* Whether elements i, i + step, .. are at even distances in memory: along one dim, or anywhere in a contiguous view. */
static bool even_stride(const struct view *v, size_t i, size_t step, size_t n, ptrdiff_t *stride)
{
    size_t inner = 1;

    for (int d = v->ndim - 1; d >= 0; inner *= v->size[d--])
        if (step == inner && i / inner % v->size[d] + n <= v->size[d]) {
            *stride = v->stride[d];
            return true;
        }
    *stride = (ptrdiff_t)step;
    return view_is_contiguous(v);
}

/* out[n] = elements i, i + step, ..; n is at most RUN. */
static void load(const struct view *v, size_t i, size_t step, size_t n, double *out)
{
    uint16_t half[RUN];
    ptrdiff_t stride;
    bool even = even_stride(v, i, step, n, &stride);

    if (even && stride == 1) {
        ls_convert(out, LS_F64, ref_element(v, i), v->dtype, n);
        return;
    }
    if (!even || !ls_dtype_is_float(v->dtype)) {
        for (size_t k = 0; k < n; k++) out[k] = ref_get(v, i + k * step);
        return;
    }
    ptrdiff_t at = view_offset(v, i);
    if (v->dtype == LS_F32)
        for (size_t k = 0; k < n; k++, at += stride) out[k] = ((const float *)v->data)[at];
    else if (v->dtype == LS_F64)
        for (size_t k = 0; k < n; k++, at += stride) out[k] = ((const double *)v->data)[at];
    else {
        for (size_t k = 0; k < n; k++, at += stride) half[k] = ((const uint16_t *)v->data)[at];
        ls_convert(out, LS_F64, half, v->dtype, n);
    }
}

double ref_dot_doubles(double sum, const double *x, const struct view *v, size_t i, size_t step, size_t n)
{
    double y[RUN];

    for (size_t first = 0, count; first < n; first += count) {
        count = MIN(n - first, (size_t)RUN);
        load(v, i + first * step, step, count, y);
        for (size_t k = 0; k < count; k++) sum += x[first + k] * y[k];
    }
    return sum;
}

double ref_dot(double sum, const struct view *a, size_t i, size_t a_step, const struct view *b, size_t j, size_t b_step, size_t n)
{
    double x[RUN];

    for (size_t first = 0, count; first < n; first += count) {
        count = MIN(n - first, (size_t)RUN);
        load(a, i + first * a_step, a_step, count, x);
        sum = ref_dot_doubles(sum, x, b, j + first * b_step, b_step, count);
    }
    return sum;
}

void ref_add_scaled(double *to, double factor, const struct view *v, size_t i, size_t n)
{
    double x[RUN];

    for (size_t first = 0, count; first < n; first += count) {
        count = MIN(n - first, (size_t)RUN);
        load(v, i + first, 1, count, x);
        for (size_t k = 0; k < count; k++) to[first + k] += factor * x[k];
    }
}

bool ref_accepts(const struct call *c)
{
    (void)c;
    return true;
}
