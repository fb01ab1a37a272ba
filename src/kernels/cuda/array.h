/* array.h - operands of kernels whose element type is known at run time: f32, bf16 or f16, read and written as f32.
 *
 * An array is contiguous; a strided one is a view of any strides. All threads of a launch take the same branch for the type, which costs a
 * kernel that waits for memory nothing. Four elements at a time where they are aligned: array_load4(), array_store4().
 */
#ifndef LS_KERNELS_CUDA_ARRAY_H
#define LS_KERNELS_CUDA_ARRAY_H

#include "kernels/cuda/launch.h"

typedef unsigned char byte;
typedef pack<float, 4> float4s;

struct array {
    global<byte> data;
    int type;
    int aligned; /* data is aligned to four elements */
    int given;
};

struct strided {
    global<byte> data;
    int type, ndim;
    unsigned long long size[LS_DIMS];
    long long stride[LS_DIMS];
};

/* ---- on the host ---- */

static inline bool is_half_or_float(const struct view *v) { return v->dtype == LS_F32 || v->dtype == LS_BF16 || v->dtype == LS_F16; }
static inline bool is_array(const struct view *v) { return view_given(v) && is_half_or_float(v) && view_is_contiguous(v); }
static inline bool is_array_of(const struct view *v, ls_dtype type) { return view_given(v) && v->dtype == type && view_is_contiguous(v); }

/* Every operand of the call is an array or absent. */
static inline bool all_arrays(const struct call *c)
{
    for (int i = 0; i < c->nin; i++)
        if (view_given(&c->in[i]) && !is_array(&c->in[i])) return false;
    for (int i = 0; i < c->nout; i++)
        if (view_given(&c->out[i]) && !is_array(&c->out[i])) return false;
    return true;
}

static inline struct array array_none(void)
{
    struct array a = { global<byte>(nullptr), LS_F32, 0, 0 };

    return a;
}

static __host__ __device__ inline size_t bytes_of_type(int type)
{
    return type == LS_F32 || type == LS_I32 ? 4 : type == LS_F64 || type == LS_I64 ? 8 : type == LS_U8 ? 1 : 2;
}

static inline struct array array_of(const struct view *v)
{
    struct array a = array_none();

    if (!view_given(v)) return a;
    a.data = global_of<byte>(v->data);
    a.type = v->dtype;
    a.aligned = pack_aligned(a.data, 4 * bytes_of_type(v->dtype));
    a.given = 1;
    return a;
}

static inline struct array array_in(const struct call *c, int i) { return call_has_in(c, i) ? array_of(&c->in[i]) : array_none(); }
static inline struct array array_out(const struct call *c, int i) { return call_has_out(c, i) ? array_of(&c->out[i]) : array_none(); }

static inline struct array array_of_floats(void *data)
{
    struct array a = { global_of<byte>(data), LS_F32, 1, 1 };

    return a;
}

static inline struct strided strided_of(const struct view *v)
{
    struct strided s = {};

    s.data = global_of<byte>(v->data);
    s.type = v->dtype;
    s.ndim = v->ndim;
    for (int d = 0; d < v->ndim; d++) {
        s.size[d] = v->size[d];
        s.stride[d] = v->stride[d];
    }
    return s;
}

static inline unsigned blocks_of(size_t count, size_t each) { return (unsigned)((count + each - 1) / each); }

/* ---- on the device ---- */

static __device__ inline float type_get(global<byte> data, int type, long long i)
{
    switch (type) {
    case LS_F32: return global_as<const float>(data)[i];
    case LS_BF16: return __bfloat162float(global_as<const __nv_bfloat16>(data)[i]);
    default: return __half2float(global_as<const __half>(data)[i]);
    }
}

static __device__ inline void type_put(global<byte> data, int type, long long i, float x)
{
    switch (type) {
    case LS_F32: global_as<float>(data)[i] = x; break;
    case LS_BF16: global_as<__nv_bfloat16>(data)[i] = __float2bfloat16_rn(x); break;
    default: global_as<__half>(data)[i] = __float2half_rn(x);
    }
}

/* The array of that type at data, which is not null. */
static __device__ inline struct array array_at(global<byte> data, int type)
{
    struct array a = { data, type, pack_aligned(data, 4 * bytes_of_type(type)), 1 };

    return a;
}

static __device__ inline float array_get(struct array a, size_t i) { return type_get(a.data, a.type, (long long)i); }
static __device__ inline void array_put(struct array a, size_t i, float x) { type_put(a.data, a.type, (long long)i, x); }
static __device__ inline void array_add(struct array a, size_t i, float x) { array_put(a, i, array_get(a, i) + x); }

/* Elements i .. i+3, of which `left` are there: 0 for the others. whole: i is a multiple of 4, counted from an aligned address. */
static __device__ inline float4s array_load4(struct array a, size_t i, size_t left, bool whole)
{
    float4s x;

    if (whole && left >= 4 && a.aligned) {
        if (a.type == LS_F32) return pack_load<4>(global_as<const float>(a.data), i);
        if (a.type == LS_BF16) {
            pack<__nv_bfloat16, 4> h = pack_load<4>(global_as<const __nv_bfloat16>(a.data), i);

            for (int k = 0; k < 4; k++) x.v[k] = __bfloat162float(h.v[k]);
        } else {
            pack<__half, 4> h = pack_load<4>(global_as<const __half>(a.data), i);

            for (int k = 0; k < 4; k++) x.v[k] = __half2float(h.v[k]);
        }
        return x;
    }
    for (int k = 0; k < 4; k++) x.v[k] = (size_t)k < left ? array_get(a, i + k) : 0;
    return x;
}

static __device__ inline void array_store4(struct array a, size_t i, size_t left, bool whole, float4s x)
{
    if (whole && left >= 4 && a.aligned) {
        if (a.type == LS_F32) {
            pack_store(global_as<float>(a.data), i, x);
        } else if (a.type == LS_BF16) {
            pack<__nv_bfloat16, 4> h;

            for (int k = 0; k < 4; k++) h.v[k] = __float2bfloat16_rn(x.v[k]);
            pack_store(global_as<__nv_bfloat16>(a.data), i, h);
        } else {
            pack<__half, 4> h;

            for (int k = 0; k < 4; k++) h.v[k] = __float2half_rn(x.v[k]);
            pack_store(global_as<__half>(a.data), i, h);
        }
        return;
    }
    for (int k = 0; k < 4; k++)
        if ((size_t)k < left) array_put(a, i + k, x.v[k]);
}

/* ---- lists: a launch works on many arrays, whose items are in its arguments. of[k].first: the first block of item k ---- */

/* The item that this block works on; there is at least one. Items without blocks are skipped. */
template <typename T> static __device__ inline int list_find(const T *of, int items)
{
    int low = 0, high = items;

    while (high - low > 1) {
        int middle = (low + high) / 2;

        if (of[middle].first <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The block that ends item k. */
template <typename T> static __device__ inline unsigned list_end(const T *of, int items, int k)
{
    return k + 1 < items ? of[k + 1].first : gridDim.x;
}

/* i / n and *rest = i % n; of 64 bits only where it must be, which takes several times as long. */
static __device__ inline size_t divide(size_t i, size_t n, size_t *rest)
{
    size_t q = (i | n) >> 32 ? i / n : (unsigned)i / (unsigned)n;

    *rest = i - q * n;
    return q;
}

/* The offset of element i in row-major order. i is less than the number of elements, so what is left of it for dim 0 needs no division. */
static __device__ inline long long strided_at(const struct strided &s, size_t i)
{
    long long at = 0;
    size_t rest;

#pragma unroll
    for (int d = LS_DIMS - 1; d > 0; d--)
        if (d < s.ndim) {
            i = divide(i, s.size[d], &rest);
            at += (long long)rest * s.stride[d];
        }
    return at + (long long)i * s.stride[0];
}

static __device__ inline float strided_get(const struct strided &s, size_t i) { return type_get(s.data, s.type, strided_at(s, i)); }
static __device__ inline void strided_put(const struct strided &s, size_t i, float x) { type_put(s.data, s.type, strided_at(s, i), x); }

#endif
