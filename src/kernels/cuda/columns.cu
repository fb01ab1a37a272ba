/* columns.cu - sums over a dim that is not the last: bias gradients, gradients of norm weights, REDUCE_SUM and REDUCE_MAX.
 *
 * x is [outer, n, C]; the sum goes over n. A block takes 128 columns and a chunk of rows: each of its 16 rows of threads (or n, if that is
 * less) adds every 16th row, and the 16 sums are added in order. If there is more than one chunk, a second launch adds the sums of the
 * chunks in the same way. How many chunks there are follows from the shape.
 */
#include "kernels/cuda/array.h"
#include "kernels/cuda/reduce.h"

enum { LANES = 32, ROWS = 16, WIDE = 4 * LANES };
static const size_t LEAST_CHUNK = 64, MOST_CHUNKS = 384, LONG_ROW = 8192;
static const size_t COLUMN_BLOCKS = 768; /* at least, as far as the limits of chunks allow */
enum columns_kind { COLUMNS_SUM, COLUMNS_MAX, COLUMNS_LAYER_NORM, COLUMNS_RMS_NORM };

struct columns {
    int kind, add;                  /* add: to what y and y2 have */
    struct array x, dy, mean, rstd; /* x alone: sums of x */
    size_t n, C, chunk, chunks;
    struct array y, y2; /* [outer, chunks, C] */
};

static size_t chunk_of(size_t outer, size_t n, size_t C)
{
    size_t blocks = outer * blocks_of(C, WIDE), chunks = blocks ? blocks_of(COLUMN_BLOCKS, blocks) : 1;
    size_t chunk = blocks_of(n, chunks < MOST_CHUNKS ? chunks : MOST_CHUNKS);

    return chunk > LEAST_CHUNK ? chunk : LEAST_CHUNK;
}

/* One chunk at least, also of no rows. */
static size_t chunks_of(size_t outer, size_t n, size_t C) { return n ? blocks_of(n, chunk_of(outer, n, C)) : 1; }

static __device__ inline float columns_join(int kind, float a, float b) { return kind == COLUMNS_MAX ? largest_of::of(a, b) : a + b; }

/* Adds row `row` to the sums of four columns. */
static __device__ inline void columns_row(const struct columns &z, size_t row, size_t column, bool whole, float4s *sum, float4s *sum2)
{
    size_t left = z.C - column, at = row * z.C + column;
    float4s x = array_load4(z.x, at, left, whole);

    if (z.kind == COLUMNS_SUM || z.kind == COLUMNS_MAX) {
        for (int k = 0; k < 4; k++) sum->v[k] = columns_join(z.kind, sum->v[k], x.v[k]);
        return;
    }
    float4s dy = array_load4(z.dy, at, left, whole);
    float mean = z.kind == COLUMNS_LAYER_NORM ? array_get(z.mean, row) : 0;
    float rstd = array_get(z.rstd, row);
    for (int k = 0; k < 4; k++) {
        sum->v[k] += dy.v[k] * (x.v[k] - mean) * rstd;
        sum2->v[k] += dy.v[k];
    }
}

/* The sums of each column in order; threads of the first row have the result. */
static __device__ inline float4s columns_meet(int kind, float4s mine)
{
    SHARED(float, all, ROWS *WIDE);

    __syncthreads();
    pack_store(all, threadIdx.y * WIDE + threadIdx.x * 4, mine);
    __syncthreads();
    if (threadIdx.y) return mine;
#pragma unroll 1 /* unrolled, it takes more registers than 3 blocks on an SM leave */
    for (unsigned row = 1; row < blockDim.y; row++) {
        float4s other = pack_load<4>(all, row * WIDE + threadIdx.x * 4);

        for (int k = 0; k < 4; k++) mine.v[k] = columns_join(kind, mine.v[k], other.v[k]);
    }
    return mine;
}

static __device__ inline void columns_put(const struct columns &z, struct array y, size_t at, size_t left, float4s sum)
{
    bool whole = z.C % 4 == 0;

    if (z.add) {
        float4s before = array_load4(y, at, left, whole);

        for (int k = 0; k < 4; k++) sum.v[k] += before.v[k];
    }
    array_store4(y, at, left, whole, sum);
}

static __global__ void __launch_bounds__(LANES *ROWS) columns_chunk(struct columns z)
{
    size_t column = ((size_t)blockIdx.x * LANES + threadIdx.x) * 4, outer = blockIdx.z;
    size_t row = blockIdx.y * z.chunk + threadIdx.y, end = min(blockIdx.y * z.chunk + z.chunk, z.n);
    size_t to = (outer * z.chunks + blockIdx.y) * z.C + column;
    float first = z.kind == COLUMNS_MAX ? -INFINITY : 0;
    float4s sum = { { first, first, first, first } }, sum2 = { { 0, 0, 0, 0 } };

    for (; row < end && column < z.C; row += blockDim.y) columns_row(z, outer * z.n + row, column, z.C % 4 == 0, &sum, &sum2);
    sum = columns_meet(z.kind, sum);
    if (z.kind == COLUMNS_LAYER_NORM) sum2 = columns_meet(z.kind, sum2);
    if (threadIdx.y || column >= z.C) return;
    columns_put(z, z.y, to, z.C - column, sum);
    if (z.kind == COLUMNS_LAYER_NORM) columns_put(z, z.y2, to, z.C - column, sum2);
}

/* Bytes of one sum of each chunk; 0 if there is a single chunk, whose sum is the result. */
static size_t parts_bytes(size_t outer, size_t n, size_t C)
{
    size_t chunks = chunks_of(outer, n, C);

    return chunks > 1 ? (outer * chunks * C * sizeof(float) + 15) / 16 * 16 : 0;
}

static void columns_launch(const struct call *c, const struct columns &z, size_t outer)
{
    dim3 grid(blocks_of(z.C, WIDE), (unsigned)z.chunks, (unsigned)outer), block(LANES, ROWS);

    if (z.n < ROWS) block.y = z.n ? (unsigned)z.n : 1;
    launch(c, KERNEL(columns_chunk), grid, block, 0, z);
}

/* y (+)= the sums of the chunks at `parts`. */
static void columns_launch_parts(const struct call *c, const struct columns &of, size_t outer, void *parts, struct array y, int add)
{
    struct columns z = of;

    z.kind = of.kind == COLUMNS_MAX ? COLUMNS_MAX : COLUMNS_SUM;
    z.add = add;
    z.x = array_of_floats(parts);
    z.n = z.chunk = of.chunks;
    z.chunks = 1;
    z.y = y;
    columns_launch(c, z, outer);
}

/* z: operands and kind. y2: the second sum, absent or NULL. */
static void run_columns(const struct call *c, struct columns z, size_t outer, size_t n, size_t C, const struct view *y,
                        const struct view *y2, int add)
{
    struct array to = array_of(y), to2 = y2 ? array_of(y2) : array_none();
    char *parts = (char *)c->scratch, *parts2 = parts + parts_bytes(outer, n, C);

    z.n = n;
    z.C = C;
    z.chunk = chunk_of(outer, n, C);
    z.chunks = chunks_of(outer, n, C);
    z.add = z.chunks == 1 && add;
    z.y = z.chunks == 1 ? to : array_of_floats(parts);
    z.y2 = z.chunks == 1 ? to2 : array_of_floats(parts2);
    columns_launch(c, z, outer);
    if (z.chunks == 1) return;
    columns_launch_parts(c, z, outer, parts, to, add);
    if (y2) columns_launch_parts(c, z, outer, parts2, to2, add);
}

/* ---- gradients of weights ---- */

static size_t columns_scratch(const struct call *c)
{
    return parts_bytes(1, view_rows(&c->in[0]), view_last(&c->in[0])) * (c->op == OP_LAYER_NORM_DW ? 2 : 1);
}

static void run_column_gradient(const struct call *c)
{
    struct columns z = {};
    bool layer = c->op == OP_LAYER_NORM_DW;

    z.kind = c->op == OP_BIAS_GRAD ? COLUMNS_SUM : layer ? COLUMNS_LAYER_NORM : COLUMNS_RMS_NORM;
    z.x = array_in(c, c->op == OP_BIAS_GRAD ? 0 : 1);
    z.dy = array_in(c, 0);
    z.mean = array_in(c, 2);
    z.rstd = array_in(c, layer ? 3 : 2);
    run_columns(c, z, 1, view_rows(&c->in[0]), view_last(&c->in[0]), &c->out[0], layer ? &c->out[1] : NULL, 1);
}

/* ---- REDUCE: rows of the last dim, or columns ---- */

/* One row of `each` elements of x[R,n], the part'th; parts of them a row. */
static __global__ void reduce_rows(int kind, struct array x, struct array y, size_t R, size_t n, size_t each, size_t parts)
{
    size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y, part = row % parts, begin = part * each, end = min(begin + each, n);
    float all = kind == COLUMNS_MAX ? -INFINITY : 0;

    for (size_t i = begin + threadIdx.x * 4; row < R * parts && i < end; i += blockDim.x * 4) {
        float4s v = array_load4(x, row / parts * n + i, end - i, n % 4 == 0);

        for (int k = 0; k < 4; k++)
            if (i + k < end) all = columns_join(kind, all, v.v[k]);
    }
    all = kind == COLUMNS_MAX ? row_max(all) : row_sum(all);
    if (row < R * parts && threadIdx.x == 0) array_put(y, row, all);
}

struct reduced {
    size_t outer, n, inner, parts;
};

static struct reduced reduced_of(const struct call *c)
{
    const struct view *x = &c->in[0];
    int dim = c->attr.reduce.dim;
    struct reduced z = { 1, view_count(x), 1, 1 };

    if (dim >= 0) {
        z.n = x->size[dim];
        for (int d = 0; d < dim; d++) z.outer *= x->size[d];
        for (int d = dim + 1; d < x->ndim; d++) z.inner *= x->size[d];
    }
    if (z.inner == 1 && z.n > LONG_ROW) z.parts = (z.n + LONG_ROW - 1) / LONG_ROW;
    return z;
}

static size_t reduce_scratch(const struct call *c)
{
    struct reduced z = reduced_of(c);

    return z.inner > 1 ? parts_bytes(z.outer, z.n, z.inner) : z.parts > 1 ? z.outer * z.parts * sizeof(float) : 0;
}

static void run_reduce(const struct call *c)
{
    struct reduced z = reduced_of(c);
    int kind = c->op == OP_REDUCE_MAX ? COLUMNS_MAX : COLUMNS_SUM;
    struct columns columns = {};
    dim3 threads = row_threads(z.n < LONG_ROW ? z.n : LONG_ROW);
    struct array x = array_in(c, 0), y = array_out(c, 0);

    if (!view_count(&c->out[0])) return;
    if (z.inner > 1) {
        columns.kind = kind;
        columns.x = x;
        columns.dy = columns.mean = columns.rstd = array_none();
        run_columns(c, columns, z.outer, z.n, z.inner, &c->out[0], NULL, 0);
        return;
    }
    if (z.parts == 1) {
        launch(c, KERNEL(reduce_rows), blocks_of(z.outer, threads.y), threads, 0, kind, x, y, z.outer, z.n, z.n, (size_t)1);
        return;
    }
    struct array parts = array_of_floats(c->scratch);
    launch(c, KERNEL(reduce_rows), blocks_of(z.outer * z.parts, threads.y), threads, 0, kind, x, parts, z.outer, z.n, LONG_ROW, z.parts);
    threads = row_threads(z.parts);
    launch(c, KERNEL(reduce_rows), blocks_of(z.outer, threads.y), threads, 0, kind, parts, y, z.outer, z.parts, z.parts, (size_t)1);
}

/* A grid has at most 65535 blocks in z. */
static bool reduce_accepts(const struct call *c)
{
    struct reduced z = reduced_of(c);

    return all_arrays(c) && (z.inner == 1 || z.outer < 65536);
}

const struct kernel kernels_cuda_columns[] = {
    CUDA_ROW(BIAS_GRAD, all_arrays, columns_scratch, run_column_gradient),
    CUDA_ROW(LAYER_NORM_DW, all_arrays, columns_scratch, run_column_gradient),
    CUDA_ROW(RMS_NORM_DW, all_arrays, columns_scratch, run_column_gradient),
    CUDA_ROW(REDUCE_SUM, reduce_accepts, reduce_scratch, run_reduce),
    CUDA_ROW(REDUCE_MAX, reduce_accepts, reduce_scratch, run_reduce),
    CUDA_ROWS_END,
};
