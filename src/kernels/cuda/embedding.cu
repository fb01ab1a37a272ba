/* embedding.cu - rows of a table by token, and the table's gradient: positions are sorted by token, and the rows of each token are added in
 * the order of their positions.
 */
#include "kernels/cuda/array.h"
#include "kernels/cuda/sort.h"

enum { EMBEDDING_THREADS = 128 };

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

/* A block for each place in the sorted order: where a token begins, it adds all of the token's rows. */
static __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_dw_rows(struct sorted s, struct array dy, size_t R, size_t V, size_t C, struct array dw)
{
    size_t begin = blockIdx.x;
    int key = s.key[begin];

    if (key >= (long long)V || (begin && s.key[begin - 1] == key)) return;
    for (size_t i = threadIdx.x * 4; i < C; i += EMBEDDING_THREADS * 4) {
        float4s sum = { { 0, 0, 0, 0 } };

        for (size_t at = begin; at < R && s.key[at] == key; at++) {
            float4s x = array_load4(dy, (size_t)s.position[at] * C + i, C - i, C % 4 == 0);

            for (int k = 0; k < 4; k++) sum.v[k] += x.v[k];
        }
        float4s before = array_load4(dw, (size_t)key * C + i, C - i, C % 4 == 0);
        for (int k = 0; k < 4; k++) sum.v[k] += before.v[k];
        array_store4(dw, (size_t)key * C + i, C - i, C % 4 == 0, sum);
    }
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
    size_t R = view_count(&c->in[1]), V = c->out[0].size[0];
    struct sorted s = sort_launch(c, global_of<const int>(c->in[1].data), (long long)c->attr.embedding.first, (long long)V, R, c->scratch);

    launch(c, KERNEL(embedding_dw_rows), (unsigned)R, EMBEDDING_THREADS, 0, s, array_in(c, 0), R, V, view_last(&c->in[0]), array_out(c, 0));
}

static bool embedding_dw_accepts(const struct call *c)
{
    return is_array(&c->in[0]) && is_array_of(&c->in[1], LS_I32) && is_array(&c->out[0]) && view_count(&c->in[1]) < 1u << 31;
}

const struct kernel kernels_cuda_embedding[] = {
    CUDA_ROW(EMBEDDING, embedding_accepts, NULL, run_embedding),
    CUDA_ROW(EMBEDDING_DW, embedding_dw_accepts, embedding_dw_scratch, run_embedding_dw),
    CUDA_ROWS_END,
};
