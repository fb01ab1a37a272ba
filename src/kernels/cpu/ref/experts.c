/* experts.c - reference: rows permuted by expert, matmuls of each expert's rows, and rows permuted back to tokens.
 *
 * Rows of one expert follow each other, in the order of their tokens; experts in their order; and if rows come from several sources
 * (counts[S,E]), all of source 0 first. Sizes are static, M rows; counts give at run time how many of them, from the first, are in use. The
 * others are zeros. The row indices of tokens (rows[..,K]) are 0, 1, .. without a gap, each once; -1: none.
 */
#include "kernels/cpu/ref/ref.h"

/* A counting sort: rows[n,k] = the row of token n's k-th choice, or -1; counts[e] = number of rows of expert e. */
static void route_rows(const struct call *c)
{
    const struct view *index = &c->in[0], *rows = &c->out[0], *counts = &c->out[1];
    size_t E = view_count(counts), n = view_count(index);
    int64_t at = 0;

    for (size_t i = 0; i < n; i++) ref_put_int(rows, i, -1);
    for (size_t e = 0; e < E; e++) {
        int64_t first = at;

        for (size_t i = 0; i < n; i++)
            if (ref_int(index, i) == (int64_t)e) ref_put_int(rows, i, at++);
        ref_put_int(counts, e, at - first);
    }
}

static double weight_at(const struct call *c, int k, size_t i) { return call_has_in(c, k) ? ref_get(&c->in[k], i) : 1; }

static void rows_permute(const struct call *c)
{
    const struct view *x = &c->in[0], *rows = &c->in[1], *y = &c->out[0];
    size_t C = view_last(x), K = view_last(rows);

    for (size_t i = 0; i < view_count(y); i++) ref_put(y, i, 0);
    for (size_t i = 0; i < view_count(rows); i++) {
        int64_t row = ref_int(rows, i);

        for (size_t k = 0; k < C && row >= 0; k++) ref_put(y, (size_t)row * C + k, weight_at(c, 2, i) * ref_get(x, i / K * C + k));
    }
}

static void rows_unpermute(const struct call *c)
{
    const struct view *y = &c->in[0], *rows = &c->in[1], *x = &c->out[0];
    size_t C = view_last(x), K = view_last(rows), N = view_rows(x);

    for (size_t n = 0; n < N; n++)
        for (size_t k = 0; k < C; k++) {
            double sum = 0;

            for (size_t i = n * K; i < (n + 1) * K; i++)
                if (ref_int(rows, i) >= 0) sum += weight_at(c, 2, i) * ref_get(y, (size_t)ref_int(rows, i) * C + k);
            ref_put(x, n * C + k, sum);
        }
}

static void rows_dot(const struct call *c)
{
    const struct view *x = &c->in[0], *y = &c->in[1], *rows = &c->in[2];
    size_t C = view_last(x), K = view_last(rows);

    for (size_t i = 0; i < view_count(rows); i++) {
        int64_t row = ref_int(rows, i);
        double sum = 0;

        for (size_t k = 0; k < C && row >= 0; k++) sum += ref_get(x, i / K * C + k) * ref_get(y, (size_t)row * C + k);
        ref_put(&c->out[0], i, sum);
    }
}

/* Rows [begin, end) are those of a group: one expert's, from one source. */
struct group {
    size_t expert, begin, end;
};

/* The next group; the first one after { 0 }. */
static bool next_group(const struct view *counts, size_t *g, struct group *at)
{
    if (*g == view_count(counts)) return false;
    at->expert = *g % view_last(counts);
    at->begin = at->end;
    at->end += (size_t)ref_int(counts, (*g)++);
    return true;
}

static void zero_rest(const struct view *y, size_t from)
{
    for (size_t i = from; i < view_count(y); i++) ref_put(y, i, 0);
}

static void grouped_linear(const struct call *c)
{
    const struct view *x = &c->in[0], *w = &c->in[1], *y = &c->out[0];
    size_t K = view_last(x), N = view_last(y), g = 0;
    struct group at = { 0 };

    while (next_group(&c->in[2], &g, &at))
        for (size_t m = at.begin; m < at.end; m++)
            for (size_t n = 0; n < N; n++) ref_put(y, m * N + n, ref_dot(0, x, m * K, 1, w, (at.expert * N + n) * K, 1, K));
    zero_rest(y, at.end * N);
}

static void grouped_linear_dx(const struct call *c)
{
    const struct view *dy = &c->in[0], *w = &c->in[1], *dx = &c->out[0];
    size_t N = view_last(dy), K = view_last(dx), g = 0;
    struct group at = { 0 };

    while (next_group(&c->in[2], &g, &at))
        for (size_t m = at.begin; m < at.end; m++)
            for (size_t k = 0; k < K; k++) ref_put(dx, m * K + k, ref_dot(0, dy, m * N, 1, w, at.expert * N * K + k, K, N));
    zero_rest(dx, at.end * K);
}

static void grouped_linear_dw(const struct call *c)
{
    const struct view *dy = &c->in[0], *x = &c->in[1], *dw = &c->out[0];
    size_t N = view_last(dy), K = view_last(x), g = 0;
    struct group at = { 0 };

    while (next_group(&c->in[2], &g, &at))
        for (size_t n = 0; n < N && at.end > at.begin; n++)
            for (size_t k = 0; k < K; k++)
                ref_add(dw, (at.expert * N + n) * K + k, ref_dot(0, dy, at.begin * N + n, N, x, at.begin * K + k, K, at.end - at.begin));
}

const struct kernel kernels_ref_experts[] = {
    REF_ROW(ROUTE_ROWS, route_rows, NULL),
    REF_ROW(ROWS_PERMUTE, rows_permute, NULL),
    REF_ROW(ROWS_UNPERMUTE, rows_unpermute, NULL),
    REF_ROW(ROWS_DOT, rows_dot, NULL),
    REF_ROW(GROUPED_LINEAR, grouped_linear, NULL),
    REF_ROW(GROUPED_LINEAR_DX, grouped_linear_dx, NULL),
    REF_ROW(GROUPED_LINEAR_DW, grouped_linear_dw, NULL),
    KERNELS_END,
};
