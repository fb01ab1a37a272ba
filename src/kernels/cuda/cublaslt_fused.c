/* cublaslt_fused.c - two ops in one matmul by its epilogue: a linear layer and its GELU, a weight gradient and its bias gradient.
 *
 *   linear_unary     D = GELU(y), and y, which the gradient reads, as the auxiliary output, or nowhere
 *   linear_dw_bias   the sums of dy over its rows: dy is B, so they are those over k (BGRADB). The epilogue overwrites, and a gradient is
 *                    added to, so they go to scratch and from there to db
 *
 * Only prepare() can ask the library whether it has an algorithm for a matmul with that epilogue. If not, the matmul runs without it, or by
 * our own kernel if there is no algorithm at all, and the second op by its own kernel, as if there were two instructions; scratch has room
 * for each. The first such matmul is reported.
 */
#include "base/base.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/cublaslt_matmul.h"
#include "kernels/cuda/own_kernel.h"
#include "kernels/cuda/parts.h"

enum { VECTOR_ALIGNMENT = 64 };

struct cublaslt_fused {
    const struct kernel *own; /* first: own_kernel_instead(). The matmul's, if there is no algorithm */
    struct cublaslt_matmul *matmul;
    const struct kernel *second;
    bool separate; /* without the epilogue */
};

static bool is_gradient(const struct call *c) { return c->op == OP_LINEAR_DW_BIAS; }

/* The matmul as a call of its own; separate: it writes y, which may be in the place of a. */
static struct call fused_matmul(const struct call *c, bool separate)
{
    struct call m = *c;

    m.op = is_gradient(c) ? OP_LINEAR_DW : OP_LINEAR;
    m.nout = 1;
    if (!is_gradient(c) && (!separate || !call_has_out(c, 0))) m.out[0] = c->out[1];
    return m;
}

static bool fused_problem(const struct call *c, bool separate, struct cublaslt_problem *out)
{
    struct call m = fused_matmul(c, separate);

    if (!cublaslt_problem_of(&m, out)) return false;
    out->bias_gradient = !separate && is_gradient(c);
    out->gelu = !separate && !is_gradient(c);
    out->aux = out->gelu && call_has_out(c, 0);
    return out->m && out->n && out->batch == 1;
}

/* The second op as a call: all of it, or, after an epilogue that has summed, adding the sums. vector: these. */
static struct call fused_second(const struct call *c, bool separate, void *vector)
{
    struct call s = { .op = is_gradient(c) ? OP_BIAS_GRAD : OP_UNARY, .nin = 1, .nout = 1, .attr = c->attr };

    s.in[0] = is_gradient(c) ? c->in[0] : fused_matmul(c, true).out[0];
    s.out[0] = c->out[1];
    s.stream = c->stream;
    if (separate) return s;
    s.op = OP_ACCUMULATE;
    s.in[0] = view_of(vector, LS_F32, 1, (size_t[]){ view_last(&c->in[0]) });
    return s;
}

/* GELU's input has columns of as many elements as D, which must be a multiple of 8. The sums of a bias gradient have the type of dw. */
static bool fused_accepts(const struct call *c)
{
    struct cublaslt_problem p;

    if (is_gradient(c) ? c->out[0].dtype != LS_F32 : c->attr.unary.kind != UNARY_GELU_TANH) return false;
    if (!fused_problem(c, false, &p) || (p.aux && (p.m % 8 || c->out[0].dtype != c->out[1].dtype || !view_is_contiguous(&c->out[0]))))
        return false;
    for (int separate = 0; separate < 2; separate++) {
        struct call s = fused_second(c, separate, NULL);

        if (!own_kernel(&s)) return false;
    }
    return cublaslt_found();
}

static size_t vector_bytes(const struct call *c)
{
    return is_gradient(c) ? (view_last(&c->in[0]) * sizeof(float) + VECTOR_ALIGNMENT - 1) / VECTOR_ALIGNMENT * VECTOR_ALIGNMENT : 0;
}

/* The vector, and the workspace of the matmul or after it the scratch of the second op. */
static size_t fused_scratch(const struct call *c)
{
    struct call s = fused_second(c, true, NULL);
    const struct kernel *k = own_kernel(&s);
    struct cublaslt_problem p;
    size_t second = k->scratch ? k->scratch(&s) : 0;

    ASSERT(fused_problem(c, false, &p));
    return vector_bytes(c) + MAX(cublaslt_problem_scratch(&p), second);
}

/* What follows the vector in the scratch: the workspace of the matmul, then the scratch of the second op in the same bytes. */
static char *after_vector(const struct call *c) { return (char *)c->scratch + vector_bytes(c); }

static struct cublaslt_operands fused_operands(const struct call *c, bool separate)
{
    struct call m = fused_matmul(c, separate);

    return (struct cublaslt_operands){
        .matrix = { m.in[1].data, m.in[0].data, m.out[0].data },
        .vector = is_gradient(c) ? c->scratch : c->in[2].data,
        .aux = is_gradient(c) ? NULL : c->out[0].data,
        .workspace = cublaslt_workspace(after_vector(c)),
    };
}

static ls_status fused_make(struct cublaslt_fused *f, const struct call *c, bool separate)
{
    const struct cublaslt_operands at = fused_operands(c, separate);
    struct cublaslt_problem p;

    ASSERT(fused_problem(c, separate, &p));
    f->separate = separate;
    return cublaslt_matmul_new(&p, &at, &f->matmul);
}

static ls_status fused_prepare(struct call *c)
{
    struct cublaslt_fused *f = mem_zalloc(MEM_OTHER, sizeof *f);
    static bool said;

    c->state = f;
    if (!f) return LS_ENOMEM;
    ls_status st = fused_make(f, c, false);
    if (st == LS_EUNSUPPORTED) {
        if (!said)
            log_line(LOG_WARN, "%s with %s; computed by a kernel of its own", ls_errmsg(), is_gradient(c) ? "a bias gradient" : "GELU");
        said = true;
        struct call m = fused_matmul(c, true);
        st = own_kernel_if(fused_make(f, c, true), &m, &f->own);
    }
    if (st == LS_OK) {
        struct call s = fused_second(c, f->separate, NULL);

        f->second = own_kernel(&s);
        return LS_OK;
    }
    mem_free(f);
    c->state = NULL;
    return st;
}

static void fused_release(struct call *c)
{
    struct cublaslt_fused *f = c->state;

    if (f) cublaslt_matmul_free(f->matmul);
    mem_free(f);
    c->state = NULL;
}

static ls_status fused_multiply(const struct cublaslt_fused *f, const struct call *c)
{
    struct cublaslt_operands at = fused_operands(c, f->separate);
    struct call m = fused_matmul(c, f->separate);
    struct device_stream *stream;

    if (f->own) {
        f->own->run(&m);
        return LS_OK;
    }
    LS_TRY(cuda_stream(c->stream, &stream));
    return cublaslt_matmul_run(f->matmul, &at, stream);
}

static void fused_run(const struct call *c)
{
    const struct cublaslt_fused *f = c->state;

    if (!f || fused_multiply(f, c) < 0) return;
    if (!f->separate && !is_gradient(c)) return;
    struct call s = fused_second(c, f->separate, c->scratch);
    s.scratch = after_vector(c);
    f->second->run(&s);
}

#define CUBLASLT_FUSED_ROW(id)                                                                                                        \
    {                                                                                                                                 \
        .op = OP_##id, .name = "cublaslt", .device = "cuda", .priority = PRIORITY_LIBRARY, .isa = ISA_ANY, .accepts = fused_accepts,  \
        .scratch = fused_scratch, .prepare = fused_prepare, .release = fused_release, .run = fused_run, .instead = own_kernel_instead \
    }

const struct kernel kernels_cuda_cublaslt_fused[] = { CUBLASLT_FUSED_ROW(LINEAR_UNARY), CUBLASLT_FUSED_ROW(LINEAR_DW_BIAS), KERNELS_END };
