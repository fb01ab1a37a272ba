/* cublaslt.c - linear layers and batched matmuls by cuBLASLt: rows of the kernel table, above our own plain kernels.
 *
 * prepare() makes a matmul of the call; run() enqueues it, several times for dims that one batch does not hold. Each call has a workspace
 * of its own, its scratch, so what runs on other streams changes nothing. Weight gradients are added to (beta 1), in f32 also where the
 * operands are bf16. Where the library has no algorithm, our own kernel runs; it needs no scratch.
 */
#include "base/base.h"
#include "base/mem.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/cublaslt_matmul.h"
#include "kernels/cuda/own_kernel.h"
#include "kernels/cuda/parts.h"

/* own and matmul NULL: there is nothing to compute. */
struct cublaslt_row {
    const struct kernel *own; /* first: own_kernel_instead() */
    struct cublaslt_matmul *matmul;
};

static bool problem_is_empty(const struct cublaslt_problem *p) { return !p->m || !p->n || !p->batch; }

static bool cublaslt_accepts(const struct call *c)
{
    struct cublaslt_problem p;

    return cublaslt_problem_of(c, &p) && cublaslt_found();
}

static size_t cublaslt_scratch(const struct call *c)
{
    struct cublaslt_problem p;

    return cublaslt_problem_of(c, &p) && !problem_is_empty(&p) ? cublaslt_problem_scratch(&p) : 0;
}

/* The operands of the first call of the loops. */
static struct cublaslt_operands matmul_operands(const struct call *c)
{
    return (struct cublaslt_operands){
        .matrix = { c->in[1].data, c->in[0].data, c->out[0].data },
        .vector = c->in[2].data,
        .workspace = cublaslt_workspace(c->scratch),
    };
}

static void cublaslt_release(struct call *c)
{
    struct cublaslt_row *r = c->state;

    if (r) cublaslt_matmul_free(r->matmul);
    mem_free(r);
    c->state = NULL;
}

static ls_status cublaslt_prepare(struct call *c)
{
    const struct cublaslt_operands at = matmul_operands(c);
    struct cublaslt_row *r = mem_zalloc(MEM_OTHER, sizeof *r);
    struct cublaslt_problem p;

    c->state = r;
    if (!r) return LS_ENOMEM;
    ASSERT(cublaslt_problem_of(c, &p));
    if (problem_is_empty(&p)) return LS_OK;
    ls_status st = own_kernel_if(cublaslt_matmul_new(&p, &at, &r->matmul), c, &r->own);
    if (st < 0) cublaslt_release(c);
    return st;
}

/* Call number i of the loops: where A, B and D are. */
static struct cublaslt_operands matmul_at(const struct cublaslt_problem *p, const struct call *c, int64_t i)
{
    struct cublaslt_operands at = matmul_operands(c);
    const size_t in = ls_dtype_bytes(p->in), unit[CUBLASLT_MATRICES] = { in, in, ls_dtype_bytes(p->out) };

    for (int l = 0; l < p->loops; l++) {
        for (int x = 0; x < CUBLASLT_MATRICES; x++) at.matrix[x] += i % p->loop[l].size * p->loop[l].stride[x] * (int64_t)unit[x];
        i /= p->loop[l].size;
    }
    return at;
}

static void cublaslt_run(const struct call *c)
{
    const struct cublaslt_row *r = c->state;
    struct device_stream *stream;
    int64_t calls = 1;

    if (r && r->own) r->own->run(c);
    if (!r || !r->matmul || cuda_stream(c->stream, &stream) < 0) return;
    const struct cublaslt_problem *p = cublaslt_matmul_problem(r->matmul);
    for (int l = 0; l < p->loops; l++) calls *= p->loop[l].size;
    for (int64_t i = 0; i < calls; i++) {
        struct cublaslt_operands at = matmul_at(p, c, i);

        if (cublaslt_matmul_run(r->matmul, &at, stream) < 0) return;
    }
}

#define CUBLASLT_ROW(id)                                                                                                                \
    {                                                                                                                                   \
        .op = OP_##id, .name = "cublaslt", .device = "cuda", .priority = PRIORITY_LIBRARY, .isa = ISA_ANY, .accepts = cublaslt_accepts, \
        .scratch = cublaslt_scratch, .prepare = cublaslt_prepare, .release = cublaslt_release, .run = cublaslt_run,                     \
        .instead = own_kernel_instead                                                                                                   \
    }

const struct kernel kernels_cuda_cublaslt[] = { CUBLASLT_ROW(LINEAR), CUBLASLT_ROW(LINEAR_DX), CUBLASLT_ROW(LINEAR_DW),
                                                CUBLASLT_ROW(MATMUL), KERNELS_END };
