/* conv.c - convolutions of images as matmuls, one image at a time.
 *
 *   columns[C KH KW, OH OW]   row (c,k,l), column (i,j): the element of x that w[.,c,k,l] multiplies in window (i,j), or 0
 *   y[b] = w columns + bias   dx[b] = the columns of w^T dy[b], each element added to where it came from
 *   dw += dy[b] columns^T     the images are divided into one part per thread; a part sums its own dw, and the parts are added in order
 *
 * Images are distributed over the threads, each matmul runs on one. A window of one element with stride 1 needs no columns: x[b] already
 * has that form. Operands are f32, bf16 or f16 in any mixture, all contiguous.
 */
#include "kernels/cpu/gemm.h"

#include <string.h>
#include "base/base.h"
#include "base/threads.h"
#include "kernels/kernel.h"

struct conv {
    const struct call *c;
    struct view x, w, y; /* the image, the weight, the output, or their gradients */
    size_t B, C, H, W, O, KH, KW, OH, OW;
    size_t rows, columns; /* C KH KW, OH OW */
    size_t stride, padding, threads;
    bool plain;     /* x[b] is the columns */
    size_t scratch; /* bytes of one room */
};

static bool conv_is_plain(const struct view *v)
{
    return view_is_contiguous(v) && (v->dtype == LS_F32 || v->dtype == LS_BF16 || v->dtype == LS_F16);
}

static bool conv_of(const struct call *c, const struct view *x, const struct view *w, const struct view *y, struct conv *z)
{
    *z = (struct conv){ .c = c, .x = *x, .w = *w, .y = *y };
    if (!tiles_best() || !conv_is_plain(x) || !conv_is_plain(w) || !conv_is_plain(y)) return false;
    z->B = x->size[0], z->C = x->size[1], z->H = x->size[2], z->W = x->size[3];
    z->O = w->size[0], z->KH = w->size[2], z->KW = w->size[3];
    z->OH = y->size[2], z->OW = y->size[3];
    z->rows = z->C * z->KH * z->KW;
    z->columns = z->OH * z->OW;
    z->stride = c->attr.conv.stride;
    z->padding = c->attr.conv.padding;
    z->plain = z->KH == 1 && z->KW == 1 && z->stride == 1 && z->padding == 0;
    z->threads = (size_t)threads_count();
    return true;
}

static void *image(const struct view *v, size_t b)
{
    return (char *)v->data + b * v->size[1] * v->size[2] * v->size[3] * ls_dtype_bytes(v->dtype);
}

static struct matrix matrix(void *data, ls_dtype type, size_t columns) { return (struct matrix){ data, type, (ptrdiff_t)columns, 1 }; }

static struct matrix turned(struct matrix m) { return (struct matrix){ m.data, m.type, m.col, m.row }; }

/* ---- columns ---- */

/* Windows [*begin, *end) of a row whose position l is inside x's width. */
static void conv_reach(const struct conv *z, size_t l, size_t *begin, size_t *end)
{
    size_t last = z->W + z->padding; /* i stride + l < last */

    *begin = l >= z->padding ? 0 : (z->padding - l + z->stride - 1) / z->stride;
    *end = last <= l ? 0 : MIN(z->OW, (last - l - 1) / z->stride + 1);
    *begin = MIN(*begin, *end);
}

/* out[OW] = the elements of one row of x at position l of each window. bytes: of an element, 2 or 4. */
static void gather_row(const struct conv *z, size_t l, const char *row, char *out, size_t bytes)
{
    size_t begin, end;

    conv_reach(z, l, &begin, &end);
    memset(out, 0, z->OW * bytes);
    if (begin == end) return;
    row += (begin * z->stride + l - z->padding) * bytes;
    if (z->stride == 1)
        memcpy(out + begin * bytes, row, (end - begin) * bytes);
    else if (bytes == 4)
        for (size_t j = begin; j < end; j++) ((uint32_t *)out)[j] = ((const uint32_t *)row)[(j - begin) * z->stride];
    else
        for (size_t j = begin; j < end; j++) ((uint16_t *)out)[j] = ((const uint16_t *)row)[(j - begin) * z->stride];
}

/* Row of x at position k of window row i; NULL: outside. */
static const char *conv_row_of(const struct conv *z, const char *plane, size_t i, size_t k, size_t bytes)
{
    size_t h = i * z->stride + k;

    return h < z->padding || h - z->padding >= z->H ? NULL : plane + (h - z->padding) * z->W * bytes;
}

static void conv_gather(const struct conv *z, const void *x, void *columns)
{
    size_t bytes = ls_dtype_bytes(z->x.dtype);
    char *out = columns;

    for (size_t r = 0; r < z->rows; r++) {
        size_t l = r % z->KW, k = r / z->KW % z->KH;
        const char *plane = (const char *)x + r / z->KW / z->KH * z->H * z->W * bytes;

        for (size_t i = 0; i < z->OH; i++, out += z->OW * bytes) {
            const char *row = conv_row_of(z, plane, i, k, bytes);

            if (row)
                gather_row(z, l, row, out, bytes);
            else
                memset(out, 0, z->OW * bytes);
        }
    }
}

/* dx[C,H,W] f32 += columns, each element where gather read it. */
static void scatter(const struct conv *z, const float *columns, float *dx)
{
    for (size_t r = 0; r < z->rows; r++) {
        size_t l = r % z->KW, k = r / z->KW % z->KH, begin, end;
        float *plane = dx + r / z->KW / z->KH * z->H * z->W;

        conv_reach(z, l, &begin, &end);
        for (size_t i = 0; i < z->OH; i++, columns += z->OW) {
            float *row = (float *)conv_row_of(z, (char *)plane, i, k, sizeof(float));

            for (size_t j = begin; row && j < end; j++) row[j * z->stride + l - z->padding] += columns[j];
        }
    }
}

/* ---- the three matmuls; data is filled in per image ---- */

static struct gemm forward_gemm(const struct conv *z)
{
    return (struct gemm){ .m = z->O,
                          .n = z->columns,
                          .k = z->rows,
                          .a = matrix(z->w.data, z->w.dtype, z->rows),
                          .b = matrix(NULL, z->x.dtype, z->columns),
                          .c = matrix(NULL, LS_F32, z->columns) };
}

static struct gemm dx_gemm(const struct conv *z)
{
    return (struct gemm){ .m = z->rows,
                          .n = z->columns,
                          .k = z->O,
                          .a = turned(matrix(z->w.data, z->w.dtype, z->rows)),
                          .b = matrix(NULL, z->y.dtype, z->columns),
                          .c = matrix(NULL, LS_F32, z->columns) };
}

static struct gemm dw_gemm(const struct conv *z)
{
    return (struct gemm){ .m = z->O,
                          .n = z->rows,
                          .k = z->columns,
                          .a = matrix(NULL, z->y.dtype, z->columns),
                          .b = turned(matrix(NULL, z->x.dtype, z->columns)),
                          .c = matrix(NULL, LS_F32, z->rows) };
}

/* Working memory of one thread. */
struct room {
    void *columns;
    float *sums;
    void *product;
};

/* The room that begins at base (NULL: counted only) with so many bytes of columns and of sums. */
static struct room take_room(char *base, size_t columns, size_t sums, const struct gemm *p, size_t *bytes)
{
    struct parts at = { base, 0 };
    struct room r;

    r.columns = take(&at, columns);
    r.sums = take(&at, sums);
    r.product = take(&at, gemm_scratch(p, 1));
    *bytes = at.used;
    return r;
}

/* ---- forward ---- */

static struct room forward_room(const struct conv *z, char *base, size_t *bytes)
{
    struct gemm p = forward_gemm(z);
    size_t columns = z->plain ? 0 : z->rows * z->columns * ls_dtype_bytes(z->x.dtype);

    return take_room(base, columns, z->y.dtype == LS_F32 ? 0 : z->O * z->columns * sizeof(float), &p, bytes);
}

static void add_bias(const struct conv *z, float *y)
{
    const struct view *b = &z->c->in[2];

    for (size_t o = 0; o < z->O; o++) {
        float bias;

        ls_convert(&bias, LS_F32, (const char *)b->data + o * ls_dtype_bytes(b->dtype), b->dtype, 1);
        for (size_t i = 0; i < z->columns; i++) y[o * z->columns + i] += bias;
    }
}

static void forward_images(void *ctx, size_t begin, size_t end, int thread)
{
    const struct conv *z = ctx;
    size_t bytes;
    struct gemm p = forward_gemm(z);
    struct room r = forward_room(z, (char *)z->c->scratch + (size_t)thread * z->scratch, &bytes);

    for (size_t b = begin; b < end; b++) {
        p.b.data = z->plain ? image(&z->x, b) : r.columns;
        p.c.data = z->y.dtype == LS_F32 ? image(&z->y, b) : r.sums;
        if (!z->plain) conv_gather(z, image(&z->x, b), r.columns);
        gemm_run(&p, 1, r.product);
        if (call_has_in(z->c, 2)) add_bias(z, p.c.data);
        if (z->y.dtype != LS_F32) ls_convert(image(&z->y, b), z->y.dtype, r.sums, LS_F32, z->O * z->columns);
    }
}

static bool forward_of(const struct call *c, struct conv *z)
{
    size_t bytes;

    if (!conv_of(c, &c->in[0], &c->in[1], &c->out[0], z) || (call_has_in(c, 2) && !conv_is_plain(&c->in[2]))) return false;
    forward_room(z, NULL, &bytes);
    z->scratch = bytes;
    return true;
}

static bool forward_accepts(const struct call *c)
{
    struct conv z;

    return forward_of(c, &z);
}

static size_t forward_scratch(const struct call *c)
{
    struct conv z;

    return forward_of(c, &z) ? z.threads * z.scratch : 0;
}

static void forward_run(const struct call *c)
{
    struct conv z;

    if (forward_of(c, &z)) threads_for(z.B, 1, forward_images, &z);
}

/* ---- input gradient ---- */

static struct room dx_room(const struct conv *z, char *base, size_t *bytes)
{
    struct gemm p = dx_gemm(z);

    return take_room(base, z->plain ? 0 : z->rows * z->columns * sizeof(float),
                     z->x.dtype == LS_F32 ? 0 : z->C * z->H * z->W * sizeof(float), &p, bytes);
}

static void dx_images(void *ctx, size_t begin, size_t end, int thread)
{
    const struct conv *z = ctx;
    size_t bytes, count = z->C * z->H * z->W;
    struct gemm p = dx_gemm(z);
    struct room r = dx_room(z, (char *)z->c->scratch + (size_t)thread * z->scratch, &bytes);

    for (size_t b = begin; b < end; b++) {
        float *dx = z->x.dtype == LS_F32 ? image(&z->x, b) : r.sums;

        p.b.data = image(&z->y, b);
        p.c.data = z->plain ? dx : r.columns;
        gemm_run(&p, 1, r.product);
        if (!z->plain) {
            memset(dx, 0, count * sizeof *dx);
            scatter(z, r.columns, dx);
        }
        if (z->x.dtype != LS_F32) ls_convert(image(&z->x, b), z->x.dtype, dx, LS_F32, count);
    }
}

static bool dx_of(const struct call *c, struct conv *z)
{
    size_t bytes;

    if (!conv_of(c, &c->out[0], &c->in[1], &c->in[0], z)) return false;
    dx_room(z, NULL, &bytes);
    z->scratch = bytes;
    return true;
}

static bool dx_accepts(const struct call *c)
{
    struct conv z;

    return dx_of(c, &z);
}

static size_t dx_scratch(const struct call *c)
{
    struct conv z;

    return dx_of(c, &z) ? z.threads * z.scratch : 0;
}

static void dx_run(const struct call *c)
{
    struct conv z;

    if (dx_of(c, &z)) threads_for(z.B, 1, dx_images, &z);
}

/* ---- weight gradient ---- */

static struct room dw_room(const struct conv *z, char *base, size_t *bytes)
{
    struct gemm p = dw_gemm(z);

    return take_room(base, z->plain ? 0 : z->rows * z->columns * ls_dtype_bytes(z->x.dtype), z->O * z->rows * sizeof(float), &p, bytes);
}

static size_t dw_parts(const struct conv *z) { return MIN(z->B, z->threads); }

/* Adds part `part` of the images to its own sums. */
static void dw_images(void *ctx, size_t begin, size_t end, int thread)
{
    const struct conv *z = ctx;
    size_t bytes, parts = dw_parts(z);
    struct gemm p = dw_gemm(z);

    (void)thread;
    for (size_t part = begin; part < end; part++) {
        struct room r = dw_room(z, (char *)z->c->scratch + part * z->scratch, &bytes);

        p.c.data = r.sums;
        p.add = false;
        for (size_t b = z->B * part / parts; b < z->B * (part + 1) / parts; b++) {
            p.a.data = image(&z->y, b);
            p.b.data = z->plain ? image(&z->x, b) : r.columns;
            if (!z->plain) conv_gather(z, image(&z->x, b), r.columns);
            gemm_run(&p, 1, r.product);
            p.add = true;
        }
    }
}

/* Adds the sums of all parts to dw, in f32, and rounds to its type. */
static void dw_fold(void *ctx, size_t begin, size_t end, int thread)
{
    enum { FOLD = 256 };
    const struct conv *z = ctx;
    size_t bytes, unit = ls_dtype_bytes(z->w.dtype);
    float sums[FOLD];

    (void)thread;
    for (size_t i = begin, n; i < end; i += n) {
        char *dw = (char *)z->w.data + i * unit;

        n = MIN(end - i, (size_t)FOLD);
        ls_convert(sums, LS_F32, dw, z->w.dtype, n);
        for (size_t part = 0; part < dw_parts(z); part++) {
            struct room r = dw_room(z, (char *)z->c->scratch + part * z->scratch, &bytes);

            for (size_t k = 0; k < n; k++) sums[k] += r.sums[i + k];
        }
        ls_convert(dw, z->w.dtype, sums, LS_F32, n);
    }
}

static bool dw_of(const struct call *c, struct conv *z)
{
    size_t bytes;

    if (!conv_of(c, &c->in[1], &c->out[0], &c->in[0], z)) return false;
    dw_room(z, NULL, &bytes);
    z->scratch = bytes;
    return true;
}

static bool dw_accepts(const struct call *c)
{
    struct conv z;

    return dw_of(c, &z);
}

static size_t dw_scratch(const struct call *c)
{
    struct conv z;

    return dw_of(c, &z) ? dw_parts(&z) * z.scratch : 0;
}

static void dw_run(const struct call *c)
{
    struct conv z;

    if (!dw_of(c, &z)) return;
    threads_for(dw_parts(&z), 1, dw_images, &z);
    threads_for(z.O * z.rows, 4096, dw_fold, &z);
}

#define CONV_ROW(id, function)                                                                                                           \
    {                                                                                                                                    \
        .op = OP_##id, .name = "columns", .device = "cpu", .priority = PRIORITY_BLOCKED, .isa = ISA_AVX2, .accepts = function##_accepts, \
        .scratch = function##_scratch, .run = function##_run                                                                             \
    }

const struct kernel kernels_conv[] = { CONV_ROW(CONV2D, forward), CONV_ROW(CONV2D_DX, dx), CONV_ROW(CONV2D_DW, dw), KERNELS_END };
