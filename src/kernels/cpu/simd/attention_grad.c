/* attention_grad.c - backward of attention for the heads of one group.
 *
 *   p  = exp(scale q k^T - lse)         dv += p^T do
 *   ds = p (do v^T - delta) scale       dk += ds^T q        delta = sum over D of do o
 *                                       dq += ds k
 * With dropout, w is 0 or 1 / (1 - drop.p): dv += (w p)^T do, ds = p (w do v^T - delta) scale.
 * Head by head: panels of q and do are packed once, then each block of keys is combined with the blocks of queries that see it. With pairs
 * of bf16, p and ds are also written with two queries interleaved, as rows of p^T and ds^T; on AMX as these rows themselves.
 */
#include "kernels/cpu/simd/attention.h"

struct backward {
    const struct attention *a;
    size_t b, g, h;
    size_t columns;           /* D rounded up to panels */
    void *q_rows, *go_rows;   /* copies of a block, if it can't be read in place */
    char *q, *go;             /* panels of each block of queries, D along the panel */
    size_t block;             /* bytes of the panels of one block */
    void *kt, *vt, *k;        /* panels of a block of keys: keys along the panel; D along the panel */
    float *p, *ds;            /* [QUERIES, KEYS] scores, then probabilities; do v^T, then ds */
    uint16_t *p2, *ds2, *ds1; /* with pairs: [QUERIES/2, KEYS, 2] of p and ds, or [KEYS, QUERIES]; [QUERIES, KEYS] of ds */
    float *delta;             /* [T] */
    float *dq, *dk, *dv;      /* [T], [S], [S] x [columns]: sums */
};

static size_t layout(struct backward *f, void *scratch)
{
    const struct attention *a = f->a;
    size_t D = a->D + a->D % 2, columns = whole_panels(D), blocks = (a->T + QUERIES - 1) / QUERIES;
    struct parts at = { scratch, 0 };

    f->columns = columns;
    f->block = packed_bytes(a->pairs, QUERIES) * (columns / PANEL);
    f->q_rows = take(&at, QUERIES * D * sizeof(float));
    f->go_rows = take(&at, QUERIES * D * sizeof(float));
    f->q = take(&at, blocks * f->block);
    f->go = take(&at, blocks * f->block);
    f->kt = take(&at, KEYS * D * sizeof(float));
    f->vt = take(&at, KEYS * D * sizeof(float));
    f->k = take(&at, KEYS * columns * sizeof(float));
    f->p = take(&at, QUERIES * KEYS * sizeof(float));
    f->ds = take(&at, QUERIES * KEYS * sizeof(float));
    f->p2 = take(&at, QUERIES * KEYS * sizeof(uint16_t));
    f->ds2 = take(&at, QUERIES * KEYS * sizeof(uint16_t));
    f->ds1 = take(&at, QUERIES * KEYS * sizeof(uint16_t));
    f->delta = take(&at, a->T * sizeof(float));
    f->dq = take(&at, a->T * columns * sizeof(float));
    f->dk = take(&at, a->S * columns * sizeof(float));
    f->dv = take(&at, a->S * columns * sizeof(float));
    return at.used;
}

size_t attention_backward_scratch(const struct attention *a)
{
    struct backward f = { .a = a };

    return layout(&f, NULL);
}

static void delta_rows(struct backward *f)
{
    struct matrix o = head_rows(&f->a->o, f->b, 0, f->h), go = head_rows(&f->a->go, f->b, 0, f->h);

    for (size_t t = 0; t < f->a->T; t++) {
        vf sum = vset(0);

        EACH(d, n, 0, f->a->D)
        {
            vf x = vset(0), y = vset(0);

            BY_TYPE(o.type, T, x = load(T, o.data, t * (size_t)o.row + d, n))
            BY_TYPE(go.type, T, y = load(T, go.data, t * (size_t)go.row + d, n))
            sum += x * y;
        }
        f->delta[t] = vsum(sum);
    }
}

/* ds and w p of one query from its scores and do v^T: keys [0, n) are used, the others up to `all` get 0. keep: w, or NULL: 1. */
INLINE void weigh(const struct backward *f, size_t t, float *p, float *ds, size_t n, size_t all, const float *keep)
{
    vf scale = vset(f->a->scale), delta = vset(f->delta[t]);
    vf lse = vset(f->a->lse[(f->b * f->a->H + f->h) * f->a->T + t]);

    for (size_t j = 0; j < all; j += LANES) {
        vf x = vset(0), y = vset(0);

        if (j < n) {
            size_t here = MIN(n - j, (size_t)LANES);
            vf w = keep ? vload_f32(keep + j, LANES) : vset(1);

            x = vkeep(vexp(vload_f32(p + j, LANES) * scale - lse), here, 0);
            y = vkeep(x * (vload_f32(ds + j, LANES) * w - delta) * scale, here, 0);
            x *= w;
        }
        vstore_f32(p + j, LANES, x);
        vstore_f32(ds + j, LANES, y);
    }
}

#ifdef SIMD_AVX512
INLINE __m512i pair_up(vf low, vf high)
{
    __m512i x = _mm512_cvtepu16_epi32(vto_bf16(low)), y = _mm512_cvtepu16_epi32(vto_bf16(high));

    return _mm512_or_si512(x, _mm512_slli_epi32(y, 16));
}

/* Rows i and i + 1 in bf16; rows past the last are zeros. */
static void round_pair(struct backward *f, size_t i, bool both, size_t all)
{
    for (size_t j = 0; j < all; j += LANES) {
        size_t at = i * KEYS + j;
        vf p1 = vset(0), ds1 = vset(0), p0 = vload_f32(f->p + at, LANES), ds0 = vload_f32(f->ds + at, LANES);

        if (both) {
            p1 = vload_f32(f->p + at + KEYS, LANES);
            ds1 = vload_f32(f->ds + at + KEYS, LANES);
            store(LS_BF16, f->ds1, at + KEYS, LANES, ds1);
        }
        store(LS_BF16, f->ds1, at, LANES, ds0);
        _mm512_storeu_si512(f->p2 + i * KEYS + 2 * j, pair_up(p0, p1));
        _mm512_storeu_si512(f->ds2 + i * KEYS + 2 * j, pair_up(ds0, ds1));
    }
}

/* to[all, QUERIES] = from[QUERIES, all]^T in bf16, of the queries [i, i + 2 * LANES); rows of `from` past the last are zeros. */
static void turn_rows(uint16_t *to, const float *from, size_t i, size_t last, size_t all)
{
    for (size_t j = 0; j < all; j += LANES) {
        vf r[LANES];

        for (size_t q = 0; q < LANES; q++) {
            size_t t = i + 2 * q;
            vf low = t < last ? vload_f32(from + t * KEYS + j, LANES) : vset(0);
            vf high = t + 1 < last ? vload_f32(from + (t + 1) * KEYS + j, LANES) : vset(0);

            r[q] = _mm512_castsi512_ps(pair_up(low, high));
        }
        transpose(r);
        for (size_t q = 0; q < LANES; q++) vstore_f32((float *)(void *)(to + (j + q) * QUERIES + i), LANES, r[q]);
    }
}
#else
static void round_pair(struct backward *f, size_t i, bool both, size_t all)
{
    (void)f, (void)i, (void)both, (void)all;
    ASSERT(!"pairs of bf16 without avx512_bf16");
}

static void turn_rows(uint16_t *to, const float *from, size_t i, size_t last, size_t all)
{
    (void)to, (void)from, (void)i, (void)last, (void)all;
    ASSERT(!"pairs of bf16 without avx512_bf16");
}
#endif

/* p and ds as bf16, of the queries [first, last) and `all` keys: *pt and *dst as rows of their transposes, *ds as they are. */
static void round_tile(struct backward *f, size_t first, size_t last, size_t all, struct rows *pt, struct rows *dst, struct rows *ds)
{
    *ds = (struct rows){ f->ds1 + first * KEYS, TILE_ROWS * KEYS, KEYS, 2 };
    if (!tiles_amx()) {
        for (size_t r = first; r < last; r += 2) round_pair(f, r, r + 1 < last, all);
        *pt = (struct rows){ f->p2 + first * KEYS, 2 * TILE_ROWS, 2, 2 * KEYS };
        *dst = (struct rows){ f->ds2 + first * KEYS, 2 * TILE_ROWS, 2, 2 * KEYS };
        return;
    }
    for (size_t r = first; r < last; r += 2 * LANES) {
        turn_rows(f->p2, f->p, r, last, all);
        turn_rows(f->ds2, f->ds, r, last, all);
    }
    for (size_t r = first; r < last; r++)
        for (size_t j = 0; j < all; j += LANES) store(LS_BF16, f->ds1, r * KEYS + j, LANES, vload_f32(f->ds + r * KEYS + j, LANES));
    *pt = (struct rows){ f->p2 + first, TILE_ROWS * QUERIES, QUERIES, 2 };
    *dst = (struct rows){ f->ds2 + first, TILE_ROWS * QUERIES, QUERIES, 2 };
}

/* Combines block i of the queries with keys [s0, s0 + n). */
static void add_tile(struct backward *f, size_t i, size_t s0, size_t n)
{
    const struct attention *a = f->a;
    size_t t0 = i * QUERIES, all = MIN(a->T - t0, (size_t)QUERIES), first = first_row(a, t0, s0), rows;
    struct matrix q = head_rows(&a->q, f->b, t0 + first, f->h), go = head_rows(&a->go, f->b, t0 + first, f->h);
    float *dk = f->dk + s0 * f->columns, *dv = f->dv + s0 * f->columns, *dq = f->dq + (t0 + first) * f->columns;
    struct rows pt = { f->p + first * KEYS, TILE_ROWS, 1, KEYS };
    struct rows dst = { f->ds + first * KEYS, TILE_ROWS, 1, KEYS };
    struct rows ds = { f->ds + first * KEYS, TILE_ROWS * KEYS, KEYS, 1 };
    size_t wide = (n + LANES - 1) / LANES * LANES;
    float mask[KEYS + LANES], *keep = a->mask.attr ? mask : NULL;

    if (first >= all) return;
    rows = all - first;
    multiply(a->pairs, rows, n, 0, a->D, a->D, pack_rows(f->q_rows, a->pairs, rows, a->D, &q), f->kt, f->p + first * KEYS, KEYS, false);
    multiply(a->pairs, rows, n, 0, a->D, a->D, pack_rows(f->go_rows, a->pairs, rows, a->D, &go), f->vt, f->ds + first * KEYS, KEYS, false);
    for (size_t r = first; r < all; r++) {
        size_t sees = seen(a, t0 + r), here = sees > s0 ? MIN(sees - s0, n) : 0;

        if (keep) mask_row(a, f->b, f->h, t0 + r, s0, here, keep);
        weigh(f, t0 + r, f->p + r * KEYS, f->ds + r * KEYS, here, wide, keep);
    }
    if (a->pairs) round_tile(f, first, all, wide, &pt, &dst, &ds);
    multiply(a->pairs, n, a->D, first, rows, all, pt, f->go + i * f->block, dv, f->columns, true);
    multiply(a->pairs, n, a->D, first, rows, all, dst, f->q + i * f->block, dk, f->columns, true);
    multiply(a->pairs, rows, a->D, 0, n, n, ds, f->k, dq, f->columns, true);
}

static void put_rows(const float *sums, size_t columns, size_t rows, size_t D, struct matrix to)
{
    for (size_t i = 0; i < rows; i++) EACH(d, n, 0, D)
    BY_TYPE(to.type, T, store(T, to.data, i * (size_t)to.row + d, n, vload_f32(sums + i * columns + d, n)))
}

static void backward_head(struct backward *f)
{
    const struct attention *a = f->a;
    size_t blocks = (a->T + QUERIES - 1) / QUERIES;

    delta_rows(f);
    memset(f->dq, 0, a->T * f->columns * sizeof *f->dq);
    for (size_t i = 0; i < blocks; i++) {
        size_t t0 = i * QUERIES, rows = MIN(a->T - t0, (size_t)QUERIES);

        pack_all(f->q + i * f->block, a->pairs, rows, a->D, head_rows(&a->q, f->b, t0, f->h));
        pack_all(f->go + i * f->block, a->pairs, rows, a->D, head_rows(&a->go, f->b, t0, f->h));
    }
    for (size_t s = 0; s < a->S; s += KEYS) {
        size_t n = MIN(a->S - s, (size_t)KEYS);

        pack_all(f->kt, a->pairs, a->D, n, turned(head_rows(&a->k, f->b, s, f->g)));
        pack_all(f->vt, a->pairs, a->D, n, turned(head_rows(&a->v, f->b, s, f->g)));
        pack_all(f->k, a->pairs, n, a->D, head_rows(&a->k, f->b, s, f->g));
        for (size_t i = 0; i < blocks; i++) add_tile(f, i, s, n);
    }
    put_rows(f->dq, f->columns, a->T, a->D, head_rows(&a->dq, f->b, 0, f->h));
}

void attention_backward(const struct attention *a, size_t b, size_t g, void *scratch)
{
    struct backward f = { .a = a, .b = b, .g = g };
    size_t each = a->H / a->G;

    layout(&f, scratch);
    memset(f.dk, 0, a->S * f.columns * sizeof *f.dk);
    memset(f.dv, 0, a->S * f.columns * sizeof *f.dv);
    for (f.h = g * each; f.h < (g + 1) * each; f.h++) backward_head(&f);
    put_rows(f.dk, f.columns, a->S, a->D, head_rows(&a->dk, b, 0, g));
    put_rows(f.dv, f.columns, a->S, a->D, head_rows(&a->dv, b, 0, g));
}
