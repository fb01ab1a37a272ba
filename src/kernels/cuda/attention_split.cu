/* attention_split.cu - attention of a few queries over many keys, as in decoding with a cache: bf16 and f16, head sizes to 256 in eights;
 * cpu/ref/attention.c has the formulas.
 *
 * A block has a part of the keys of one group and all queries of the group's heads, so keys and values are read once. The parts are a
 * function of the shape: the cache's room, not of how many keys there are, so sums have a fixed order and a part may be empty. LANES lanes
 * of a warp have a key together, eight elements each, and keep a running maximum, sum and output of each query in registers; those of the
 * block are merged, and a second kernel merges the parts (Flash-Decoding).
 */
#include "kernels/cuda/attention_mma.h"

enum { PARTS_MOST = 32, PART_LEAST = 128, QUERIES_MOST = 8 };

#define LN_2 0.6931471805599453f

struct split {
    struct attention z;
    global<float> parts; /* [B,H,T,parts,2 + d]: maximum, sum, output */
    int n, keys;         /* number of parts, and keys per part */
    int queries;         /* queries of a group: its heads times T */
};

/* The state of one query after some of the keys. Scores have base 2. */
struct running {
    float most, sum, own[8];
};

static __device__ inline void running_merge(struct running *to, float most, float sum, const float *own)
{
    float top = largest_of::of(to->most, most), keep = to->most == -INFINITY ? 0 : exp2f(to->most - top);
    float add = most == -INFINITY ? 0 : exp2f(most - top);

    to->most = top;
    to->sum = to->sum * keep + sum * add;
    for (int e = 0; e < 8; e++) to->own[e] = to->own[e] * keep + own[e] * add;
}

template <typename T> static __device__ inline void eight_load(float *to, const struct operand &x, long long at, bool there)
{
    global<const T> from = global_as<const T>(x.data);

    if (there && x.aligned) {
        pack<T, 8> e = pack_load<8>(from, (size_t)at);

        for (int k = 0; k < 8; k++) to[k] = float_of(e.v[k]);
        return;
    }
    for (int k = 0; k < 8; k++) to[k] = there ? float_of(from[at + k]) : 0;
}

/* Merges the state of a query over the lanes of a warp that have other keys. */
template <int LANES> static __device__ inline void running_merge_warp(struct running *x)
{
#pragma unroll
    for (int lanes = LANES; lanes < 32; lanes *= 2) {
        float most = __shfl_xor_sync((unsigned)ALL_LANES, x->most, lanes), sum = __shfl_xor_sync((unsigned)ALL_LANES, x->sum, lanes),
              own[8];

        for (int e = 0; e < 8; e++) own[e] = __shfl_xor_sync((unsigned)ALL_LANES, x->own[e], lanes);
        running_merge(x, most, sum, own);
    }
}

/* Query r of group g: its head and row. */
static __device__ inline void query_of(const struct attention &z, int g, int r, int *h, int *t)
{
    int each = z.H / z.G;

    *h = g * each + r % each;
    *t = r / each;
}

template <typename T, int LANES, int QUERIES>
static __global__ void __launch_bounds__(THREADS) attend_part(const __grid_constant__ struct split s)
{
    SHARED(float, merged, WARPS *QUERIES *(LANES * 8 + 2));
    const struct attention &z = s.z;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, element = lane % LANES * 8, g = blockIdx.y, b = blockIdx.z;
    int keys = attention_keys(z), begin = (int)blockIdx.x * s.keys, end = min(begin + s.keys, keys);
    struct running x[QUERIES];
    float q[QUERIES][8];
    int sees[QUERIES];

#pragma unroll
    for (int r = 0; r < QUERIES; r++) {
        int h, t;

        query_of(z, g, r, &h, &t);
        eight_load<T>(q[r], z.q, b * z.q.batch + t * z.q.row + h * z.q.head + element, r < s.queries && element < z.d);
        sees[r] = r < s.queries ? attention_visible(z, keys, t) : 0;
        x[r].most = -INFINITY;
        x[r].sum = 0;
        for (int e = 0; e < 8; e++) x[r].own[e] = 0;
    }
    for (int first = begin; first < end; first += THREADS / LANES) {
        int key = first + (int)threadIdx.x / LANES;
        bool there = key < end && element < z.d;
        float k[8], v[8];

        eight_load<T>(k, z.k, b * z.k.batch + key * z.k.row + g * z.k.head + element, there);
        eight_load<T>(v, z.v, b * z.v.batch + key * z.v.row + g * z.v.head + element, there);
#pragma unroll
        for (int r = 0; r < QUERIES; r++) {
            float score = 0;

            for (int e = 0; e < 8; e++) score += q[r][e] * k[e];
#pragma unroll
            for (int lanes = LANES / 2; lanes > 0; lanes /= 2) score += __shfl_xor_sync((unsigned)ALL_LANES, score, lanes);
            if (key < end && key < sees[r]) running_merge(&x[r], score * z.factor, 1, v);
        }
    }
#pragma unroll
    for (int r = 0; r < QUERIES; r++) {
        int at = (warp * QUERIES + r) * (LANES * 8 + 2);

        running_merge_warp<LANES>(&x[r]);
        if (lane >= LANES) continue;
        if (lane == 0) {
            merged[at] = x[r].most;
            merged[at + 1] = x[r].sum;
        }
        for (int e = 0; e < 8; e++) merged[at + 2 + element + e] = x[r].own[e];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < s.queries * LANES; i += THREADS) {
        int r = i / LANES, e0 = i % LANES * 8, h, t;
        struct running all = { -INFINITY, 0, {} };

        for (int w = 0; w < WARPS; w++) {
            int at = (w * QUERIES + r) * (LANES * 8 + 2);
            float own[8];

            for (int e = 0; e < 8; e++) own[e] = merged[at + 2 + e0 + e];
            running_merge(&all, merged[at], merged[at + 1], own);
        }
        if (e0 >= z.d) continue;
        query_of(z, g, r, &h, &t);
        long long to = ((((long long)b * z.H + h) * z.T + t) * s.n + blockIdx.x) * (z.d + 2);
        if (e0 == 0) {
            s.parts[to] = all.most;
            s.parts[to + 1] = all.sum;
        }
        for (int e = 0; e < 8; e++) s.parts[to + 2 + e0 + e] = all.own[e];
    }
}

/* A block has a query; its parts are added in order. */
template <typename T> static __global__ void __launch_bounds__(THREADS) attend_merge(const __grid_constant__ struct split s)
{
    const struct attention &z = s.z;
    int t = blockIdx.x, h = blockIdx.y, b = blockIdx.z;
    long long row = ((long long)b * z.H + h) * z.T + t, from = row * s.n * (z.d + 2);
    float most = -INFINITY, sum = 0;

    for (int n = 0; n < s.n; n++) most = fmaxf(most, s.parts[from + n * (z.d + 2)]);
    for (int n = 0; n < s.n; n++) {
        float part = s.parts[from + n * (z.d + 2)];

        sum += part == -INFINITY ? 0 : exp2f(part - most) * s.parts[from + n * (z.d + 2) + 1];
    }
    if (threadIdx.x == 0) z.lse[row] = sum == 0 ? -INFINITY : most * LN_2 + logf(sum);
    for (int e = threadIdx.x; e < z.d; e += THREADS) {
        float own = 0;
        T rounded;

        for (int n = 0; n < s.n; n++) {
            float part = s.parts[from + n * (z.d + 2)];

            own += part == -INFINITY ? 0 : exp2f(part - most) * s.parts[from + n * (z.d + 2) + 2 + e];
        }
        type_of(sum == 0 ? 0 : own / sum, &rounded);
        global_as<T>(z.out.data)[b * z.out.batch + t * z.out.row + h * z.out.head + e] = rounded;
    }
}

/* ---- launches ---- */

static int split_parts(const struct call *c)
{
    size_t parts = blocks_of(c->in[1].size[1], PART_LEAST);

    return parts < PARTS_MOST ? (int)parts : PARTS_MOST;
}

static int split_queries(const struct call *c) { return (int)(c->in[0].size[1] * (c->in[0].size[2] / c->in[1].size[2])); }

static size_t split_scratch(const struct call *c)
{
    return view_rows(&c->in[0]) * (size_t)split_parts(c) * (c->in[0].size[3] + 2) * sizeof(float);
}

template <typename T, int LANES> static void attend_parts_of(const struct call *c, const struct split &s)
{
    dim3 grid((unsigned)s.n, (unsigned)s.z.G, (unsigned)c->in[0].size[0]);

    if (s.queries == 1)
        launch(c, KERNEL(attend_part<T, LANES, 1>), grid, THREADS, 0, s);
    else
        launch(c, KERNEL(attend_part<T, LANES, QUERIES_MOST>), grid, THREADS, 0, s);
}

template <typename T> static void attend_split_of(const struct call *c, const struct split &s)
{
    if (s.z.d <= 64)
        attend_parts_of<T, 8>(c, s);
    else if (s.z.d <= 128)
        attend_parts_of<T, 16>(c, s);
    else
        attend_parts_of<T, 32>(c, s);
    launch(c, KERNEL(attend_merge<T>), dim3((unsigned)s.z.T, (unsigned)s.z.H, (unsigned)c->in[0].size[0]), THREADS, 0, s);
}

static void run_split(const struct call *c)
{
    struct split s = {};

    s.z = attention_of(c);
    if (call_has_in(c, 3)) s.z.len = global_of<const int>(c->in[3].data);
    s.z.out = operand_of(&c->out[0]);
    s.z.lse = global_of<float>(c->out[1].data);
    s.parts = global_of<float>(c->scratch);
    s.n = split_parts(c);
    s.keys = (s.z.S + s.n - 1) / s.n;
    s.queries = split_queries(c);
    if (c->in[0].dtype == LS_BF16)
        attend_split_of<__nv_bfloat16>(c, s);
    else
        attend_split_of<__half>(c, s);
}

/* True for a few queries: with a cache, or a single one. */
static bool split_accepts(const struct call *c)
{
    for (int i = 0; i < 3; i++)
        if (!is_operand(&c->in[i], c->in[0].dtype, 256)) return false;
    return attention_sizes_accepted(c) && is_operand(&c->out[0], c->in[0].dtype, 256) && is_array_of(&c->out[1], LS_F32) &&
           (!call_has_in(c, 3) || is_array_of(&c->in[3], LS_I32)) && !call_has_in(c, 4) && c->in[1].size[1] > 0 &&
           (call_has_in(c, 3) || c->in[0].size[1] == 1) && split_queries(c) <= QUERIES_MOST;
}

const struct kernel kernels_cuda_attention_split[] = {
    CUDA_ROW_AT("cuda_split", PRIORITY_AMX, ATTENTION, split_accepts, split_scratch, run_split, NULL),
    CUDA_ROWS_END,
};
