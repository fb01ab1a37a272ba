/* attention.c - forward of attention: one block of queries over all its visible blocks of keys.
 *
 *   s = scale q k^T                     m' = max(m, max s)
 *   p = exp(s - m')                     l  = l exp(m - m') + sum p
 *   o = o exp(m - m') + p v             at the end o / l, lse = m + ln l
 * With dropout, p v is that of the probabilities that are kept, divided by 1 - drop.p; the sums are over all probabilities.
 */
#include "kernels/cpu/simd/attention.h"

#include <math.h>

enum { ROWS = 2 * QUERIES }; /* each block packs its keys again, so there are fewer, larger blocks than in backward */

/* Scratch of one thread. */
struct forward {
    const struct attention *a;
    size_t b, h, t0, rows; /* index of the queries */
    size_t columns;        /* D rounded up to panels */
    struct rows q;
    void *q_rows;      /* copies, if q can't be read in place */
    void *k, *v;       /* panels: keys along the panel; D along the panel */
    float *s;          /* [ROWS, KEYS] scores, then probabilities */
    uint16_t *p;       /* [ROWS, KEYS] probabilities as bf16; with pairs */
    float *o;          /* [ROWS, columns] */
    float *most, *sum; /* [ROWS] m; [ROWS, LANES] l, lane by lane */
};

static size_t layout(struct forward *f, void *scratch)
{
    size_t D = f->a->D + f->a->D % 2, columns = whole_panels(D);
    struct parts at = { scratch, 0 };

    f->columns = columns;
    f->q_rows = take(&at, ROWS * D * sizeof(float));
    f->k = take(&at, KEYS * D * sizeof(float));
    f->v = take(&at, KEYS * columns * sizeof(float));
    f->s = take(&at, ROWS * KEYS * sizeof(float));
    f->p = take(&at, ROWS * KEYS * sizeof(uint16_t));
    f->o = take(&at, ROWS * columns * sizeof(float));
    f->most = take(&at, ROWS * sizeof(float));
    f->sum = take(&at, ROWS * LANES * sizeof(float));
    return at.used;
}

static size_t forward_scratch(const struct attention *a)
{
    struct forward f = { .a = a };

    return layout(&f, NULL);
}

/* Turns scores of n keys into probabilities relative to the largest so far, times keep[] (NULL: 1); the others, up to `all`, become 0. */
INLINE void softmax_row(struct forward *f, bool pairs, size_t i, size_t n, size_t all, const float *keep)
{
    float *s = f->s + i * KEYS, *o = f->o + i * f->columns, most = f->most[i];
    vf largest = vset(-INFINITY), sum = vload_f32(f->sum + i * LANES, LANES), scale = vset(f->a->scale);

    EACH(j, count, 0, n)
    largest = vmax(largest, vkeep(vload_f32(s + j, count) * scale, count, -INFINITY));
    most = MAX(most, lanes_max(largest));
    if (most > f->most[i]) {
        vf shrink = vset(expf(f->most[i] - most));

        for (size_t d = 0; d < f->columns; d += LANES) vstore_f32(o + d, LANES, vload_f32(o + d, LANES) * shrink);
        sum *= shrink;
        f->most[i] = most;
    }
    for (size_t j = 0; j < all; j += LANES) {
        vf p = vset(0);

        if (j < n) p = vkeep(vexp(vload_f32(s + j, LANES) * scale - vset(most)), MIN(n - j, (size_t)LANES), 0);
        sum += p;
        if (keep && j < n) p *= vload_f32(keep + j, LANES);
        if (pairs)
            store(LS_BF16, f->p, i * KEYS + j, LANES, p);
        else
            vstore_f32(s + j, LANES, p);
    }
    vstore_f32(f->sum + i * LANES, LANES, sum);
}

/* Processes keys [s0, s0 + n) for the rows that see any of them. */
static void forward_keys(struct forward *f, size_t s0, size_t n)
{
    const struct attention *a = f->a;
    size_t g = f->h / (a->H / a->G), first = first_row(a, f->t0, s0), rows = f->rows - first, even = n + n % 2;
    struct rows p = { f->s + first * KEYS, TILE_ROWS * KEYS, KEYS, 1 };
    float mask[KEYS + LANES], *keep = a->mask.attr ? mask : NULL;

    pack_all(f->k, a->pairs, a->D, n, turned(head_rows(&a->k, f->b, s0, g)));
    pack_all(f->v, a->pairs, n, a->D, head_rows(&a->v, f->b, s0, g));
    multiply(a->pairs, rows, n, 0, a->D, a->D, rows_from(f->q, a->pairs, first), f->k, f->s + first * KEYS, KEYS, false);
    for (size_t i = first; i < f->rows; i++) {
        size_t sees = seen(a, f->t0 + i), here = sees > s0 ? MIN(sees - s0, n) : 0;

        if (keep) mask_row(a, f->b, f->h, f->t0 + i, s0, here, keep);
        if (a->pairs)
            softmax_row(f, true, i, here, even, keep);
        else
            softmax_row(f, false, i, here, n, keep);
    }
    if (a->pairs) p = (struct rows){ f->p + first * KEYS, TILE_ROWS * KEYS, KEYS, 2 };
    multiply(a->pairs, rows, a->D, 0, n, n, p, f->v, f->o + first * f->columns, f->columns, true);
}

static void finish_rows(const struct forward *f)
{
    const struct attention *a = f->a;
    struct matrix o = head_rows(&a->o, f->b, f->t0, f->h);

    for (size_t i = 0; i < f->rows; i++) {
        float sum = vsum(vload_f32(f->sum + i * LANES, LANES)), inverse = sum == 0 ? 0 : 1 / sum;
        size_t to = i * (size_t)o.row;

        a->lse[(f->b * a->H + f->h) * a->T + f->t0 + i] = sum == 0 ? -INFINITY : f->most[i] + logf(sum);
        EACH(d, n, 0, a->D)
        BY_TYPE(o.type, T, store(T, o.data, to + d, n, vload_f32(f->o + i * f->columns + d, n) * vset(inverse)))
    }
}

static void simd_attention_forward(const struct attention *a, size_t b, size_t h, size_t i, void *scratch)
{
    struct forward f = { .a = a, .b = b, .h = h, .t0 = i * ROWS };
    struct matrix q = head_rows(&a->q, b, f.t0, h);

    layout(&f, scratch);
    f.rows = MIN(a->T - f.t0, (size_t)ROWS);
    f.q = pack_rows(f.q_rows, a->pairs, f.rows, a->D, &q);
    for (size_t r = 0; r < f.rows; r++) f.most[r] = -INFINITY;
    memset(f.sum, 0, f.rows * LANES * sizeof *f.sum);
    memset(f.o, 0, f.rows * f.columns * sizeof *f.o);
    size_t last = seen(a, f.t0 + f.rows - 1);
    for (size_t s = 0; s < last; s += KEYS) forward_keys(&f, s, MIN(last - s, (size_t)KEYS));
    finish_rows(&f);
}

const struct attention_blocks SIMD_PASTE(attention_, blocks, SIMD_ISA) = {
    .queries = ROWS,
    .forward_scratch = forward_scratch,
    .backward_scratch = attention_backward_scratch,
    .forward = simd_attention_forward,
    .backward = attention_backward,
};
