/* embedding.c - rows gathered by id, and their gradient scattered back.
 *
 * The gradient: the positions of each id are chained in ascending order (scratch: next[R], then head[V], i32; -1 ends a
 * chain). The first position of an id owns its row of dw: it adds the chain's rows in f32 and rounds once, so
 * threads may share the positions freely and the result does not depend on them.
 */
#include "kernels/cpu/simd/simd.h"

INLINE void gather(ls_dtype W, ls_dtype Y, const struct call *c, size_t begin, size_t end)
{
    const int32_t *ids = c->in[0].data;
    size_t C = view_last(&c->in[1]), first = c->attr.embedding.first;

    for (size_t r = begin; r < end; r++) {
        size_t id = (size_t)ids[r] - first; /* below first: wraps */
        bool here = id < c->in[1].size[0];
        const char *w = (const char *)c->in[1].data + (here ? id : 0) * C * ls_dtype_bytes(W);
        char *y = (char *)c->out[0].data + r * C * ls_dtype_bytes(Y);

        ASSERT(ids[r] >= 0);
        if (here) EACH(i, n, 0, C)
        store(Y, y, i, n, load(W, w, i, n));
        else memset(y, 0, C * ls_dtype_bytes(Y));
    }
}

static void embedding_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;

    (void)thread;
    BY_TYPE(c->in[1].dtype, W, BY_TYPE(c->out[0].dtype, Y, gather(W, Y, c, begin, end)))
}

static bool embedding_accepts(const struct call *c) { return is_i32(&c->in[0]) && is_plain(&c->in[1]) && is_plain(&c->out[0]); }

static void embedding(const struct call *c)
{
    threads_for(view_count(&c->in[0]), row_grain(view_last(&c->in[1])), embedding_rows, (void *)c);
}

static int32_t *chain_next(const struct call *c) { return c->scratch; }
static int32_t *chain_head(const struct call *c) { return chain_next(c) + view_count(&c->in[1]); }

/* The row of dw for position r; V or more: none, the row is in another part. */
static size_t simd_embedding_row_of(const struct call *c, size_t r)
{
    return (size_t)((const int32_t *)c->in[1].data)[r] - c->attr.embedding.first;
}

static void chain(const struct call *c)
{
    const int32_t *ids = c->in[1].data;
    int32_t *next = chain_next(c), *head = chain_head(c);
    size_t V = c->out[0].size[0];

    memset(head, -1, V * sizeof *head);
    for (size_t r = view_count(&c->in[1]); r-- > 0;) {
        size_t row = simd_embedding_row_of(c, r);

        ASSERT(ids[r] >= 0);
        if (row >= V) continue;
        next[r] = head[row];
        head[row] = (int32_t)r;
    }
}

INLINE void scatter_chain(ls_dtype T, ls_dtype wt, const struct call *c, size_t first, size_t C)
{
    const int32_t *next = chain_next(c);
    void *dw = c->out[0].data;
    size_t row = simd_embedding_row_of(c, first) * C;

    EACH(i, n, 0, C)
    {
        vf sum = vset(0.0f);

        for (int32_t r = (int32_t)first; r >= 0; r = next[r]) sum += load(T, c->in[0].data, (size_t)r * C + i, n);
        store(wt, dw, row + i, n, load(wt, dw, row + i, n) + sum);
    }
}

static void scatter_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    const int32_t *head = chain_head(c);
    size_t C = view_last(&c->in[0]), V = c->out[0].size[0];

    (void)thread;
    for (size_t r = begin; r < end; r++)
        if (simd_embedding_row_of(c, r) < V && head[simd_embedding_row_of(c, r)] == (int32_t)r)
            BY_TYPE(c->in[0].dtype, T, scatter_chain(T, c->out[0].dtype, c, r, C))
}

static bool embedding_dw_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_i32(&c->in[1]) && is_plain(&c->out[0]) && view_count(&c->in[1]) < INT32_MAX;
}

static size_t embedding_dw_scratch(const struct call *c) { return (view_count(&c->in[1]) + c->out[0].size[0]) * sizeof(int32_t); }

static void embedding_dw(const struct call *c)
{
    size_t C = view_last(&c->in[0]);

    chain(c);
    threads_each(view_count(&c->in[1]), row_grain(C), scatter_rows, (void *)c);
}

const struct kernel SIMD_TABLE(embedding)[] = {
    SIMD_ROW(EMBEDDING, embedding_accepts, NULL, embedding),
    SIMD_ROW(EMBEDDING_DW, embedding_dw_accepts, embedding_dw_scratch, embedding_dw),
    KERNELS_END,
};
