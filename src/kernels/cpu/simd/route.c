/* route.c - routings in f32: vectorized scores, choices, drops, row indices; the losses of routers. Formulas and the encoding of index:
 * ref/route.c, route.h.
 *
 * Threads share the tokens, or the samples if tokens are dropped; losses are summed by BLOCKs of tokens, which are added in order. A heap
 * of an expert's entries, the first to be dropped on top, decides what exceeds its capacity.
 */
#include "kernels/cpu/simd/simd_math.h"

#include <math.h>
#include "kernels/cpu/route.h"

enum { BLOCK = 64 };

static size_t real_rows(const struct call *c, const struct view *logits, int samples)
{
    size_t rows = view_rows(logits), T = rows / MAX(logits->size[0], (size_t)1);

    return call_has_in(c, samples) ? MIN(rows, (size_t)((const float *)c->in[samples].data)[0] * T) : rows;
}

static bool is_optional_f32(const struct call *c, int k) { return !call_has_in(c, k) || is_f32(&c->in[k]); }

/* s[E] of a token; returns log sum exp of its logits. */
INLINE float scores(const float *logits, size_t E, int sigmoid, float *s)
{
    vf most = vset(-INFINITY), sum = vset(0.0f);

    EACH(e, n, 0, E)
    most = vmax(vkeep(load(LS_F32, logits, e, n), n, -INFINITY), most);
    float top = vlargest(most);
    EACH(e, n, 0, E)
    {
        vf x = vexp(load(LS_F32, logits, e, n) - vset(top));

        sum += vkeep(x, n, 0.0f);
        if (!sigmoid) store(LS_F32, s, e, n, x);
    }
    float all = vsum(sum);
    EACH(e, n, 0, E)
    store(LS_F32, s, e, n, sigmoid ? vset(1.0f) / (vset(1.0f) + vexp(-load(LS_F32, logits, e, n))) : load(LS_F32, s, e, n) / vset(all));
    return top + logf(all);
}

/* ---- routing ---- */

struct routing {
    const struct call *c;
    size_t E, K, T, real;
    float *own;
    size_t bytes;
};

static struct routing routing_of(const struct call *c)
{
    const struct view *logits = &c->in[0];
    struct routing r = { .c = c, .E = view_last(logits), .K = view_last(&c->out[0]) };

    r.T = view_rows(logits) / MAX(logits->size[0], (size_t)1);
    r.bytes = (2 * r.E * sizeof(float) + r.T * r.K * sizeof(int32_t) + 63) / 64 * 64;
    r.own = c->scratch;
    return r;
}

static void simd_route_choose(const struct routing *r, size_t row, const float *s, float *open)
{
    const float *bias = call_has_in(r->c, 1) ? r->c->in[1].data : NULL;
    float *weight = (float *)r->c->out[0].data + row * r->K;
    int32_t *index = (int32_t *)r->c->out[1].data + row * r->K;

    for (size_t e = 0; e < r->E; e++) {
        open[e] = s[e] + (bias ? bias[e] : 0);
        open[e] = ROUTE_ORDER(open[e]);
    }
    for (size_t k = 0; k < r->K; k++) {
        size_t best = 0;

        while (!ROUTE_IS_OPEN(open[best])) best++;
        for (size_t e = best + 1; e < r->E; e++)
            if (open[e] > open[best]) best = e; /* false of those that were chosen */
        open[best] = ROUTE_CHOSEN;
        weight[k] = s[best];
        index[k] = (int32_t)best;
    }
}

static void choose_tokens(void *ctx, size_t begin, size_t end, int thread)
{
    const struct routing *r = ctx;
    float *s = (float *)((char *)r->own + (size_t)thread * r->bytes);

    for (size_t row = begin; row < end; row++) {
        scores((const float *)r->c->in[0].data + row * r->E, r->E, r->c->attr.route.sigmoid, s);
        simd_route_choose(r, row, s, s + r->E);
    }
}

/* True if entry a is dropped before entry b of the same expert. */
INLINE bool goes_first(const struct routing *r, int32_t a, int32_t b)
{
    const float *weight = r->c->out[0].data;
    float its = ROUTE_ORDER(weight[a]), other = ROUTE_ORDER(weight[b]);

    if (r->c->attr.route.by_probability && its != other) return its < other;
    return a > b;
}

static void sink(const struct routing *r, int32_t *heap, size_t n, size_t at)
{
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        int32_t moved = heap[at];

        if (child + 1 < n && goes_first(r, heap[child + 1], heap[child])) child++;
        if (!goes_first(r, heap[child], moved)) return;
        heap[at] = heap[child];
        heap[child] = moved;
    }
}

static void drop_samples(void *ctx, size_t begin, size_t end, int thread)
{
    const struct routing *r = ctx;
    int32_t *index = r->c->out[1].data, *heap = (int32_t *)((char *)r->own + (size_t)thread * r->bytes) + 2 * r->E;

    for (size_t b = begin; b < end; b++)
        for (size_t e = 0; e < r->E; e++) {
            size_t n = 0;

            for (size_t i = b * r->T * r->K; i < MIN((b + 1) * r->T, r->real) * r->K; i++)
                if (index[i] == (int32_t)e) heap[n++] = (int32_t)i;
            if (n <= r->c->attr.route.capacity) continue;
            for (size_t at = n / 2; at-- > 0;) sink(r, heap, n, at);
            for (; n > r->c->attr.route.capacity; heap[0] = heap[--n], sink(r, heap, n, 0)) index[heap[0]] = ~(int32_t)e;
        }
}

/* Turns scores into weights. */
static void weigh(const struct routing *r)
{
    float *weight = r->c->out[0].data;
    const int32_t *index = r->c->out[1].data;

    for (size_t row = 0; row < r->real; row++) {
        float sum = 0;

        for (size_t i = row * r->K; i < (row + 1) * r->K; i++) sum += weight[i];
        float factor = r->c->attr.route.normalize ? 1 / sum : 1;
        for (size_t i = row * r->K; i < (row + 1) * r->K; i++) weight[i] = index[i] < 0 ? 0 : weight[i] * factor;
    }
}

static bool route_accepts(const struct call *c)
{
    return is_f32(&c->in[0]) && is_optional_f32(c, 1) && is_optional_f32(c, 2) && is_f32(&c->out[0]) && is_i32(&c->out[1]) &&
           view_count(&c->out[1]) < INT32_MAX;
}

static size_t route_scratch(const struct call *c) { return routing_of(c).bytes * (size_t)threads_count(); }

static void route(const struct call *c)
{
    struct routing r = routing_of(c);
    int32_t *index = c->out[1].data;

    r.real = real_rows(c, &c->in[0], 2);
    threads_for(r.real, row_grain(r.E), choose_tokens, &r);
    if (c->attr.route.capacity && r.T) threads_each((r.real + r.T - 1) / r.T, 1, drop_samples, &r);
    weigh(&r);
    for (size_t i = r.real * r.K; i < view_count(&c->out[1]); i++) {
        index[i] = ROUTE_PADDING;
        ((float *)c->out[0].data)[i] = 0;
    }
}

/* ---- its gradient ---- */

static void grad_tokens(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    size_t E = view_last(&c->in[1]), K = view_last(&c->in[0]);
    float *s = (float *)c->scratch + (size_t)thread * 2 * E, *ds = s + E;

    for (size_t row = begin; row < end; row++) {
        const float *dw = (const float *)c->in[0].data + row * K;
        const int32_t *index = (const int32_t *)c->in[2].data + row * K;
        float *out = (float *)c->out[0].data + row * E, sum = 0, mean = 0, inner = 0;

        if (index[0] == ROUTE_PADDING) {
            memset(out, 0, E * sizeof *out);
            continue;
        }
        scores((const float *)c->in[1].data + row * E, E, c->attr.route.sigmoid, s);
        memset(ds, 0, E * sizeof *ds);
        for (size_t k = 0; k < K; k++) {
            int32_t e = index[k] < 0 ? ~index[k] : index[k];

            sum += s[e];
            ds[e] = index[k] < 0 ? 0 : dw[k];
            mean += ds[e] * s[e];
        }
        for (size_t k = 0; k < K; k++) {
            int32_t e = index[k] < 0 ? ~index[k] : index[k];

            if (c->attr.route.normalize) ds[e] = (ds[e] - mean / sum) / sum;
            inner += ds[e] * s[e];
        }
        EACH(e, n, 0, E)
        {
            vf x = load(LS_F32, s, e, n), d = load(LS_F32, ds, e, n);

            store(LS_F32, out, e, n, c->attr.route.sigmoid ? d * x * (vset(1.0f) - x) : x * (d - vset(inner)));
        }
    }
}

static bool grad_accepts(const struct call *c) { return is_f32(&c->in[0]) && is_f32(&c->in[1]) && is_i32(&c->in[2]) && is_f32(&c->out[0]); }

static size_t grad_scratch(const struct call *c) { return 2 * view_last(&c->in[1]) * sizeof(float) * (size_t)threads_count(); }

static void route_grad(const struct call *c) { threads_for(view_rows(&c->in[1]), row_grain(view_last(&c->in[1])), grad_tokens, (void *)c); }

/* ---- rows ---- */

static bool rows_accepts(const struct call *c) { return is_i32(&c->in[0]) && is_i32(&c->out[0]) && is_i32(&c->out[1]); }
static size_t rows_scratch(const struct call *c) { return view_count(&c->out[1]) * sizeof(int32_t); }

static void route_rows(const struct call *c)
{
    const int32_t *index = c->in[0].data;
    int32_t *rows = c->out[0].data, *counts = c->out[1].data, *next = c->scratch, at = 0;
    size_t E = view_count(&c->out[1]), n = view_count(&c->in[0]);

    memset(counts, 0, E * sizeof *counts);
    for (size_t i = 0; i < n; i++)
        if (index[i] >= 0) counts[index[i]]++;
    for (size_t e = 0; e < E; e++) {
        next[e] = at;
        at += counts[e];
    }
    for (size_t i = 0; i < n; i++) rows[i] = index[i] >= 0 ? next[index[i]]++ : -1;
}

/* ---- loads ---- */

static bool load_accepts(const struct call *c) { return is_i32(&c->in[0]) && is_f32(&c->out[0]); }

static void route_load(const struct call *c)
{
    const int32_t *index = c->in[0].data;
    size_t E = view_last(&c->out[0]), G = view_rows(&c->out[0]), each = view_count(&c->in[0]) / MAX(G, (size_t)1);
    float *load = c->out[0].data;

    memset(load, 0, G * E * sizeof *load);
    for (size_t g = 0; g < G; g++, load += E)
        for (size_t i = 0; i < each; i++, index++)
            if (*index != ROUTE_PADDING) load[*index < 0 ? ~*index : *index] += 1;
}

/* ---- losses ---- */

struct losses {
    const struct call *c;
    size_t E, real, each;
    float *aux, z, dloss;
}; /* each: rows of a group; aux[group] */

/* aux comes before the blocks' sums and the threads' scores. */
static struct losses losses_of(const struct call *c)
{
    struct losses l = { .c = c, .E = view_last(&c->in[0]), .real = real_rows(c, &c->in[0], 2), .aux = c->scratch };
    size_t G = view_rows(&c->in[1]);
    const float *load = c->in[1].data;
    double all = 0;

    l.each = view_rows(&c->in[0]) / MAX(G, (size_t)1);
    for (size_t i = 0; i < G * l.E; i++) all += load[i];
    double N = call_has_in(c, 2) ? ((const float *)c->in[2].data)[1] * (double)c->attr.router_loss.tokens
                                 : all / (double)c->attr.router_loss.chosen;
    l.z = N > 0 ? (float)(c->attr.router_loss.z / N) : 0;
    for (size_t g = 0; g < G; g++, load += l.E) {
        double n = 0;

        for (size_t e = 0; e < l.E; e++) n += load[e];
        l.aux[g] = n > 0 && N > 0 ? (float)(c->attr.router_loss.aux * (double)l.E * (double)c->attr.router_loss.chosen / (n * N)) : 0;
    }
    return l;
}

INLINE const float *row_load(const struct losses *l, size_t row) { return (const float *)l->c->in[1].data + row / l->each * l->E; }

/* s[E], their sum, and the mean of aux * load under them. */
INLINE void shares(const struct losses *l, size_t row, float *s, float *lse, float *sum, float *mean)
{
    const float *of_group = row_load(l, row);
    vf all = vset(0.0f), weighed = vset(0.0f);

    *lse = scores((const float *)l->c->in[0].data + row * l->E, l->E, l->c->attr.router_loss.sigmoid, s);
    EACH(e, n, 0, l->E)
    {
        vf x = vkeep(load(LS_F32, s, e, n), n, 0.0f);

        all += x;
        weighed += x * load(LS_F32, of_group, e, n);
    }
    *sum = vsum(all);
    *mean = l->aux[row / l->each] * vsum(weighed) / *sum;
}

static size_t route_blocks_of(const struct call *c) { return (view_rows(&c->in[0]) + BLOCK - 1) / BLOCK; }

static size_t bytes_of_aux(const struct call *c) { return (view_rows(&c->in[1]) * sizeof(float) + 63) / 64 * 64; }
static double *block_losses(const struct call *c) { return (double *)((char *)c->scratch + bytes_of_aux(c)); }

static float *thread_scores(const struct call *c, int thread)
{
    return (float *)(block_losses(c) + route_blocks_of(c)) + (size_t)thread * view_last(&c->in[0]);
}

static void loss_blocks(void *ctx, size_t begin, size_t end, int thread)
{
    const struct losses *l = ctx;
    float *s = thread_scores(l->c, thread), lse, sum, mean;

    for (size_t b = begin; b < end; b++) {
        double loss = 0;

        for (size_t row = b * BLOCK; row < MIN((b + 1) * BLOCK, l->real); row++) {
            shares(l, row, s, &lse, &sum, &mean);
            loss += (double)mean + (double)l->z * lse * lse;
        }
        block_losses(l->c)[b] = loss;
    }
}

static void loss_grad_blocks(void *ctx, size_t begin, size_t end, int thread)
{
    const struct losses *l = ctx;
    float *s = thread_scores(l->c, thread), lse, sum, mean;

    for (size_t row = begin * BLOCK; row < MIN(end * BLOCK, l->real); row++) {
        const float *logits = (const float *)l->c->in[0].data + row * l->E, *of_group = row_load(l, row);
        vf aux = vset(l->aux[row / l->each]);

        shares(l, row, s, &lse, &sum, &mean);
        EACH(e, n, 0, l->E)
        {
            vf x = load(LS_F32, s, e, n), d = (aux * load(LS_F32, of_group, e, n) - vset(mean)) * x / vset(sum);

            if (l->c->attr.router_loss.sigmoid) d *= vset(1.0f) - x;
            d += vset(2 * l->z * lse) * vexp(load(LS_F32, logits, e, n) - vset(lse));
            store(LS_F32, l->c->out[0].data, row * l->E + e, n, vset(l->dloss) * d);
        }
    }
}

static bool loss_accepts(const struct call *c)
{
    return is_f32(&c->in[0]) && is_f32(&c->in[1]) && is_optional_f32(c, 2) && is_f32(&c->out[0]) &&
           (c->op == OP_ROUTER_LOSS || is_f32(&c->in[3]));
}

static size_t loss_scratch(const struct call *c)
{
    return bytes_of_aux(c) + route_blocks_of(c) * sizeof(double) + view_last(&c->in[0]) * sizeof(float) * (size_t)threads_count();
}

static void router_loss(const struct call *c)
{
    struct losses l = losses_of(c);
    double loss = 0;

    threads_for(route_blocks_of(c), 1, loss_blocks, &l);
    for (size_t b = 0; b < route_blocks_of(c); b++) loss += block_losses(c)[b];
    *(float *)c->out[0].data = (float)loss;
}

static void router_loss_grad(const struct call *c)
{
    struct losses l = losses_of(c);
    size_t rest = l.real * l.E;

    l.dloss = *(const float *)c->in[3].data;
    threads_for(route_blocks_of(c), 1, loss_grad_blocks, &l);
    memset((float *)c->out[0].data + rest, 0, (view_count(&c->out[0]) - rest) * sizeof(float));
}

const struct kernel SIMD_TABLE(route)[] = {
    SIMD_ROW(ROUTE, route_accepts, route_scratch, route),
    SIMD_ROW(ROUTE_GRAD, grad_accepts, grad_scratch, route_grad),
    SIMD_ROW(ROUTE_ROWS, rows_accepts, rows_scratch, route_rows),
    SIMD_ROW(ROUTE_LOAD, load_accepts, NULL, route_load),
    SIMD_ROW(ROUTER_LOSS, loss_accepts, loss_scratch, router_loss),
    SIMD_ROW(ROUTER_LOSS_GRAD, loss_accepts, loss_scratch, router_loss_grad),
    KERNELS_END,
};
