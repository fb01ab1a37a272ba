/* attention.cu - attention without tensor cores: any strides and types, head sizes to 256; cpu/ref/attention.c has the formulas.
 *
 * A block has 16 rows (queries, or keys for dk and dv) of one head, 8 threads a row, and goes over the other side in tiles of 32 columns:
 * scores of the tile in shared memory, running maximum and sum of each row, and the row's output in the registers of its 8 threads. The
 * order of every sum follows from the shape. With dropout each pair's weight is drawn where it is used. Thread n of a row has the elements
 * n, n + 8, .. of it.
 */
#include "kernels/cuda/array.h"
#include "kernels/cuda/philox.h"
#include "kernels/cuda/reduce.h"

enum { ROWS = 16, LANES = 8, COLUMNS = 32, THREADS = ROWS * LANES, OF_LANE = COLUMNS / LANES, SCORE_STRIDE = COLUMNS + 1, MOST_D = 256 };

/* attention_drop of kernel.h. */
struct mask {
    global<const long long> step; /* null: no dropout */
    int steps;
    unsigned threshold; /* a probability is kept if its bits are at least this */
    float kept;
    unsigned long long seed, stream, heads, head, full;
    unsigned long long query[2], queries, key[2], keys; /* shard_rows */
};

struct heads {
    struct strided q, k, v;
    struct array o, lse, dout, delta; /* delta[B,H,T]: sum of do o */
    struct array out, out2;           /* o; dq; dk and dv */
    global<const int> len;
    int causal;
    float scale;
    long long B, T, S, H, G, D;
    struct mask mask;
};

/* What multiplies the probability of query t of head h and key s. */
static __device__ inline float mask_weight(const struct mask &m, long long b, long long h, long long t, long long s)
{
    unsigned word[4];

    if (!m.step) return 1;
    unsigned long long sample = (unsigned long long)b + (m.steps > 1 ? (unsigned long long)m.step[1] : 0);
    unsigned long long query = (unsigned long long)t < m.queries ? m.query[0] + t : m.query[1] + t - m.queries;
    unsigned long long key = (unsigned long long)s < m.keys ? m.key[0] + s : m.key[1] + s - m.keys;
    unsigned long long index = ((sample * m.heads + m.head + h) * m.full + query) * m.full + key;
    philox(m.seed, m.stream ^ (unsigned long long)m.step[0], index / 4, word);
    return philox_word(word, (unsigned)(index % 4)) >= m.threshold ? m.kept : 0;
}

/* Keys that query t sees. */
static __device__ inline long long visible(const struct heads &z, long long t)
{
    long long keys = z.S;

    if (z.len) keys = max(0LL, min(keys, (long long)z.len[0]));
    long long n = z.causal ? t + 1 + keys - z.T : keys;
    return max(0LL, min(n, keys));
}

/* Rows [first, first + rows) of head h of x[B,.,.,D] to shared memory, zeros beyond `end`; D + 1 floats a row. */
static __device__ inline void tile_load(shared<float> to, const struct strided &x, long long b, long long first, long long end, long long h,
                                        int rows)
{
    int D = (int)x.size[3];

    for (int i = threadIdx.x; i < rows * D; i += THREADS) {
        int r = i / D, d = i % D;
        long long at = b * x.stride[0] + (first + r) * x.stride[1] + h * x.stride[2] + d * x.stride[3];

        to[r * (D + 1) + d] = first + r < end ? type_get(x.data, x.type, at) : 0;
    }
}

static __device__ inline float row_dot(shared<const float> a, shared<const float> b, int D)
{
    float sum = 0;

    for (int d = 0; d < D; d++) sum += a[d] * b[d];
    return sum;
}

/* Sums and maxima over the 8 threads of a row. */
template <typename F> static __device__ inline float lanes_reduce(float x)
{
    for (int lanes = 4; lanes > 0; lanes /= 2) x = F::of(x, __shfl_xor_sync((unsigned)ALL_LANES, x, lanes));
    return x;
}

/* own[i] += sum over columns of weight[column] x[column][lane + 8 i] */
template <int OWN> static __device__ inline void row_gather(float *own, shared<const float> weight, shared<const float> x, int lane, int D)
{
    for (int column = 0; column < COLUMNS; column++) {
        float w = weight[column];

#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (lane + LANES * i < D) own[i] += w * x[column * (D + 1) + lane + LANES * i];
    }
}

template <int OWN> static __device__ inline void row_put(struct array to, size_t at, const float *own, float factor, int lane, int D)
{
#pragma unroll
    for (int i = 0; i < OWN; i++)
        if (lane + LANES * i < D) array_put(to, at + lane + LANES * i, own[i] * factor);
}

static __device__ inline size_t index4(long long b, long long t, long long h, long long T, long long H, long long D)
{
    return (size_t)(((b * T + t) * H + h) * D);
}

/* ---- forward ---- */

template <int OWN> static __global__ void __launch_bounds__(THREADS, OWN <= 8 ? 8 : 1) attend(const __grid_constant__ struct heads z)
{
    DYNAMIC_SHARED(float, all);
    int D = (int)z.D, row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    shared<float> q = all, kv = q + ROWS * (D + 1), score = kv + COLUMNS * (D + 1);
    long long b = blockIdx.z, h = blockIdx.y, first = (long long)blockIdx.x * ROWS, t = first + row, last = min(first + ROWS, z.T) - 1;
    long long group = h / (z.H / z.G), mine = t < z.T ? visible(z, t) : 0, most_keys = visible(z, last);
    float own[OWN] = {}, most = -INFINITY, sum = 0;

    tile_load(q, z.q, b, first, z.T, h, ROWS);
    for (long long s0 = 0; s0 < most_keys; s0 += COLUMNS) {
        float s[OF_LANE], before = most, local = 0;

        __syncthreads();
        tile_load(kv, z.k, b, s0, z.S, group, COLUMNS);
        __syncthreads();
        for (int i = 0; i < OF_LANE; i++) {
            int column = lane + LANES * i;

            s[i] = s0 + column < mine ? z.scale * row_dot(q + row * (D + 1), kv + column * (D + 1), D) : -INFINITY;
            most = largest_of::of(most, s[i]);
        }
        most = lanes_reduce<largest_of>(most);
        float keep = most == -INFINITY ? 1 : expf(before - most);
        for (int i = 0; i < OF_LANE; i++) {
            float p = most == -INFINITY ? 0 : expf(s[i] - most);

            local += p;
            if (z.mask.step && p > 0) p *= mask_weight(z.mask, b, h, t, s0 + lane + LANES * i);
            score[row * SCORE_STRIDE + lane + LANES * i] = p;
        }
        sum = sum * keep + lanes_reduce<sum_of>(local);
        for (int i = 0; i < OWN; i++) own[i] *= keep;
        __syncthreads();
        tile_load(kv, z.v, b, s0, z.S, group, COLUMNS);
        __syncthreads();
        row_gather<OWN>(own, score + row * SCORE_STRIDE, kv, lane, D);
    }
    if (t >= z.T) return;
    row_put<OWN>(z.out, index4(b, t, h, z.T, z.H, z.D), own, sum == 0 ? 0 : 1 / sum, lane, D);
    if (lane == 0) array_put(z.lse, (size_t)((b * z.H + h) * z.T + t), sum == 0 ? -INFINITY : most + logf(sum));
}

/* ---- backward ---- */

/* delta[b,h,t] = sum over d of do o. A warp a row. */
static __global__ void attention_delta(struct array o, struct array dout, struct array delta, size_t rows, size_t T, size_t H, size_t D)
{
    size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y, h, t;
    float sum = 0;

    for (size_t d = threadIdx.x; row < rows && d < D; d += 32) sum += array_get(o, row * D + d) * array_get(dout, row * D + d);
    sum = warp_reduce<sum_of>(sum);
    if (row >= rows || threadIdx.x) return;
    row = divide(row, H, &h);
    row = divide(row, T, &t);
    array_put(delta, (row * H + h) * T + t, sum);
}

/* p and dscore of query t of head h and key s, whose rows are in shared memory. */
static __device__ inline void pair_of(const struct heads &z, long long b, long long h, long long t, long long s, shared<const float> q,
                                      shared<const float> k, shared<const float> dout, shared<const float> v, bool seen, float *p,
                                      float *dscore)
{
    int D = (int)z.D;
    size_t stat = (size_t)((b * z.H + h) * z.T + t);

    *p = *dscore = 0;
    if (!seen) return;
    float weight = mask_weight(z.mask, b, h, t, s);
    *p = expf(z.scale * row_dot(q, k, D) - array_get(z.lse, stat));
    *dscore = *p * (weight * row_dot(dout, v, D) - array_get(z.delta, stat));
    *p *= weight;
}

/* do as a strided operand. */
static __device__ inline struct strided dout_of(const struct heads &z)
{
    struct strided s = {};

    s.data = z.dout.data;
    s.type = z.dout.type;
    s.size[3] = (unsigned long long)z.D;
    s.stride[0] = z.T * z.H * z.D;
    s.stride[1] = z.H * z.D;
    s.stride[2] = z.D;
    s.stride[3] = 1;
    return s;
}

template <int OWN> static __global__ void __launch_bounds__(THREADS) attention_dq(const __grid_constant__ struct heads z)
{
    DYNAMIC_SHARED(float, all);
    int D = (int)z.D, row = threadIdx.x / LANES, lane = threadIdx.x % LANES, wide = D + 1;
    shared<float> q = all, dout = q + ROWS * wide, k = dout + ROWS * wide, v = k + COLUMNS * wide, ds = v + COLUMNS * wide;
    long long b = blockIdx.z, h = blockIdx.y, first = (long long)blockIdx.x * ROWS, t = first + row, last = min(first + ROWS, z.T) - 1;
    long long group = h / (z.H / z.G), mine = t < z.T ? visible(z, t) : 0, most_keys = visible(z, last);
    float own[OWN] = {};

    tile_load(q, z.q, b, first, z.T, h, ROWS);
    tile_load(dout, dout_of(z), b, first, z.T, h, ROWS);
    for (long long s0 = 0; s0 < most_keys; s0 += COLUMNS) {
        __syncthreads();
        tile_load(k, z.k, b, s0, z.S, group, COLUMNS);
        tile_load(v, z.v, b, s0, z.S, group, COLUMNS);
        __syncthreads();
        for (int i = 0; i < OF_LANE; i++) {
            int column = lane + LANES * i;
            float p, dscore;

            pair_of(z, b, h, t, s0 + column, q + row * wide, k + column * wide, dout + row * wide, v + column * wide, s0 + column < mine,
                    &p, &dscore);
            ds[row * SCORE_STRIDE + column] = dscore;
        }
        __syncthreads();
        row_gather<OWN>(own, ds + row * SCORE_STRIDE, k, lane, D);
    }
    if (t < z.T) row_put<OWN>(z.out, index4(b, t, h, z.T, z.H, z.D), own, z.scale, lane, D);
}

/* A row is a key; the queries of all heads of its group come in tiles of 32. */
template <int OWN> static __global__ void __launch_bounds__(THREADS) attention_dkv(const __grid_constant__ struct heads z)
{
    DYNAMIC_SHARED(float, all);
    int D = (int)z.D, row = threadIdx.x / LANES, lane = threadIdx.x % LANES, wide = D + 1;
    shared<float> k = all, v = k + ROWS * wide, q = v + ROWS * wide, dout = q + COLUMNS * wide, score = dout + COLUMNS * wide;
    long long b = blockIdx.z, group = blockIdx.y, first = (long long)blockIdx.x * ROWS, key = first + row, each = z.H / z.G;
    float dk[OWN] = {}, dv[OWN] = {};

    tile_load(k, z.k, b, first, z.S, group, ROWS);
    tile_load(v, z.v, b, first, z.S, group, ROWS);
    for (long long h = group * each; h < (group + 1) * each; h++)
        for (long long t0 = 0; t0 < z.T; t0 += COLUMNS) {
            float ds[OF_LANE];

            if (visible(z, min(t0 + COLUMNS, z.T) - 1) <= first) continue;
            __syncthreads();
            tile_load(q, z.q, b, t0, z.T, h, COLUMNS);
            tile_load(dout, dout_of(z), b, t0, z.T, h, COLUMNS);
            __syncthreads();
            for (int i = 0; i < OF_LANE; i++) {
                int column = lane + LANES * i;
                long long t = t0 + column;
                float p;

                pair_of(z, b, h, t, key, q + column * wide, k + row * wide, dout + column * wide, v + row * wide,
                        t < z.T && key < z.S && key < visible(z, t), &p, &ds[i]);
                score[row * SCORE_STRIDE + column] = p;
            }
            __syncthreads();
            row_gather<OWN>(dv, score + row * SCORE_STRIDE, dout, lane, D);
            __syncwarp();
            for (int i = 0; i < OF_LANE; i++) score[row * SCORE_STRIDE + lane + LANES * i] = ds[i];
            __syncwarp();
            row_gather<OWN>(dk, score + row * SCORE_STRIDE, q, lane, D);
        }
    if (key >= z.S) return;
    row_put<OWN>(z.out, index4(b, key, group, z.S, z.G, z.D), dk, z.scale, lane, D);
    row_put<OWN>(z.out2, index4(b, key, group, z.S, z.G, z.D), dv, 1, lane, D);
}

/* ---- launches ---- */

static struct mask mask_of(const struct call *c, int at)
{
    const struct attention_drop *d = &c->attr.attention.drop;
    struct mask m = {};

    m.step = nullptr;
    if (!call_has_in(c, at)) return m;
    m.step = global_of<const long long>(c->in[at].data);
    m.steps = (int)view_count(&c->in[at]);
    m.threshold = attention_drop_threshold(d->p);
    m.kept = (float)(1 / (1 - d->p));
    m.seed = d->seed;
    m.stream = d->stream;
    m.heads = d->heads;
    m.head = d->head;
    m.full = d->full;
    m.queries = d->queries.first;
    m.keys = d->keys.first;
    for (int k = 0; k < 2; k++) {
        m.query[k] = d->queries.begin[k];
        m.key[k] = d->keys.begin[k];
    }
    return m;
}

static struct heads attention_heads_of(const struct call *c)
{
    const struct view *q = &c->in[0], *k = &c->in[1];
    struct heads z = {};

    z.q = strided_of(q);
    z.k = strided_of(k);
    z.v = strided_of(&c->in[2]);
    z.o = z.lse = z.dout = z.delta = z.out = z.out2 = array_none();
    z.len = nullptr;
    z.mask = mask_of(c, c->op == OP_ATTENTION ? 4 : 6);
    z.causal = c->attr.attention.causal;
    z.scale = (float)c->attr.attention.scale;
    z.B = (long long)q->size[0];
    z.T = (long long)q->size[1];
    z.S = (long long)k->size[1];
    z.H = (long long)q->size[2];
    z.G = (long long)k->size[2];
    z.D = (long long)q->size[3];
    return z;
}

#define LAUNCH_BY_D(c, kernel, grid, bytes, z)                                  \
    do {                                                                        \
        if ((z).D <= 64)                                                        \
            launch(c, KERNEL(kernel<64 / LANES>), grid, THREADS, bytes, z);     \
        else if ((z).D <= 128)                                                  \
            launch(c, KERNEL(kernel<128 / LANES>), grid, THREADS, bytes, z);    \
        else                                                                    \
            launch(c, KERNEL(kernel<MOST_D / LANES>), grid, THREADS, bytes, z); \
    } while (0)

static void run_attention(const struct call *c)
{
    struct heads z = attention_heads_of(c);
    size_t bytes = ((ROWS + COLUMNS) * (size_t)(z.D + 1) + ROWS * SCORE_STRIDE) * sizeof(float);
    dim3 grid(blocks_of((size_t)z.T, ROWS), (unsigned)z.H, (unsigned)z.B);

    if (call_has_in(c, 3)) z.len = global_of<const int>(c->in[3].data);
    z.out = array_out(c, 0);
    z.lse = array_out(c, 1);
    LAUNCH_BY_D(c, attend, grid, bytes, z);
}

static size_t attention_grad_scratch(const struct call *c) { return view_rows(&c->in[0]) * sizeof(float); }

static void run_attention_grad(const struct call *c)
{
    struct heads z = attention_heads_of(c);
    size_t bytes = (2 * (ROWS + COLUMNS) * (size_t)(z.D + 1) + ROWS * SCORE_STRIDE) * sizeof(float), rows = view_rows(&c->in[0]);
    dim3 queries(blocks_of((size_t)z.T, ROWS), (unsigned)z.H, (unsigned)z.B),
        keys(blocks_of((size_t)z.S, ROWS), (unsigned)z.G, (unsigned)z.B);

    z.lse = array_in(c, 4);
    z.dout = array_in(c, 5);
    z.delta = array_of_floats(c->scratch);
    launch(c, KERNEL(attention_delta), blocks_of(rows, ROWS_MOST), dim3(32, ROWS_MOST), 0, array_in(c, 3), z.dout, z.delta, rows,
           (size_t)z.T, (size_t)z.H, (size_t)z.D);
    z.out = array_out(c, 0);
    LAUNCH_BY_D(c, attention_dq, queries, bytes, z);
    z.out = array_out(c, 1);
    z.out2 = array_out(c, 2);
    LAUNCH_BY_D(c, attention_dkv, keys, bytes, z);
}

static bool attention_accepts(const struct call *c)
{
    for (int i = 0; i < 3; i++)
        if (!is_half_or_float(&c->in[i])) return false;
    if (c->op == OP_ATTENTION && call_has_in(c, 3) && !is_array_of(&c->in[3], LS_I32)) return false;
    if (call_has_in(c, c->op == OP_ATTENTION ? 4 : 6) && !is_array_of(&c->in[c->op == OP_ATTENTION ? 4 : 6], LS_I64)) return false;
    for (int i = 3; i < 6 && c->op == OP_ATTENTION_GRAD; i++)
        if (!is_array(&c->in[i])) return false;
    for (int i = 0; i < c->nout; i++)
        if (!is_array(&c->out[i])) return false;
    return c->in[0].size[3] <= MOST_D && c->in[0].size[0] <= 65535 && c->in[0].size[2] <= 65535;
}

/* ---- ATTENTION_MERGE ---- */

/* A warp a row: the lanes have read lse before the first one changes it. */
static __global__ void merge_rows(const __grid_constant__ struct strided o2, const __grid_constant__ struct strided lse2,
                                  const __grid_constant__ struct strided o, const __grid_constant__ struct strided lse, size_t rows)
{
    size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y, T = o.size[1], H = o.size[2], D = o.size[3], h, t;

    if (row >= rows) return;
    size_t stat = divide(row, H, &h);
    stat = (divide(stat, T, &t) * H + h) * T + t;
    float a = strided_get(lse, stat);
    float b = strided_get(lse2, stat);
    __syncwarp();
    float most = fmaxf(a, b);
    if (most == -INFINITY) return; /* no key yet */
    float sum = expf(a - most) + expf(b - most);
    float keep = expf(a - most) / sum;
    float other = expf(b - most) / sum;
    for (size_t d = threadIdx.x; d < D; d += 32)
        strided_put(o, row * D + d, strided_get(o, row * D + d) * keep + strided_get(o2, row * D + d) * other);
    if (threadIdx.x == 0) strided_put(lse, stat, most + logf(sum));
}

static void run_merge(const struct call *c)
{
    size_t rows = view_rows(&c->out[0]);

    launch(c, KERNEL(merge_rows), blocks_of(rows, ROWS_MOST), dim3(32, ROWS_MOST), 0, strided_of(&c->in[0]), strided_of(&c->in[1]),
           strided_of(&c->out[0]), strided_of(&c->out[1]), rows);
}

static bool merge_accepts(const struct call *c)
{
    return is_half_or_float(&c->in[0]) && is_half_or_float(&c->in[1]) && is_half_or_float(&c->out[0]) && is_half_or_float(&c->out[1]);
}

const struct kernel kernels_cuda_attention[] = {
    CUDA_ROW(ATTENTION, attention_accepts, NULL, run_attention),
    CUDA_ROW(ATTENTION_GRAD, attention_accepts, attention_grad_scratch, run_attention_grad),
    CUDA_ROW(ATTENTION_MERGE, merge_accepts, NULL, run_merge),
    CUDA_ROWS_END,
};
