/* dtype.h - element types and their sizes.
 *
 * Floating types in memory: f64 (tests), f32, bf16 (8 exponent, 7 mantissa bits), f16 (5, 10; largest
 * 65504). Rounding to a smaller type is to nearest, ties to even; NaN stays NaN; f16 overflows to inf.
 */
#ifndef LS_DTYPE_H
#define LS_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, bytes, is floating, name in safetensors */
#define LS_DTYPE_MAP(X)           \
    X(F32, "f32", 4, 1, "F32")    \
    X(BF16, "bf16", 2, 1, "BF16") \
    X(F16, "f16", 2, 1, "F16")    \
    X(F64, "f64", 8, 1, "F64")    \
    X(I64, "i64", 8, 0, "I64")    \
    X(I32, "i32", 4, 0, "I32")    \
    X(U16, "u16", 2, 0, "U16")    \
    X(U8, "u8", 1, 0, "U8")

typedef enum ls_dtype {
#define LS_DTYPE_ENUM(id, name, bytes, floating, safetensors) LS_##id,
    LS_DTYPE_MAP(LS_DTYPE_ENUM)
#undef LS_DTYPE_ENUM
        LS_DTYPES
} ls_dtype;

size_t ls_dtype_bytes(ls_dtype t); /* 1 .. 8 */
int ls_dtype_is_float(ls_dtype t);
const char *ls_dtype_name(ls_dtype t);        /* "bf16" */
const char *ls_dtype_safetensors(ls_dtype t); /* "BF16" */
/* Finds a type by either of its names; 0 and *out on success, -1 if there is none. */
int ls_dtype_parse(const char *name, ls_dtype *out);

float ls_bf16_to_f32(uint16_t h);
uint16_t ls_f32_to_bf16(float f);
float ls_f16_to_f32(uint16_t h);
uint16_t ls_f32_to_f16(float f);

/* dst[count] = src[count], converted element by element. Buffers must not overlap. */
void ls_convert(void *dst, ls_dtype to, const void *src, ls_dtype from, size_t count);

#ifdef __cplusplus
}
#endif
#endif
