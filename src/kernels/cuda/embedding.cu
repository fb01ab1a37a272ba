/* embedding.cu - rows of a table by token, and the table's gradient: positions are sorted by token, every 16th of a token's rows is added
 * in the order of their positions, and the 16 sums are added in order. Up to 16 rows that is the order of the positions.
 */
#include "kernels/cuda/array.h"
#include "kernels/cuda/sort.h"

enum { EMBEDDING_THREADS = 128, EMBEDDING_ROWS = 16, EMBEDDING_WIDE = 128 };

/* A block a row. */
static __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_rows(global<const int> ids, struct array w, size_t V, size_t C, long long first, struct array y)
{
    size_t row = blockIdx.x;
    long long id = (long long)ids[row] - first;

    for (size_t i = threadIdx.x * 4; i < C; i += EMBEDDING_THREADS * 4) {
        float4s x = { { 0, 0, 0, 0 } };

        if (id >= 0 && (size_t)id < V) x = array_load4(w, (size_t)id * C + i, C - i, C % 4 == 0);
        array_store4(y, row * C + i, C - i, C % 4 == 0, x);
    }
}

/* True if the token whose rows begin at place `begin` of the sorted order has more than EMBEDDING_ROWS of them. */
static __device__ inline bool has_many_rows(const struct sorted &s, size_t begin, size_t R)
{
    return begin + EMBEDDING_ROWS < R && s.key[begin + EMBEDDING_ROWS] == s.key[begin];
}

/* The sum of columns i .. i+3 of a token's rows at places begin, begin + step, .. */
static __device__ inline float4s rows_sum(const struct sorted &s, struct array dy, size_t begin, size_t step, size_t R, size_t C, size_t i,
                                          int key)
{
    float4s sum = { { 0, 0, 0, 0 } };

    for (size_t at = begin; at < R && s.key[at] == key; at += step) {
        float4s x = array_load4(dy, (size_t)s.position[at] * C + i, C - i, C % 4 == 0);

        for (int k = 0; k < 4; k++) sum.v[k] += x.v[k];
    }
    return sum;
}

static __device__ inline void table_add(struct array dw, int key, size_t C, size_t i, float4s sum)
{
    float4s before = array_load4(dw, (size_t)key * C + i, C - i, C % 4 == 0);

    for (int k = 0; k < 4; k++) sum.v[k] += before.v[k];
    array_store4(dw, (size_t)key * C + i, C - i, C % 4 == 0, sum);
}

/* Tokens of a few rows: a block for each place in the sorted order, which adds all of a token's rows if they begin there. */
static __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_dw_few(struct sorted s, struct array dy, size_t R, size_t V, size_t C, struct array dw)
{
    size_t begin = blockIdx.x;
    int key = s.key[begin];

    if (key >= (long long)V || (begin && s.key[begin - 1] == key) || has_many_rows(s, begin, R)) return;
    for (size_t i = threadIdx.x * 4; i < C; i += EMBEDDING_THREADS * 4) table_add(dw, key, C, i, rows_sum(s, dy, begin, 1, R, C, i, key));
}

/* The others: a block for each 16th place and 128 columns, which adds a token's rows if it is the first of these places that is the
 * token's. Each row of threads adds every 16th row. */
static __global__ void __launch_bounds__(32 * EMBEDDING_ROWS)
    embedding_dw_many(struct sorted s, struct array dy, size_t R, size_t V, size_t C, struct array dw)
{
    SHARED(float, sums, EMBEDDING_ROWS *EMBEDDING_WIDE);
    size_t place = (size_t)blockIdx.x * EMBEDDING_ROWS, begin = place, i = (size_t)blockIdx.y * EMBEDDING_WIDE + threadIdx.x * 4;
    int key = s.key[place];
    float4s sum = { { 0, 0, 0, 0 } };

    if (key >= (long long)V) return;
    while (begin && begin + EMBEDDING_ROWS > place && s.key[begin - 1] == key) begin--;
    if (begin + EMBEDDING_ROWS == place || !has_many_rows(s, begin, R)) return;
    if (i < C) sum = rows_sum(s, dy, begin + threadIdx.y, EMBEDDING_ROWS, R, C, i, key);
    pack_store(sums, threadIdx.y * EMBEDDING_WIDE + threadIdx.x * 4, sum);
    __syncthreads();
    if (threadIdx.y || i >= C) return;
    for (unsigned row = 1; row < EMBEDDING_ROWS; row++) {
        float4s other = pack_load<4>(sums, row * EMBEDDING_WIDE + threadIdx.x * 4);

        for (int k = 0; k < 4; k++) sum.v[k] += other.v[k];
    }
    table_add(dw, key, C, i, sum);
}

static void run_embedding(const struct call *c)
{
    size_t R = view_count(&c->in[0]);

    launch(c, KERNEL(embedding_rows), (unsigned)R, EMBEDDING_THREADS, 0, global_of<const int>(c->in[0].data), array_in(c, 1),
           c->in[1].size[0], view_last(&c->in[1]), (long long)c->attr.embedding.first, array_out(c, 0));
}

static bool embedding_accepts(const struct call *c)
{
    return is_array_of(&c->in[0], LS_I32) && is_array(&c->in[1]) && is_array(&c->out[0]) && view_count(&c->in[0]) < 1u << 31;
}

static size_t embedding_dw_scratch(const struct call *c) { return sort_bytes(view_count(&c->in[1])); }

static void run_embedding_dw(const struct call *c)
{
    size_t R = view_count(&c->in[1]), V = c->out[0].size[0], C = view_last(&c->in[0]);
    struct sorted s = sort_launch(c, global_of<const int>(c->in[1].data), (long long)c->attr.embedding.first, (long long)V, R, c->scratch);

    launch(c, KERNEL(embedding_dw_few), (unsigned)R, EMBEDDING_THREADS, 0, s, array_in(c, 0), R, V, C, array_out(c, 0));
    launch(c, KERNEL(embedding_dw_many), dim3(blocks_of(R, EMBEDDING_ROWS), blocks_of(C, EMBEDDING_WIDE)), dim3(32, EMBEDDING_ROWS), 0, s,
           array_in(c, 0), R, V, C, array_out(c, 0));
}

static bool embedding_dw_accepts(const struct call *c)
{
    return is_array(&c->in[0]) && is_array_of(&c->in[1], LS_I32) && is_array(&c->out[0]) && view_count(&c->in[1]) < 1u << 31 &&
           blocks_of(view_last(&c->in[0]), EMBEDDING_WIDE) <= 65535;
}

const struct kernel kernels_cuda_embedding[] = {
    CUDA_ROW(EMBEDDING, embedding_accepts, NULL, run_embedding),
    CUDA_ROW(EMBEDDING_DW, embedding_dw_accepts, embedding_dw_scratch, run_embedding_dw),
    CUDA_ROWS_END,
};
