/* ref.c - element access for the reference kernels. */
#include "kernels/cpu/ref/ref.h"

static char *element(const struct view *v, size_t i) { return (char *)v->data + view_offset(v, i) * (ptrdiff_t)ls_dtype_bytes(v->dtype); }

double ref_get(const struct view *v, size_t i)
{
    ptrdiff_t at = view_offset(v, i);
    double x;

    switch (v->dtype) {
    case LS_F32: return ((const float *)v->data)[at];
    case LS_F64: return ((const double *)v->data)[at];
    case LS_BF16: return ls_bf16_to_f32(((const uint16_t *)v->data)[at]);
    case LS_F16: return ls_f16_to_f32(((const uint16_t *)v->data)[at]);
    default: break;
    }
    ls_convert(&x, LS_F64, element(v, i), v->dtype, 1);
    return x;
}

int64_t ref_int(const struct view *v, size_t i)
{
    int64_t x;

    ls_convert(&x, LS_I64, element(v, i), v->dtype, 1);
    return x;
}

void ref_put_int(const struct view *v, size_t i, int64_t x) { ls_convert(element(v, i), v->dtype, &x, LS_I64, 1); }

void ref_put(const struct view *v, size_t i, double x)
{
    if (v->dtype == LS_F32) {
        ((float *)v->data)[view_offset(v, i)] = (float)x;
        return;
    }
    ls_convert(element(v, i), v->dtype, &x, LS_F64, 1);
}

bool ref_accepts(const struct call *c)
{
    (void)c;
    return true;
}
