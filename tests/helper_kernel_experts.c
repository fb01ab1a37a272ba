/* helper_kernel_experts.c - cases of mixture-of-experts ops: routing, permuting rows by expert, matmuls per expert. */
#include "helper_kernel_gen.h"

#include <math.h>
#include "kernels/cpu/route.h"

/* ---- routing: B T E K ---- */

static const size_t routes[][4] = { { 0, 3, 4, 2 }, { 1, 1, 1, 1 }, { 2, 5, 3, 1 }, { 3, 7, 8, 3 }, { 2, 33, 17, 17 }, { 1, 130, 64, 8 } };

static void samples_in(struct gen *g, size_t B, int variant)
{
    if (variant % 2 == 0) {
        gen_in_absent(g);
        return;
    }
    struct view *v = gen_in(g, LS_F32, 0, 1, DIMS(2));
    element_put(v, 0, (double)(B - (B > 1)));
    element_put(v, 1, 2 * (double)B + 1);
}

enum { ROUTE_TIES = 11, ROUTE_NAN, ROUTE_VARIANTS = 18 };

/* One NaN in a third of the rows, NaN in all of another third. */
static void logits_spoil(struct view *v, size_t E)
{
    for (size_t i = 0; i < view_count(v); i++)
        if (i / E % 3 == 2 || (i / E % 3 == 1 && i % E == i / E % E))
            element_put(v, i, NAN);
}

/* The first E are different, for a choice that rounding can't change: multiples of 1/64, permuted by row. */
static void logits_in(struct gen *g, const size_t *s, int variant)
{
    bool ties = variant == ROUTE_TIES;
    struct view *v = gen_in(g, LS_F32, 0, 1, 3, (size_t[]){ s[0], s[1], s[2] });

    for (size_t i = 0; i < view_count(v); i++)
        element_put(v, i, ties ? (double)(i % 3) : (double)((i % s[2] * 37 + i / s[2] * 11) % (s[2] % 37 ? s[2] : s[2] + 1)) / 16 - 1);
    if (variant >= ROUTE_NAN)
        logits_spoil(v, s[2]);
}

void route_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(routes) && g->type == LS_F32; i++)
        for (int variant = 0; variant < ROUTE_VARIANTS; variant++) {
            const size_t *s = routes[i];

            gen_begin(g);
            logits_in(g, s, variant);
            if (variant % 3 == 1) {
                struct view *bias = gen_in(g, LS_F32, 0, 1, DIMS(s[2]));

                for (size_t e = 0; e < s[2]; e++)
                    element_put(bias, e, e % 2 ? 4 : 0);
            } else {
                gen_in_absent(g);
            }
            samples_in(g, s[0], variant);
            gen_out(g, LS_F32, DIMS(s[0], s[1], s[3]));
            gen_out(g, LS_I32, DIMS(s[0], s[1], s[3]));
            g->c.call.attr.route.sigmoid = variant / 3 % 2;
            g->c.call.attr.route.normalize = variant < 6 || variant > 14;
            g->c.call.attr.route.capacity = variant > 7 ? 1 + s[1] / 3 : 0;
            g->c.call.attr.route.by_probability = variant % 2;
            gen_emit(g, "B %zu T %zu E %zu K %zu variant %d", s[0], s[1], s[2], s[3], variant);
        }
}

/* K different experts per row, some of them dropped, and rows of padding at the end. */
static void index_in(struct gen *g, const size_t *s)
{
    struct view *v = gen_in(g, LS_I32, 0, 1, 3, (size_t[]){ s[0], s[1], s[3] });

    for (size_t i = 0; i < view_count(v); i++) {
        size_t row = i / s[3], e = (row * 5 + i % s[3]) % s[2];

        element_put(v, i, s[0] > 1 && row >= (s[0] - 1) * s[1] ? ROUTE_PADDING : i % 7 == 3 ? -1.0 - (double)e : (double)e);
    }
}

void route_grad_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(routes) && g->type == LS_F32; i++)
        for (int variant = 0; variant < 4; variant++) {
            const size_t *s = routes[i];

            gen_begin(g);
            gen_in(g, LS_F32, -1, 1, DIMS(s[0], s[1], s[3]));
            gen_in(g, LS_F32, -2, 2, DIMS(s[0], s[1], s[2]));
            index_in(g, s);
            gen_out(g, LS_F32, DIMS(s[0], s[1], s[2]));
            g->c.call.attr.route.sigmoid = variant % 2;
            g->c.call.attr.route.normalize = variant / 2 && s[3] > 1; /* with a single expert the gradient is 0, or rounding */
            gen_emit(g, "B %zu T %zu E %zu K %zu variant %d", s[0], s[1], s[2], s[3], variant);
        }
}

void router_loss_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(routes) && g->type == LS_F32; i++)
        for (int variant = 0; variant < 8; variant++) {
            const size_t *s = routes[i];

            gen_begin(g);
            gen_in(g, LS_F32, -2, 2, DIMS(s[0], s[1], s[2]));
            gen_in(g, LS_F32, 1, 20, DIMS(variant < 4 ? s[0] : 1, s[2]));
            samples_in(g, s[0], variant);
            if (g->op == OP_ROUTER_LOSS_GRAD)
                gen_in(g, LS_F32, 1, 2, DIMS(1));
            if (g->op == OP_ROUTER_LOSS_GRAD)
                gen_out(g, LS_F32, DIMS(s[0], s[1], s[2]));
            else
                gen_out(g, LS_F32, DIMS(1));
            g->c.call.attr.router_loss.sigmoid = variant / 2 % 2;
            g->c.call.attr.router_loss.aux = 0.3;
            g->c.call.attr.router_loss.z = 0.2;
            g->c.call.attr.router_loss.chosen = s[3];
            g->c.call.attr.router_loss.tokens = s[1];
            gen_emit(g, "B %zu T %zu E %zu K %zu variant %d", s[0], s[1], s[2], s[3], variant);
        }
}

void route_load_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(routes) && g->type == LS_F32; i++)
        for (int together = 0; together < 2; together++) {
            const size_t *s = routes[i];

            gen_begin(g);
            index_in(g, s);
            gen_out(g, LS_F32, DIMS(together ? 1 : s[0], s[2]));
            gen_emit(g, "B %zu T %zu E %zu K %zu together %d", s[0], s[1], s[2], s[3], together);
        }
}

/* All tokens, and each of three shares of them. */
void route_excess_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(routes); i++)
        for (int share = -1; share < 3; share++) {
            const size_t *s = routes[i];

            gen_begin(g);
            index_in(g, s);
            gen_out_add(g, LS_F32, -3, 3, DIMS(s[2]));
            g->c.call.attr.route_excess.share = MAX(share, 0);
            g->c.call.attr.route_excess.shares = share < 0 ? 0 : 3;
            gen_emit(g, "B %zu T %zu E %zu K %zu share %d", s[0], s[1], s[2], s[3], share);
        }
}

void sign_cases(struct gen *g)
{
    static const size_t sizes[] = { 0, 1, 7, 65 };

    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (int master = 0; master < 2; master++) {
            gen_begin(g);
            struct view *v = gen_in(g, LS_F32, -1, 1, DIMS(sizes[i]));
            if (sizes[i] > 2)
                element_put(v, 2, 0);
            gen_out_add(g, g->type, -1, 1, DIMS(sizes[i]));
            if (master)
                gen_out_add(g, LS_F32, -1, 1, DIMS(sizes[i]));
            g->c.call.attr.optim.sign_rate = 0.125;
            gen_emit(g, "%zu master %d", sizes[i], master);
        }
}

/* ---- rows: N K C, M more than are used ---- */

static const size_t kernel_experts_rows[][4] = { { 0, 2, 3, 2 }, { 1, 1, 1, 1 }, { 5, 3, 7, 15 }, { 9, 2, 17, 20 }, { 64, 3, 130, 192 },
                                  { 300, 2, 64, 700 } };

void route_rows_cases(struct gen *g)
{
    static const size_t experts[] = { 1, 5, 16 };

    for (size_t i = 0; i < COUNT_OF(kernel_experts_rows) && g->type == LS_F32; i++)
        for (size_t k = 0; k < COUNT_OF(experts); k++) {
            gen_begin(g);
            struct view *v = gen_in(g, LS_I32, 0, (double)experts[k], DIMS(kernel_experts_rows[i][0], kernel_experts_rows[i][1]));
            for (size_t n = 3; n < view_count(v); n += 5)
                element_put(v, n, n % 2 ? -1 - element_get(v, n) : ROUTE_PADDING);
            gen_out(g, LS_I32, DIMS(kernel_experts_rows[i][0], kernel_experts_rows[i][1]));
            gen_out(g, LS_I32, DIMS(1, experts[k]));
            gen_emit(g, "N %zu K %zu E %zu", kernel_experts_rows[i][0], kernel_experts_rows[i][1], experts[k]);
        }
}

/* A permutation of 0, 1, .. with holes. */
static void rows_in(struct gen *g, size_t N, size_t K)
{
    struct view *v = gen_in(g, LS_I32, 0, 1, DIMS(N, K));
    size_t used = 0, at = 0;

    for (size_t i = 0; i < N * K; i++)
        used += i % 6 != 4;
    for (size_t i = 0; i < N * K; i++)
        element_put(v, i, i % 6 == 4 ? -1 : (double)(used - 1 - at++));
}

static void weight_in(struct gen *g, size_t N, size_t K, int given)
{
    if (given)
        gen_in(g, LS_F32, 0, 1, DIMS(N, K));
    else
        gen_in_absent(g);
}

void rows_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(kernel_experts_rows); i++)
        for (int given = 0; given < 2; given++) {
            size_t N = kernel_experts_rows[i][0], K = kernel_experts_rows[i][1], C = kernel_experts_rows[i][2],
                   M = kernel_experts_rows[i][3];

            gen_begin(g);
            if (g->op != OP_ROWS_UNPERMUTE)
                gen_in(g, g->type, -1, 1, DIMS(N, C));
            if (g->op != OP_ROWS_PERMUTE)
                gen_in(g, g->type, -1, 1, DIMS(M, C));
            rows_in(g, N, K);
            if (g->op != OP_ROWS_DOT)
                weight_in(g, N, K, given);
            if (g->op == OP_ROWS_DOT)
                gen_out(g, LS_F32, DIMS(N, K));
            else if (g->op == OP_ROWS_PERMUTE)
                gen_out(g, g->type, DIMS(M, C));
            else
                gen_out(g, g->type, DIMS(N, C));
            gen_emit(g, "N %zu K %zu C %zu M %zu weight %d", N, K, C, M, given);
        }
}

/* ---- matmuls: S E rows K N, rows out of use (0: 3) ---- */

static const size_t matmuls[][6] = {
    { 1, 1, 1, 1, 1 }, { 1, 3, 0, 5, 4 }, { 1, 3, 11, 5, 7 }, { 2, 5, 37, 17, 33 }, { 3, 16, 40, 8, 24 }, { 1, 2, 230, 96, 130 },
    { 1, 1, 40, 136, 24 }, { 1, 1, 40, 24, 136 }, { 1, 1, 140, 24, 24 }, { 2, 1, 40, 8, 8 }, { 1, 2, 230, 136, 160 },
    { 2, 3, 300, 40, 136 }, { 1, 2, 5000, 9, 17 },
    /* more groups than a warp has lanes, and many rows out of use */
    { 1, 33, 60, 8, 16 }, { 2, 40, 150, 8, 8 }, { 3, 70, 330, 5, 3 }, { 1, 3, 60, 8, 24, 50 }, { 1, 2, 2300, 8, 128, 2250 },
};

/* Unevenly, and the first expert gets none from the last source. Of many groups each gets up to 3 rows, the last one all that are left. */
static void counts_in(struct gen *g, const size_t *s)
{
    struct view *v = gen_in(g, LS_I32, 0, 1, DIMS(s[0], s[1]));
    size_t unused = s[5] ? s[5] : 3, left = s[2] > unused ? s[2] - unused : 0, groups = s[0] * s[1];

    for (size_t i = 0; i < groups; i++) {
        size_t some = groups > 32 ? MIN(left, i % 4) : left * (1 + i % 3) / 4;
        size_t n = i + 1 == groups ? left : i == (s[0] - 1) * s[1] ? 0 : some;

        element_put(v, i, (double)n);
        left -= n;
    }
}

void grouped_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(matmuls); i++)
        for (int exact = 0; exact < (g->op == OP_GROUPED_LINEAR_DW ? 2 : 1); exact++) {
            const size_t *s = matmuls[i];
            size_t E = s[1], M = s[2], K = s[3], N = s[4];

            gen_begin(g);
            gen_in(g, g->type, -1, 1, DIMS(M, g->op == OP_GROUPED_LINEAR ? K : N));
            if (g->op == OP_GROUPED_LINEAR_DW)
                gen_in(g, g->type, -1, 1, DIMS(M, K));
            else
                gen_in(g, g->type, -1, 1, DIMS(E, N, K));
            counts_in(g, s);
            if (g->op == OP_GROUPED_LINEAR_DW)
                gen_out_add(g, exact ? LS_F32 : g->type, -1, 1, DIMS(E, N, K));
            else
                gen_out(g, g->type, DIMS(M, g->op == OP_GROUPED_LINEAR ? N : K));
            gen_emit(g, "S %zu E %zu M %zu K %zu N %zu, %d", s[0], E, M, K, N, exact);
        }
}
