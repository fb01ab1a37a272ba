/* rows.c - permutes rows of tokens by expert, permutes them back with weights, and takes their dot products.
 *
 * Rows are numbered 0, 1, .. without a gap, each once, by route_rows; -1: none. So no two tokens write one row, and the rows after the last
 * number are zeros.
 */
#include "kernels/cpu/simd/simd.h"

static bool is_weight(const struct call *c, int k)
{
    return !call_has_in(c, k) || (c->in[k].dtype == LS_F32 && view_is_contiguous(&c->in[k]));
}

static float weight_of(const struct call *c, size_t i) { return call_has_in(c, 2) ? ((const float *)c->in[2].data)[i] : 1.0f; }

/* ---- permute ---- */

INLINE void permute_rows(ls_dtype T, const struct call *c, size_t begin, size_t end)
{
    const int32_t *rows = c->in[1].data;
    size_t C = view_last(&c->in[0]), K = view_last(&c->in[1]);

    for (size_t i = begin * K; i < end * K; i++) {
        vf w = vset(weight_of(c, i));

        if (rows[i] >= 0) EACH(k, n, 0, C)
        store(T, c->out[0].data, (size_t)rows[i] * C + k, n, w * load(T, c->in[0].data, i / K * C + k, n));
    }
}

static void permute_tokens(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;

    (void)thread;
    BY_TYPE(c->in[0].dtype, T, permute_rows(T, c, begin, end))
}

static bool permute_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_i32(&c->in[1]) && is_weight(c, 2) && is_plain(&c->out[0]) && c->in[0].dtype == c->out[0].dtype;
}

static void rows_permute(const struct call *c)
{
    const int32_t *rows = c->in[1].data;
    size_t used = 0, bytes = view_last(&c->out[0]) * ls_dtype_bytes(c->out[0].dtype);

    for (size_t i = 0; i < view_count(&c->in[1]); i++) used += rows[i] >= 0;
    threads_for(view_rows(&c->in[1]), row_grain(view_last(&c->in[0]) * view_last(&c->in[1])), permute_tokens, (void *)c);
    memset((char *)c->out[0].data + used * bytes, 0, (c->out[0].size[0] - used) * bytes);
}

/* ---- unpermute ---- */

INLINE void collect(ls_dtype T, const struct call *c, size_t begin, size_t end)
{
    const int32_t *rows = c->in[1].data;
    size_t C = view_last(&c->out[0]), K = view_last(&c->in[1]);

    for (size_t t = begin; t < end; t++) EACH(k, n, 0, C)
        {
            vf sum = vset(0.0f);

            for (size_t i = t * K; i < (t + 1) * K; i++)
                if (rows[i] >= 0) sum += vset(weight_of(c, i)) * load(T, c->in[0].data, (size_t)rows[i] * C + k, n);
            store(T, c->out[0].data, t * C + k, n, sum);
        }
}

static void collect_tokens(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;

    (void)thread;
    BY_TYPE(c->in[0].dtype, T, collect(T, c, begin, end))
}

static void rows_unpermute(const struct call *c)
{
    threads_for(view_rows(&c->in[1]), row_grain(view_last(&c->out[0]) * view_last(&c->in[1])), collect_tokens, (void *)c);
}

/* ---- dot products ---- */

INLINE void dots(ls_dtype T, const struct call *c, size_t begin, size_t end)
{
    const int32_t *rows = c->in[2].data;
    size_t C = view_last(&c->in[0]), K = view_last(&c->in[2]);

    for (size_t i = begin * K; i < end * K; i++) {
        vf sum = vset(0.0f);

        if (rows[i] >= 0) EACH(k, n, 0, C)
        sum += load(T, c->in[0].data, i / K * C + k, n) * load(T, c->in[1].data, (size_t)rows[i] * C + k, n);
        ((float *)c->out[0].data)[i] = vsum(sum);
    }
}

static void dot_tokens(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;

    (void)thread;
    BY_TYPE(c->in[0].dtype, T, dots(T, c, begin, end))
}

static bool dot_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_plain(&c->in[1]) && c->in[0].dtype == c->in[1].dtype && is_i32(&c->in[2]) &&
           c->out[0].dtype == LS_F32 && view_is_contiguous(&c->out[0]);
}

static void rows_dot(const struct call *c)
{
    threads_for(view_rows(&c->in[2]), row_grain(view_last(&c->in[0]) * view_last(&c->in[2])), dot_tokens, (void *)c);
}

const struct kernel SIMD_TABLE(rows)[] = {
    SIMD_ROW(ROWS_PERMUTE, permute_accepts, NULL, rows_permute),
    SIMD_ROW(ROWS_UNPERMUTE, permute_accepts, NULL, rows_unpermute),
    SIMD_ROW(ROWS_DOT, dot_accepts, NULL, rows_dot),
    KERNELS_END,
};
