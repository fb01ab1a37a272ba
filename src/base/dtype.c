/* dtype.c - the table of element types, and conversions between all of them.
 *
 * Every conversion rounds once: a value that passes through a wider type on its way is rounded there to odd
 * (truncated, last bit set when inexact), which the final rounding to nearest even cannot tell from the
 * exact value. A value that does not fit an integer type becomes the nearest that does; fractions are truncated towards zero; NaN becomes
 * 0.
 */
#include "lockstep/dtype.h"

#include <math.h>
#include <string.h>
#include "base/base.h"

struct dtype_info {
    const char *name, *safetensors;
    size_t bytes;
    int floating;
};

static const struct dtype_info infos[LS_DTYPES] = {
#define DTYPE_INFO(id, name, bytes, floating, safetensors) [LS_##id] = { name, safetensors, bytes, floating },
    LS_DTYPE_MAP(DTYPE_INFO)
#undef DTYPE_INFO
};

static const struct dtype_info *info(ls_dtype t)
{
    ASSERT((unsigned)t < LS_DTYPES);
    return &infos[t];
}

size_t ls_dtype_bytes(ls_dtype t) { return info(t)->bytes; }
int ls_dtype_is_float(ls_dtype t) { return info(t)->floating; }
const char *ls_dtype_name(ls_dtype t) { return info(t)->name; }
const char *ls_dtype_safetensors(ls_dtype t) { return info(t)->safetensors; }

int ls_dtype_parse(const char *name, ls_dtype *out)
{
    for (int t = 0; t < LS_DTYPES; t++)
        if (strcmp(name, infos[t].name) == 0 || strcmp(name, infos[t].safetensors) == 0) {
            *out = (ls_dtype)t;
            return 0;
        }
    return -1;
}

static uint32_t bits_of(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

float ls_bf16_to_f32(uint16_t h) { return float_of((uint32_t)h << 16); }

uint16_t ls_f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);

    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40); /* NaN, made quiet */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* f16: sign 1, exponent 5 (bias 15), mantissa 10. No branches, so that loops over it are vectorized. */
float ls_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, size = (uint32_t)(h & 0x7fff) << 13;
    uint32_t tiny = bits_of(float_of(size + 0x38800000) - 0x1p-14f); /* (1 + mantissa / 2^10) 2^-14 - 2^-14 */
    uint32_t bits = size < 0x00800000 ? tiny : size + (size < 0x0f800000 ? 0x38000000 : 0x70000000);

    return float_of(sign | bits);
}

uint16_t ls_f32_to_f16(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;

    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff)); /* NaN, made quiet */
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);                       /* from 65520 on: infinity */
    if (size >= 0x38800000)                                                         /* from 2^-14 on: normal */
        return (uint16_t)(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
    /* A multiple of 2^-24: adding 0.5 leaves it, rounded by the hardware, in the last bits of the sum. */
    return (uint16_t)(sign | (bits_of(float_of(size) + 0.5f) - 0x3f000000));
}

static float f64_to_f32_odd(double d)
{
    float f = (float)d;
    uint32_t u = bits_of(f);

    if ((double)f == d || d != d) return f;
    if (fabs((double)f) > fabs(d)) u--; /* towards zero */
    return float_of(u | 1);
}

static double i64_to_f64_odd(int64_t v)
{
    uint64_t size = v < 0 ? -(uint64_t)v : (uint64_t)v;

    if (size >> 53) size = (size & ~(uint64_t)0xfff) | (size & 0x800) | (uint64_t)((size & 0x7ff) != 0) << 11;
    return v < 0 ? -(double)size : (double)size;
}

/* An element between types: integers are held as i64, floating values as f64; both are exact. */
struct scalar {
    int floating;
    int64_t i;
    double f;
};

static struct scalar dtype_load(const void *src, ls_dtype from, size_t at)
{
    switch (from) {
    case LS_F32: return (struct scalar){ 1, 0, ((const float *)src)[at] };
    case LS_BF16: return (struct scalar){ 1, 0, ls_bf16_to_f32(((const uint16_t *)src)[at]) };
    case LS_F16: return (struct scalar){ 1, 0, ls_f16_to_f32(((const uint16_t *)src)[at]) };
    case LS_F64: return (struct scalar){ 1, 0, ((const double *)src)[at] };
    case LS_I64: return (struct scalar){ 0, ((const int64_t *)src)[at], 0 };
    case LS_I32: return (struct scalar){ 0, ((const int32_t *)src)[at], 0 };
    case LS_U16: return (struct scalar){ 0, ((const uint16_t *)src)[at], 0 };
    case LS_U8: return (struct scalar){ 0, ((const uint8_t *)src)[at], 0 };
    case LS_DTYPES: break;
    }
    ASSERT(!"a dtype of the table");
    return (struct scalar){ 0 };
}

static int64_t to_int(struct scalar s, int64_t least, int64_t most)
{
    if (!s.floating) return MIN(MAX(s.i, least), most);
    if (s.f != s.f) return 0;
    if (s.f <= (double)least) return least;
    if (s.f >= (double)most) return most;
    return (int64_t)s.f;
}

static float to_f32(struct scalar s) { return s.floating ? (float)s.f : (float)s.i; }
static float to_f32_odd(struct scalar s) { return f64_to_f32_odd(s.floating ? s.f : i64_to_f64_odd(s.i)); }

static void dtype_store(void *dst, ls_dtype to, size_t at, struct scalar s)
{
    switch (to) {
    case LS_F32: ((float *)dst)[at] = to_f32(s); return;
    case LS_BF16: ((uint16_t *)dst)[at] = ls_f32_to_bf16(to_f32_odd(s)); return;
    case LS_F16: ((uint16_t *)dst)[at] = ls_f32_to_f16(to_f32_odd(s)); return;
    case LS_F64: ((double *)dst)[at] = s.floating ? s.f : (double)s.i; return;
    case LS_I64: ((int64_t *)dst)[at] = to_int(s, INT64_MIN, INT64_MAX); return;
    case LS_I32: ((int32_t *)dst)[at] = (int32_t)to_int(s, INT32_MIN, INT32_MAX); return;
    case LS_U16: ((uint16_t *)dst)[at] = (uint16_t)to_int(s, 0, UINT16_MAX); return;
    case LS_U8: ((uint8_t *)dst)[at] = (uint8_t)to_int(s, 0, UINT8_MAX); return;
    case LS_DTYPES: break;
    }
    ASSERT(!"a dtype of the table");
}

/* Specialized loops for the pairs that training converts in bulk. */
static int convert_common(void *dst, ls_dtype to, const void *src, ls_dtype from, size_t count)
{
    const uint16_t *half = src;
    const float *wide = src;
    const double *widest = src;

    if (from == LS_BF16 && to == LS_F32)
        for (size_t i = 0; i < count; i++) ((float *)dst)[i] = ls_bf16_to_f32(half[i]);
    else if (from == LS_F16 && to == LS_F32)
        for (size_t i = 0; i < count; i++) ((float *)dst)[i] = ls_f16_to_f32(half[i]);
    else if (from == LS_F32 && to == LS_BF16)
        for (size_t i = 0; i < count; i++) ((uint16_t *)dst)[i] = ls_f32_to_bf16(wide[i]);
    else if (from == LS_F32 && to == LS_F16)
        for (size_t i = 0; i < count; i++) ((uint16_t *)dst)[i] = ls_f32_to_f16(wide[i]);
    else if (from == LS_F32 && to == LS_F64)
        for (size_t i = 0; i < count; i++) ((double *)dst)[i] = wide[i];
    else if (from == LS_BF16 && to == LS_F64)
        for (size_t i = 0; i < count; i++) ((double *)dst)[i] = ls_bf16_to_f32(half[i]);
    else if (from == LS_F16 && to == LS_F64)
        for (size_t i = 0; i < count; i++) ((double *)dst)[i] = ls_f16_to_f32(half[i]);
    else if (from == LS_F64 && to == LS_F32)
        for (size_t i = 0; i < count; i++) ((float *)dst)[i] = (float)widest[i];
    else if (from == LS_F64 && to == LS_BF16)
        for (size_t i = 0; i < count; i++) ((uint16_t *)dst)[i] = ls_f32_to_bf16(f64_to_f32_odd(widest[i]));
    else if (from == LS_F64 && to == LS_F16)
        for (size_t i = 0; i < count; i++) ((uint16_t *)dst)[i] = ls_f32_to_f16(f64_to_f32_odd(widest[i]));
    else
        return 0;
    return 1;
}

void ls_convert(void *dst, ls_dtype to, const void *src, ls_dtype from, size_t count)
{
    if (count == 0) return;
    if (to == from) {
        memcpy(dst, src, count * ls_dtype_bytes(to));
        return;
    }
    if (convert_common(dst, to, src, from, count)) return;
    for (size_t i = 0; i < count; i++) dtype_store(dst, to, i, dtype_load(src, from, i));
}
