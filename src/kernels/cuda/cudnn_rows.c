/* cudnn_rows.c - attention and convolutions by cuDNN: rows of the kernel table, above our own kernels.
 *
 * accepts() looks at the shapes that cuDNN is documented to take. Only prepare() can ask the library whether it has an engine for the graph
 * on this GPU; if not, or if the library is incomplete, our own kernel runs, and the first such call is reported. scratch has room for
 * either.
 *
 *   attention         the workspace of the plan
 *   attention_grad    row sums, the workspace
 *   conv2d, conv2d_dx the workspace
 *   conv2d_dw         the gradient in f32, which is then added to dw, f32 copies of half operands, the workspace
 */
#include "base/base.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/cudnn_conv.h"
#include "kernels/cuda/own_kernel.h"
#include "kernels/cuda/parts.h"

enum { SCRATCH_ALIGNMENT = 256, SCRATCHES = 4 };

/* A run of the plan: where its operands begin, in bytes from those of the call. */
struct row_part {
    struct cudnn_pack pack;
    size_t in[CALL_OPERANDS], out[CALL_OPERANDS];
};

struct cudnn_row {
    const struct kernel *own;               /* first: own_kernel_instead(). It runs if there is no engine */
    struct cudnn_plan *plan;                /* NULL: not needed */
    const struct kernel *copy, *accumulate; /* conv2d_dw's: NULL: not needed */
    size_t scratch[SCRATCHES];              /* where each part of the scratch memory begins, after its begin is rounded up */
    int parts;
    struct row_part part[]; /* [parts] */
};

static bool is_attention(const struct call *c) { return c->op == OP_ATTENTION || c->op == OP_ATTENTION_GRAD; }

static bool row_accepts(const struct call *c)
{
    if (is_attention(c) ? !cudnn_attention_accepts(c) || !cudnn_attention_repeats(c, cuda.properties.major) : !cudnn_conv_accepts(c))
        return false;
    return own_kernel(c) && cudnn_found();
}

/* ---- scratch ---- */

enum { SCRATCH_SUMS = 0, SCRATCH_DW = 0, SCRATCH_X, SCRATCH_DY, SCRATCH_WORKSPACE };

static size_t scratch_bytes(const struct call *c, int kind)
{
    bool gradient = c->op == OP_CONV2D_DW, written;
    struct call part;

    if (is_attention(c)) {
        part = cudnn_attention_part(c, 0);
        return kind == SCRATCH_SUMS ? cudnn_attention_sums(&part) : kind == SCRATCH_WORKSPACE ? cudnn_attention_workspace(&part) : 0;
    }
    switch (kind) {
    case SCRATCH_WORKSPACE: return cudnn_conv_workspace(c);
    case SCRATCH_DW: return gradient ? view_count(&c->out[0]) * sizeof(float) : 0;
    default:
        return gradient && c->in[0].dtype != LS_F32
                   ? view_count(cudnn_conv_operand(c, kind == SCRATCH_X ? CONV_X : CONV_Y, &written)) * sizeof(float)
                   : 0;
    }
}

static size_t scratch_rounded(size_t bytes) { return (bytes + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT; }

static size_t row_scratch(const struct call *c)
{
    const struct kernel *own = own_kernel(c);
    size_t bytes = SCRATCH_ALIGNMENT, least = own->scratch ? own->scratch(c) : 0;

    for (int kind = 0; kind < SCRATCHES; kind++) bytes += scratch_rounded(scratch_bytes(c, kind));
    return MAX(bytes, least);
}

static char *scratch_of(const struct cudnn_row *r, const struct call *c, int kind)
{
    return (char *)scratch_rounded((size_t)c->scratch) + r->scratch[kind];
}

/* ---- plans ---- */

static bool is_aligned(const struct view *v) { return (size_t)v->data % CUDNN_ALIGNMENT == 0; }

static bool operands_are_aligned(const struct call *c)
{
    bool aligned = true;

    for (int i = 0; i < c->nin; i++) aligned = aligned && (!call_has_in(c, i) || is_aligned(&c->in[i]));
    for (int i = 0; i < c->nout; i++) aligned = aligned && (!call_has_out(c, i) || is_aligned(&c->out[i]));
    return aligned;
}

static ls_status row_plan(const struct call *c, struct cudnn_plan **out)
{
    struct call part = is_attention(c) ? cudnn_attention_part(c, 0) : *c;
    struct cudnn_limits limits = { .workspace = scratch_bytes(c, SCRATCH_WORKSPACE),
                                   .tensor_cores = c->in[0].dtype != LS_F32 || cuda.settings.tf32 };
    struct cudnn_target target = { 0 };

    if (!operands_are_aligned(c)) return ls_fail(LS_EUNSUPPORTED, "operands are not aligned to %d bytes", CUDNN_ALIGNMENT);
    LS_TRY(cudnn_handle(&target.handle));
    return cudnn_plan_new(is_attention(c) ? cudnn_attention_graph(&part) : cudnn_conv_graph(c), &target, &limits, out);
}

static const char *row_words(const struct call *c)
{
    switch (c->op) {
    case OP_ATTENTION: return "attention";
    case OP_ATTENTION_GRAD: return "the gradient of attention";
    case OP_CONV2D: return "a convolution";
    case OP_CONV2D_DX: return "the gradient of a convolution's input";
    default: return "the gradient of a convolution's weight";
    }
}

/* A kernel of our own with one input and one output of the same sizes. */
static struct call own_call(const struct call *c, enum op op, const struct view *in, const struct view *out)
{
    struct call own = { .op = op, .nin = 1, .nout = 1, .stream = c->stream };

    own.in[0] = *in;
    own.out[0] = *out;
    return own;
}

/* The part that does not depend on where the operands are. */
static void row_fill(struct cudnn_row *r, const struct call *c)
{
    for (int kind = 1; kind < SCRATCHES; kind++) r->scratch[kind] = r->scratch[kind - 1] + scratch_rounded(scratch_bytes(c, kind - 1));
    for (int i = 0; i < r->parts && is_attention(c); i++) {
        struct call p = cudnn_attention_part(c, i);

        for (int k = 0; k < c->nin; k++) r->part[i].in[k] = (size_t)((char *)p.in[k].data - (char *)c->in[k].data);
        for (int k = 0; k < c->nout; k++) r->part[i].out[k] = (size_t)((char *)p.out[k].data - (char *)c->out[k].data);
    }
    if (c->op == OP_CONV2D_DW) {
        struct view dw = view_of(NULL, LS_F32, c->out[0].ndim, c->out[0].size), x = view_of(NULL, LS_F32, c->in[0].ndim, c->in[0].size);
        struct call add = own_call(c, OP_ACCUMULATE, &dw, &c->out[0]), copy = own_call(c, OP_COPY, &c->in[0], &x);

        r->accumulate = own_kernel(&add);
        if (c->in[0].dtype != LS_F32) r->copy = own_kernel(&copy);
    }
}

static ls_status row_prepare(struct call *c)
{
    static bool said[OPS][2]; /* not aligned; no engine */
    bool aligned = operands_are_aligned(c);
    int parts = is_attention(c) ? cudnn_attention_parts(c) : 1;
    struct cudnn_row *r = mem_zalloc(MEM_OTHER, sizeof *r + (size_t)parts * sizeof r->part[0]);

    c->state = r;
    if (!r) return LS_ENOMEM;
    r->parts = parts;
    row_fill(r, c);
    ls_status st = row_plan(c, &r->plan);
    if (st == LS_OK) return LS_OK;
    if (st == LS_EUNSUPPORTED) {
        r->own = own_kernel(c);
        if (!said[c->op][aligned]) log_line(LOG_WARN, "cuda: %s: %s; lockstep's own kernel is used", row_words(c), ls_errmsg());
        said[c->op][aligned] = true;
        return LS_OK;
    }
    cudnn_plan_free(r->plan);
    mem_free(r);
    c->state = NULL;
    return st;
}

static void row_release(struct call *c)
{
    struct cudnn_row *r = c->state;

    for (int i = 0; r && i < r->parts; i++) cudnn_pack_free(&r->part[i].pack);
    if (r) cudnn_plan_free(r->plan);
    mem_free(r);
    c->state = NULL;
}

/* ---- runs ---- */

static void run_attention(struct cudnn_row *r, const struct call *c, struct device_stream *stream)
{
    for (int i = 0; i < r->parts; i++) {
        struct row_part *p = &r->part[i];
        void *pointer[CUDNN_OPERANDS] = { NULL };
        int n = 0;

        /* The order of ATTENTION_Q, .. is that of the op's operands. */
        for (int k = 0; k < (c->op == OP_ATTENTION ? 3 : 6); k++) pointer[n++] = (char *)c->in[k].data + p->in[k];
        for (int k = 0; k < c->nout; k++) pointer[n++] = (char *)c->out[k].data + p->out[k];
        if (c->op == OP_ATTENTION_GRAD) pointer[ATTENTION_SUMS] = scratch_of(r, c, SCRATCH_SUMS);
        if (cudnn_plan_run(r->plan, &p->pack, pointer, scratch_of(r, c, SCRATCH_WORKSPACE), stream) < 0) return;
    }
}

static void run_conv(struct cudnn_row *r, const struct call *c, struct device_stream *stream)
{
    void *at[CONV_Y + 1];
    bool written;

    for (int k = CONV_X; k <= CONV_Y; k++) {
        const struct view *v = cudnn_conv_operand(c, k, &written);

        at[k] = v->data;
        if (r->accumulate && written) at[k] = scratch_of(r, c, SCRATCH_DW);
        if (r->copy && !written) {
            struct view to = view_of(scratch_of(r, c, k == CONV_X ? SCRATCH_X : SCRATCH_DY), LS_F32, v->ndim, v->size);
            struct call copy = own_call(c, OP_COPY, v, &to);

            r->copy->run(&copy);
            at[k] = to.data;
        }
    }
    if (cudnn_plan_run(r->plan, &r->part[0].pack, at, scratch_of(r, c, SCRATCH_WORKSPACE), stream) < 0) return;
    if (r->accumulate) {
        struct view dw = view_of(at[CONV_W], LS_F32, c->out[0].ndim, c->out[0].size);
        struct call add = own_call(c, OP_ACCUMULATE, &dw, &c->out[0]);

        r->accumulate->run(&add);
    }
}

static void row_run(const struct call *c)
{
    struct cudnn_row *r = c->state;
    struct device_stream *stream;

    if (!r || cuda_stream(c->stream, &stream) < 0) return;
    if (r->own)
        r->own->run(c);
    else if (is_attention(c))
        run_attention(r, c, stream);
    else
        run_conv(r, c, stream);
}

#define CUDNN_ROW(id, priority_)                                                                                              \
    {                                                                                                                         \
        .op = OP_##id, .name = "cudnn", .device = "cuda", .priority = priority_, .isa = ISA_ANY, .accepts = row_accepts,      \
        .scratch = row_scratch, .prepare = row_prepare, .release = row_release, .run = row_run, .instead = own_kernel_instead \
    }

const struct kernel kernels_cuda_cudnn[] = { CUDNN_ROW(ATTENTION, PRIORITY_AMX),     CUDNN_ROW(ATTENTION_GRAD, PRIORITY_AMX),
                                             CUDNN_ROW(CONV2D, PRIORITY_LIBRARY),    CUDNN_ROW(CONV2D_DX, PRIORITY_LIBRARY),
                                             CUDNN_ROW(CONV2D_DW, PRIORITY_LIBRARY), KERNELS_END };
