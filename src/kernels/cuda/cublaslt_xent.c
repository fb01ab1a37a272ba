/* cublaslt_xent.c - the output projection and its cross-entropy in chunks of rows, with matmuls by cuBLASLt and the row kernels of xent.h.
 *
 * For each chunk: logits = x w^T in f32, the rows' lse and loss, and for gradients dlogits in the place of the logits, rounded to the type
 * of x and w; then dx = dlogits w and dw += dlogits^T x. What is in scratch follows from the shapes: the logits of a chunk, a few numbers a
 * row, and one workspace, since a stream runs the matmuls one after the other. Chunks are added to dw in order, so a run repeats.
 *
 * A chunk has a fourth of all rows, but at least ROWS: it reads w twice and reads and writes dw, 12 bytes of bf16 w and f32 dw for 6 FLOP a
 * row, and 512 FLOP a byte is more than the ratio of today's GPUs. At most LOGIT_BYTES of logits, or GRAIN rows of them.
 *
 * Where the library lacks an algorithm for one of the matmuls, our own kernel computes the call; scratch has room for either.
 *
 * x and w have one type: f32, bf16, or f16 without gradients, since dloss/denom times a probability is mostly below the range of f16. The
 * plain row takes the other calls.
 */
#include "base/base.h"
#include "base/mem.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/cublaslt_matmul.h"
#include "kernels/cuda/own_kernel.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/xent.h"

enum { LOGIT_BYTES = 512 << 20, CHUNKS = 4, ROWS = 1024, GRAIN = 128, COLUMNS = 32 };
enum { LOGITS, DX, DW, MATMULS, FULL = 0, LAST, SIZES }; /* the last chunk may have fewer rows */

struct cublaslt_xent {
    const struct kernel *own;                       /* first: own_kernel_instead(). It runs if an algorithm is missing */
    struct cublaslt_matmul *matmul[SIZES][MATMULS]; /* [LAST]: NULL, if all chunks have as many rows */
};

static size_t rounded_up(size_t n, size_t grain) { return (n + grain - 1) / grain * grain; }

/* Chunks start at multiples of GRAIN rows, so all of them have the alignment of the first. */
static struct xent chunks_of(const struct call *c, void *scratch)
{
    struct call at = *c;
    size_t R = view_rows(&c->in[0]), ld = rounded_up(c->in[1].size[0], COLUMNS), most = LOGIT_BYTES / (ld * sizeof(float)) / GRAIN * GRAIN;
    size_t rows = MIN(MAX(rounded_up((R + CHUNKS - 1) / CHUNKS, GRAIN), (size_t)ROWS), MAX(most, (size_t)GRAIN));

    at.scratch = scratch;
    return xent_of(&at, MIN(rows, R), ld);
}

static size_t chunk_rows(const struct xent *z, int size) { return size == FULL ? z->rows : z->R % z->rows; }

/* ---- the matmuls of a chunk, as calls of MATMUL ---- */

static struct view view_rows_of(const struct view *v, size_t begin, size_t n)
{
    size_t C = view_last(v);

    return view_of((char *)v->data + begin * C * ls_dtype_bytes(v->dtype), v->dtype, 2, (size_t[]){ n, C });
}

static struct view view_transposed(struct view v)
{
    struct view out = v;

    for (int d = 0; d < 2; d++) {
        out.size[d] = v.size[1 - d];
        out.stride[d] = v.stride[1 - d];
    }
    return out;
}

static struct view logits_view(const struct xent *z, size_t n, ls_dtype type)
{
    struct view v = view_of(z->logits, type, 2, (size_t[]){ n, z->V });

    v.stride[0] = (ptrdiff_t)(z->ld * sizeof(float) / ls_dtype_bytes(type));
    return v;
}

static struct call chunk_call(const struct call *c, const struct xent *z, int which, size_t begin, size_t n)
{
    struct call m = { .op = OP_MATMUL, .nin = 2, .nout = 1 };
    struct view x = view_rows_of(&c->in[0], begin, n), w = view_rows_of(&c->in[1], 0, z->V), dlogits = logits_view(z, n, x.dtype);

    m.in[0] = which == LOGITS ? x : which == DX ? dlogits : view_transposed(dlogits);
    m.in[1] = which == LOGITS ? view_transposed(w) : which == DX ? w : x;
    m.out[0] = which == LOGITS ? logits_view(z, n, LS_F32)
               : which == DX   ? view_rows_of(&c->out[0], begin, n)
                               : view_rows_of(&c->out[1], 0, z->V);
    return m;
}

static bool chunk_needs(const struct call *c, int which)
{
    return which == LOGITS || (c->op == OP_LINEAR_XENT_GRAD && call_has_out(c, which == DX ? 0 : 1));
}

static bool chunk_problem(const struct call *m, int which, struct cublaslt_problem *out)
{
    bool ok = cublaslt_problem_of(m, out);

    out->add = which == DW;
    return ok;
}

static struct cublaslt_operands chunk_operands(const struct call *c, const struct xent *z, const struct call *m)
{
    return (struct cublaslt_operands){
        .matrix = { m->in[1].data, m->in[0].data, m->out[0].data },
        .workspace = cublaslt_workspace((char *)c->scratch + z->bytes),
    };
}

/* ---- rows of the table ---- */

static bool cublaslt_xent_accepts(const struct call *c)
{
    struct cublaslt_problem p;

    if (!xent_accepts(c) || !view_count(&c->in[0]) || !view_count(&c->in[1])) return false;
    if (c->op == OP_LINEAR_XENT_GRAD && c->in[0].dtype == LS_F16) return false;
    struct xent z = chunks_of(c, NULL);
    for (int which = 0; which < MATMULS; which++) {
        struct call m;

        if (!chunk_needs(c, which)) continue;
        m = chunk_call(c, &z, which, 0, z.rows);
        if (!chunk_problem(&m, which, &p)) return false;
    }
    return cublaslt_found();
}

static size_t cublaslt_xent_scratch(const struct call *c)
{
    const struct kernel *own = own_kernel(c);
    struct xent z = chunks_of(c, NULL);
    struct cublaslt_problem p;
    size_t most = 0;

    for (int which = 0; which < MATMULS; which++) {
        struct call m;

        if (!chunk_needs(c, which)) continue;
        m = chunk_call(c, &z, which, 0, z.rows);
        if (chunk_problem(&m, which, &p)) most = MAX(most, cublaslt_problem_scratch(&p));
    }
    return MAX(z.bytes + most, own->scratch(c));
}

static void cublaslt_xent_free(struct cublaslt_xent *s)
{
    for (int size = 0; size < SIZES; size++)
        for (int which = 0; which < MATMULS; which++) cublaslt_matmul_free(s->matmul[size][which]);
    mem_free(s);
}

static ls_status cublaslt_xent_fill(struct cublaslt_xent *s, const struct call *c)
{
    struct xent z = chunks_of(c, c->scratch);

    for (int size = 0; size < SIZES; size++)
        for (int which = 0; which < MATMULS && chunk_rows(&z, size); which++) {
            struct call m = chunk_call(c, &z, which, 0, chunk_rows(&z, size));
            struct cublaslt_operands at = chunk_operands(c, &z, &m);
            struct cublaslt_problem p;

            if (!chunk_needs(c, which)) continue;
            ASSERT(chunk_problem(&m, which, &p));
            LS_TRY(cublaslt_matmul_new(&p, &at, &s->matmul[size][which]));
        }
    return LS_OK;
}

static ls_status cublaslt_xent_prepare(struct call *c)
{
    struct cublaslt_xent *s = mem_zalloc(MEM_OTHER, sizeof *s);

    c->state = NULL;
    if (!s) return LS_ENOMEM;
    ls_status st = own_kernel_if(cublaslt_xent_fill(s, c), c, &s->own);
    if (st < 0)
        cublaslt_xent_free(s);
    else
        c->state = s;
    return st;
}

static void cublaslt_xent_release(struct call *c)
{
    if (c->state) cublaslt_xent_free(c->state);
    c->state = NULL;
}

static ls_status chunk_multiply(const struct call *c, const struct xent *z, int which, size_t begin, size_t n, struct device_stream *stream)
{
    const struct cublaslt_xent *s = c->state;

    if (!chunk_needs(c, which)) return LS_OK;
    struct call m = chunk_call(c, z, which, begin, n);
    struct cublaslt_operands at = chunk_operands(c, z, &m);
    return cublaslt_matmul_run(s->matmul[n == z->rows ? FULL : LAST][which], &at, stream);
}

static ls_status chunk_run(const struct call *c, const struct xent *z, size_t begin, size_t n, struct device_stream *stream)
{
    LS_TRY(chunk_multiply(c, z, LOGITS, begin, n, stream));
    xent_losses(c, z, begin, n);
    if (c->op == OP_LINEAR_XENT) return LS_OK;
    xent_gradients(c, z, begin, n, c->in[0].dtype);
    LS_TRY(chunk_multiply(c, z, DX, begin, n, stream));
    return chunk_multiply(c, z, DW, begin, n, stream);
}

static void cublaslt_xent_run(const struct call *c)
{
    const struct cublaslt_xent *s = c->state;
    struct xent z = chunks_of(c, c->scratch);
    struct device_stream *stream;

    if (s->own) s->own->run(c);
    if (s->own || cuda_stream(c->stream, &stream) < 0) return;
    xent_begin(c, &z);
    for (size_t begin = 0; begin < z.R; begin += z.rows)
        if (chunk_run(c, &z, begin, MIN(z.rows, z.R - begin), stream) < 0) return;
    xent_end(c, &z);
}

#define CUBLASLT_XENT_ROW(id)                                                                                 \
    {                                                                                                         \
        .op = OP_##id, .name = "cublaslt", .device = "cuda", .priority = PRIORITY_LIBRARY, .isa = ISA_ANY,    \
        .accepts = cublaslt_xent_accepts, .scratch = cublaslt_xent_scratch, .prepare = cublaslt_xent_prepare, \
        .release = cublaslt_xent_release, .run = cublaslt_xent_run, .instead = own_kernel_instead             \
    }

const struct kernel kernels_cuda_cublaslt_xent[] = { CUBLASLT_XENT_ROW(LINEAR_XENT), CUBLASLT_XENT_ROW(LINEAR_XENT_GRAD), KERNELS_END };
