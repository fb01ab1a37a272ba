/* columns.h - sums over rows, per column: gradients of biases and norm weights.
 *
 * The R rows are divided into parts, depending only on R. Each part is summed into its own row of scratch, then the parts are added to the
 * outputs in order: the result depends on neither the number of threads nor their timing.
 * Scratch: [parts, nout, C] floats.
 */
#ifndef LS_KERNELS_CPU_SIMD_COLUMNS_H
#define LS_KERNELS_CPU_SIMD_COLUMNS_H

#include "kernels/cpu/simd/simd.h"

enum { COLUMN_PARTS = 64, COLUMN_ROWS = 32 }; /* most parts, least rows of a part */

/* Adds rows [begin, end) to sums[nout, C]. */
typedef void column_fn(const struct call *c, size_t begin, size_t end, float *sums);

struct columns {
    const struct call *c;
    column_fn *fn;
    size_t R, C, parts;
};

INLINE size_t column_parts(size_t R) { return MAX((size_t)1, MIN((size_t)COLUMN_PARTS, R / COLUMN_ROWS)); }

INLINE size_t columns_scratch(const struct call *c)
{
    return column_parts(view_rows(&c->in[0])) * (size_t)c->nout * view_last(&c->in[0]) * sizeof(float);
}

static void columns_parts(void *ctx, size_t begin, size_t end, int thread)
{
    const struct columns *z = ctx;
    size_t width = (size_t)z->c->nout * z->C;

    (void)thread;
    for (size_t part = begin; part < end; part++) {
        float *sums = (float *)z->c->scratch + part * width;

        memset(sums, 0, width * sizeof *sums);
        z->fn(z->c, z->R * part / z->parts, z->R * (part + 1) / z->parts, sums);
    }
}

static void columns_fold(void *ctx, size_t begin, size_t end, int thread)
{
    const struct columns *z = ctx;
    size_t width = (size_t)z->c->nout * z->C;

    (void)thread;
    for (int o = 0; o < z->c->nout; o++) {
        const struct view *out = &z->c->out[o];
        const float *sums = (const float *)z->c->scratch + (size_t)o * z->C;

        EACH(i, n, begin, end)
        {
            vf sum = load(LS_F32, sums, i, n);

            for (size_t part = 1; part < z->parts; part++) sum += load(LS_F32, sums + part * width, i, n);
            store(out->dtype, out->data, i, n, load(out->dtype, out->data, i, n) + sum);
        }
    }
}

/* outputs[nout][C] += sums over the rows of in[0]. */
INLINE void columns_run(const struct call *c, column_fn *fn)
{
    struct columns z = { c, fn, view_rows(&c->in[0]), view_last(&c->in[0]), column_parts(view_rows(&c->in[0])) };

    threads_for(z.parts, MAX((size_t)1, row_grain(z.C) / (z.R / z.parts + 1)), columns_parts, &z);
    threads_for(z.C, 1024, columns_fold, &z);
}

#endif
