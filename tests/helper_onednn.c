/* helper_onednn.c - see helper_onednn.h. */
#include "helper_onednn.h"

#include <stdio.h>
#include <string.h>
#include "base/rng.h"

struct view onednn_filled(struct block *b, ls_dtype type, int ndim, const size_t *size, int layout, uint64_t stream)
{
    struct view v = block_view(b, type, ndim, size, layout, stream % 2 == 1);

    for (size_t i = 0; i < view_count(&v); i++)
        element_put(&v, i, 2 * rng_uniform(7, stream, i) - 1);
    return v;
}

void onednn_open(struct kernel_case *c, const struct gemm_case *p)
{
    size_t x[] = { p->R, p->K }, y[] = { p->R, p->N }, w[] = { p->N, p->K }, b[] = { p->N };
    bool dx = p->op == OP_LINEAR_DX, dw = p->op == OP_LINEAR_DW;

    memset(c, 0, sizeof *c);
    snprintf(c->name, sizeof c->name, "%s R %zu K %zu N %zu %s to %s%s", op_name(p->op), p->R, p->K, p->N,
             ls_dtype_name(p->type), ls_dtype_name(p->out), p->bias ? ", bias" : "");
    c->call.op = p->op;
    c->call.nin = p->bias ? 3 : 2;
    c->call.nout = 1;
    c->call.in[0] = onednn_filled(&c->in[0], p->type, 2, dx || dw ? y : x, 0, 1);
    c->call.in[1] = onednn_filled(&c->in[1], p->type, 2, dw ? x : w, 0, 2);
    if (p->bias)
        c->call.in[2] = onednn_filled(&c->in[2], p->out, 1, b, 0, 3);
    c->call.out[0] = onednn_filled(&c->out[0], p->out, 2, dx ? x : dw ? w : y, 0, 4);
}

void onednn_close(struct kernel_case *c)
{
    for (int i = 0; i < CALL_OPERANDS; i++) {
        block_free(&c->in[i]);
        block_free(&c->out[i]);
    }
}

const struct kernel *onednn_row(const struct call *c)
{
    const struct kernel *k = kernel_named(c->op, "onednn");

    assert_non_null(k);
    return k->accepts(c) ? k : NULL;
}
