/* loss.c - reference: losses.
 *
 * linear_xent: logits l[r,v] = x[r].w[v]; rows with y < 0 are ignored; y >= V is a bug in the caller.
 *   lse[r] = ln sum_v exp l[r,v]
 *   loss = (1/denom) sum over valid rows of (lse[r] - l[r,y[r]]); denom absent: the number of valid rows; a call without valid rows gives 0
 *   dl[r,v] = dloss/denom (exp(l[r,v] - lse[r]) - [v == y[r]]), 0 in ignored rows;  dx = dl w;  dw += dl^T x
 * The same in parts, if each of n ranks has some columns of the logits: lse and loss are computed from XENT_PART's statistics of all ranks.
 *   lse = M + ln sum_n s_n exp(m_n - M), M = max m_n, with m, s: a part's largest logit and sum of exp(l - m)
 */
#include "kernels/cpu/ref/ref.h"

#include <math.h>

/* Operands by name: the gradient's loss is out[2], its optional lse in[4]. */
struct ref_xent {
    const struct view *x, *w, *y;
    size_t R, C, V;
    double inverse; /* 1/denom */
    double *lse;    /* [R] */
};

static struct ref_xent xent_of(const struct call *c)
{
    struct ref_xent z = { .x = &c->in[0], .w = &c->in[1], .y = &c->in[2] };
    size_t valid = 0;

    z.R = view_rows(z.x);
    z.C = view_last(z.x);
    z.V = z.w->size[0];
    z.lse = c->scratch;
    for (size_t r = 0; r < z.R; r++) {
        ASSERT(ref_int(z.y, r) < (int64_t)z.V);
        valid += ref_int(z.y, r) >= 0;
    }
    if (call_has_in(c, 3))
        z.inverse = 1 / ref_get(&c->in[3], 0);
    else
        z.inverse = valid ? 1 / (double)valid : 0;
    return z;
}

static double logit(const struct ref_xent *z, size_t r, size_t v) { return ref_dot(0, z->x, r * z->C, 1, z->w, v * z->C, 1, z->C); }

/* ln sum exp, in one pass: sum is kept relative to the largest logit so far. */
static double row_lse(const struct ref_xent *z, size_t r)
{
    double most = -INFINITY, sum = 0;

    for (size_t v = 0; v < z->V; v++) {
        double l = logit(z, r, v);

        if (l > most) {
            sum = sum * exp(most - l) + 1;
            most = l;
        } else {
            sum += exp(l - most);
        }
    }
    return most + log(sum);
}

static double xent_loss(const struct ref_xent *z)
{
    double loss = 0;

    for (size_t r = 0; r < z->R; r++) {
        int64_t y = ref_int(z->y, r);

        if (y >= 0) loss += z->lse[r] - logit(z, r, (size_t)y);
    }
    return z->inverse == 0 ? 0 : loss * z->inverse;
}

static size_t xent_scratch(const struct call *c) { return (view_rows(&c->in[0]) + c->in[1].size[0]) * sizeof(double); }

static void linear_xent(const struct call *c)
{
    struct ref_xent z = xent_of(c);

    for (size_t r = 0; r < z.R; r++) {
        z.lse[r] = row_lse(&z, r);
        ref_put(&c->out[1], r, z.lse[r]);
    }
    ref_put(&c->out[0], 0, xent_loss(&z));
}

static double xent_dlogit(const struct ref_xent *z, size_t r, size_t v)
{
    int64_t y = ref_int(z->y, r);

    if (y < 0) return 0;
    return z->inverse * (exp(logit(z, r, v) - z->lse[r]) - (v == (size_t)y));
}

static void xent_dx(const struct ref_xent *z, double dloss, double *dl, const struct view *dx)
{
    for (size_t r = 0; r < z->R; r++) {
        for (size_t v = 0; v < z->V; v++) dl[v] = dloss * xent_dlogit(z, r, v);
        for (size_t i = 0; i < z->C; i++) ref_put(dx, r * z->C + i, ref_dot_doubles(0, dl, z->w, i, z->C, z->V));
    }
}

static void xent_dw(const struct ref_xent *z, double dloss, double *dl, const struct view *dw)
{
    for (size_t v = 0; v < z->V; v++) {
        for (size_t r = 0; r < z->R; r++) dl[r] = dloss * xent_dlogit(z, r, v);
        for (size_t i = 0; i < z->C; i++) ref_add(dw, v * z->C + i, ref_dot_doubles(0, dl, z->x, i, z->C, z->R));
    }
}

static size_t xent_grad_scratch(const struct call *c)
{
    size_t R = view_rows(&c->in[0]), V = c->in[1].size[0];

    return (R + MAX(R, V)) * sizeof(double);
}

static void linear_xent_grad(const struct call *c)
{
    struct ref_xent z = xent_of(c);
    double dloss = ref_get(&c->in[5], 0), *dl = z.lse + z.R;

    for (size_t r = 0; r < z.R; r++) z.lse[r] = call_has_in(c, 4) ? ref_get(&c->in[4], r) : row_lse(&z, r);
    if (call_has_out(c, 2)) ref_put(&c->out[2], 0, xent_loss(&z));
    if (call_has_out(c, 0)) xent_dx(&z, dloss, dl, &c->out[0]);
    if (call_has_out(c, 1)) xent_dw(&z, dloss, dl, &c->out[1]);
}

static void mse(const struct call *c)
{
    size_t count = view_count(&c->in[0]);
    double sum = 0;

    for (size_t i = 0; i < count; i++) sum += pow(ref_get(&c->in[0], i) - ref_get(&c->in[1], i), 2);
    ref_put(&c->out[0], 0, count ? sum / (double)count : 0);
}

static void mse_grad(const struct call *c)
{
    size_t count = view_count(&c->in[0]);
    double dloss = ref_get(&c->in[2], 0);

    for (size_t i = 0; i < count; i++) ref_put(&c->out[0], i, dloss * 2 * (ref_get(&c->in[0], i) - ref_get(&c->in[1], i)) / (double)count);
}

/* ---- the parts ---- */

/* The column of this part that is row r's target; view_last(l) or more: ignored, or another part's. */
static size_t target_column(const struct call *c, size_t r)
{
    int64_t y = ref_int(&c->in[1], r);

    return y < 0 ? SIZE_MAX : (size_t)y - c->attr.embedding.first;
}

static void xent_count(const struct call *c)
{
    size_t valid = 0;

    for (size_t r = 0; r < view_count(&c->in[0]); r++) valid += ref_int(&c->in[0], r) >= 0;
    ref_put(&c->out[0], 0, valid ? (double)valid : 1);
}

static void xent_part(const struct call *c)
{
    const struct view *l = &c->in[0], *stats = &c->out[0];
    size_t v = view_last(l);

    for (size_t r = 0; r < view_rows(l); r++) {
        double most = -INFINITY, sum = 0;
        size_t y = target_column(c, r);

        for (size_t i = 0; i < v; i++) most = fmax(most, ref_get(l, r * v + i));
        for (size_t i = 0; i < v; i++) sum += exp(ref_get(l, r * v + i) - most);
        ref_put(stats, 3 * r, most);
        ref_put(stats, 3 * r + 1, sum);
        ref_put(stats, 3 * r + 2, y < v ? ref_get(l, r * v + y) : 0);
    }
}

static void xent_combine(const struct call *c)
{
    const struct view *stats = &c->in[0];
    size_t n = stats->size[0], R = view_count(&c->in[1]);
    double loss = 0, denom = ref_get(&c->in[2], 0);

    for (size_t r = 0; r < R; r++) {
        double most = -INFINITY, sum = 0, target = 0;

        for (size_t k = 0; k < n; k++) most = fmax(most, ref_get(stats, (k * R + r) * 3));
        for (size_t k = 0; k < n; k++) {
            sum += ref_get(stats, (k * R + r) * 3 + 1) * exp(ref_get(stats, (k * R + r) * 3) - most);
            target += ref_get(stats, (k * R + r) * 3 + 2);
        }
        ref_put(&c->out[1], r, most + log(sum));
        if (ref_int(&c->in[1], r) >= 0) loss += most + log(sum) - target;
    }
    ref_add(&c->out[0], 0, loss / denom);
}

static void xent_dlogits(const struct call *c)
{
    const struct view *l = &c->in[0];
    size_t v = view_last(l);
    double factor = ref_get(&c->in[4], 0) / ref_get(&c->in[3], 0);

    for (size_t r = 0; r < view_rows(l); r++) {
        bool ignored = ref_int(&c->in[1], r) < 0;
        size_t y = target_column(c, r);

        for (size_t i = 0; i < v; i++)
            ref_put(&c->out[0], r * v + i, ignored ? 0 : factor * (exp(ref_get(l, r * v + i) - ref_get(&c->in[2], r)) - (i == y)));
    }
}

const struct kernel kernels_ref_loss[] = {
    REF_ROW(LINEAR_XENT, linear_xent, xent_scratch),
    REF_ROW(LINEAR_XENT_GRAD, linear_xent_grad, xent_grad_scratch),
    REF_ROW(XENT_COUNT, xent_count, NULL),
    REF_ROW(XENT_PART, xent_part, NULL),
    REF_ROW(XENT_COMBINE, xent_combine, NULL),
    REF_ROW(XENT_DLOGITS, xent_dlogits, NULL),
    REF_ROW(MSE, mse, NULL),
    REF_ROW(MSE_GRAD, mse_grad, NULL),
    KERNELS_END,
};
