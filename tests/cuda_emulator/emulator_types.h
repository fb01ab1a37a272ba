/* emulator_types.h - CUDA's 16-bit floats, intrinsics and overloads on the host, with the device's rounding: to nearest, ties to even. */
#ifndef LS_TESTS_CUDA_EMULATOR_TYPES_H
#define LS_TESTS_CUDA_EMULATOR_TYPES_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include "lockstep/dtype.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
struct __half {
    uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 x) { return ls_bf16_to_f32(x.bits); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return { ls_f32_to_bf16(x) }; }
inline float __half2float(__half x) { return ls_f16_to_f32(x.bits); }
inline __half __float2half_rn(float x) { return { ls_f32_to_f16(x) }; }

inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline unsigned __float_as_uint(float x)
{
    unsigned bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float __uint_as_float(unsigned bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }

template <typename T> T min(T a, T b) { return b < a ? b : a; }
template <typename T> T max(T a, T b) { return a < b ? b : a; }

/* N elements that are read or written at once. */
template <typename T, int N> struct alignas(sizeof(T) * N) pack {
    T v[N];
};

#endif
