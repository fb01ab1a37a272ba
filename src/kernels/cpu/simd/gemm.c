/* gemm.c - blocks of a matmul from packed panels, and matmuls of a few rows without packing. */
#include "kernels/cpu/simd/tile.h"

enum { K_BLOCK_BYTES = 192 << 10 }; /* bytes of a panel in a block of k, which stay in the L2 cache for all rows of a block */

/* to[m, PANEL] = all of k, block by block. */
static void sum_panel(const struct gemm_block *b, struct rows a, const char *panel, float *to, size_t ldc, bool add)
{
    size_t steps = b->pairs ? (b->k + 1) / 2 : b->k, most = K_BLOCK_BYTES / (PANEL * sizeof(float));
    size_t unit = b->pairs ? sizeof(uint16_t) : sizeof(float);

    for (size_t p = 0; p < MAX(steps, (size_t)1); p += most) {
        struct rows at = a;
        const void *from = panel + p * PANEL * sizeof(float);

        at.data = (const char *)a.data + p * (size_t)a.step * unit;
        if (b->pairs)
            tile_pairs(b->m, MIN(steps - p, most), at, from, to, ldc, add || p > 0);
        else
            tile_f32(b->m, MIN(steps - p, most), at, from, to, ldc, add || p > 0);
    }
}

/* to[0, n) = elements [at, at + n) of the bias. */
static void widen_bias(const struct gemm_block *b, size_t at, size_t n, float *to)
{
    for (size_t v = 0; v < n; v += LANES) {
        size_t count = MIN(n - v, (size_t)LANES);

        BY_TYPE(b->bias_type, T, vstore_f32(to + v, count, load(T, b->bias, at + v, count)))
    }
}

/* Stores columns [0, n) of sums[m, PANEL], with bias or added, into c from column j on. */
INLINE void store_panel(ls_dtype type, const struct gemm_block *b, const float *sums, size_t j, size_t n)
{
    float bias[PANEL];

    if (b->bias) widen_bias(b, j, n, bias);
    for (size_t i = 0; i < b->m; i++) EACH(v, count, 0, n)
        {
            size_t at = i * (size_t)b->c.row + j + v;
            vf x = vload_f32(sums + i * PANEL + v, count);

            if (b->bias) x += vload_f32(bias + v, count);
            if (b->add) x += load(type, b->c.data, at, count);
            store(type, b->c.data, at, count, x);
        }
}

/* The same for a turned matmul: a row of sums is a column of c. */
INLINE void store_turned(ls_dtype type, const struct gemm_block *b, const float *sums, size_t j, size_t n)
{
    float bias[LANES];

    EACH(i, rows, 0, b->m)
    {
        if (b->bias) widen_bias(b, i, rows, bias);
        for (size_t v = 0; v < n; v += LANES) {
            vf x[LANES];

            for (size_t r = 0; r < LANES; r++) x[r] = r < rows ? vload_f32(sums + (i + r) * PANEL + v, LANES) : vset(0);
            transpose(x);
            for (size_t r = 0; r < MIN(n - v, (size_t)LANES); r++) {
                size_t at = i + (j + v + r) * (size_t)b->c.col;

                if (b->bias) x[r] += vload_f32(bias, rows);
                if (b->add) x[r] += load(type, b->c.data, at, rows);
                store(type, b->c.data, at, rows, x[r]);
            }
        }
    }
}

static void block(const struct gemm_block *b)
{
    float *sums = b->scratch;
    struct rows a = pack_rows(sums + b->m * PANEL, b->pairs, b->m, b->k, &b->a);
    size_t bytes = (b->pairs ? (b->k + 1) / 2 : b->k) * PANEL * sizeof(float);

    for (size_t j = 0; j < b->n; j += PANEL) {
        const char *panel = (const char *)b->b + j / PANEL * bytes;

        if (b->c.col == 1 && b->c.type == LS_F32 && !b->bias && b->n - j >= PANEL) {
            sum_panel(b, a, panel, (float *)b->c.data + j, (size_t)b->c.row, b->add);
            continue;
        }
        sum_panel(b, a, panel, sums, PANEL, false);
        if (b->c.col != 1) {
            BY_TYPE(b->c.type, T, store_turned(T, b, sums, j, MIN(b->n - j, (size_t)PANEL)))
            continue;
        }
        BY_TYPE(b->c.type, T, store_panel(T, b, sums, j, MIN(b->n - j, (size_t)PANEL)))
    }
}

enum { DOT_ROWS = 4 }; /* rows of a whose sums are in registers at once */

/* c[i + (0..m), j + (0..n)] over all of k; m, n <= 4 are constants. The rows of b are read once. */
INLINE void dots_tile(ls_dtype at, ls_dtype bt, const int m, const int n, const struct gemm *p, size_t i, size_t j,
                      float out[DOT_ROWS][DOT_ROWS])
{
    vf sum[DOT_ROWS][DOT_ROWS];

    for (int r = 0; r < m; r++)
        for (int s = 0; s < n; s++) sum[r][s] = vset(0);
    EACH(q, count, 0, p->k)
    {
        vf a[DOT_ROWS];

        for (int r = 0; r < m; r++) a[r] = load(at, p->a.data, (i + (size_t)r) * (size_t)p->a.row + q, count);
        for (int s = 0; s < n; s++) {
            vf b = load(bt, p->b.data, (j + (size_t)s) * (size_t)p->b.col + q, count);

            for (int r = 0; r < m; r++) sum[r][s] += a[r] * b;
        }
    }
    for (int r = 0; r < m; r++)
        for (int s = 0; s < n; s++) out[r][s] = vsum(sum[r][s]);
}

/* The same for sizes that are not known in advance. */
INLINE void dots_sizes(ls_dtype at, ls_dtype bt, size_t m, size_t n, const struct gemm *p, size_t i, size_t j,
                       float out[DOT_ROWS][DOT_ROWS])
{
    float column[DOT_ROWS][DOT_ROWS];

    if (n == DOT_ROWS) {
        switch (m) {
        case 1: dots_tile(at, bt, 1, DOT_ROWS, p, i, j, out); return;
        case 2: dots_tile(at, bt, 2, DOT_ROWS, p, i, j, out); return;
        case 3: dots_tile(at, bt, 3, DOT_ROWS, p, i, j, out); return;
        default: dots_tile(at, bt, 4, DOT_ROWS, p, i, j, out); return;
        }
    }
    for (size_t s = 0; s < n; s++)
        for (size_t r = 0; r < m; r++) {
            dots_tile(at, bt, 1, 1, p, i + r, j + s, column);
            out[r][s] = column[0][0];
        }
}

INLINE void dots_rows(ls_dtype at, ls_dtype bt, size_t m, size_t n, const struct gemm *p, size_t i, size_t j)
{
    float out[DOT_ROWS][DOT_ROWS];

    dots_sizes(at, bt, m, n, p, i, j, out);
    for (size_t r = 0; r < m; r++)
        for (size_t s = 0; s < n; s++) {
            size_t to = (i + r) * (size_t)p->c.row + j + s;
            float x = out[r][s];

            if (p->bias) x += load_one(p->bias_type, p->bias, j + s);
            if (p->add) x += load_one(p->c.type, p->c.data, to);
            store_one(p->c.type, p->c.data, to, x);
        }
}

static void dots(const struct gemm *p, size_t begin, size_t end)
{
    for (size_t j = begin; j < end; j += DOT_ROWS)
        for (size_t i = 0; i < p->m; i += DOT_ROWS)
            BY_TYPE(p->a.type, T,
                    BY_TYPE(p->b.type, S, dots_rows(T, S, MIN(p->m - i, (size_t)DOT_ROWS), MIN(end - j, (size_t)DOT_ROWS), p, i, j)))
}

const struct tiles SIMD_PASTE(tiles_, gemm, SIMD_ISA) = {
    .panel = PANEL,
    .pack = pack_panel,
    .block = block,
    .dots = dots,
};
