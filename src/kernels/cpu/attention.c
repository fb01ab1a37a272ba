/* attention.c - the attention kernels: distribute blocks over threads.
 *
 * Forward distributes (batch, head, block of queries), the longest first if causal; backward (batch, group), so that dk and dv have one
 * writer and one order of sums. Operands are f32, bf16 or f16, all of one type; lse is f32.
 */
#include "kernels/cpu/attention.h"

#include "base/base.h"
#include "base/threads.h"
#include "kernels/kernel.h"
#include "kernels/cpu/gemm.h"

extern const struct attention_blocks attention_blocks_avx2, attention_blocks_avx512;

static const struct attention_blocks *blocks_best(void)
{
    return isa_best() >= ISA_AVX512 ? &attention_blocks_avx512 : isa_best() >= ISA_AVX2 ? &attention_blocks_avx2 : NULL;
}

static bool attention_heads_of(const struct view *v, ls_dtype type, struct heads *out)
{
    if (v->ndim != 4 || v->dtype != type || (v->stride[3] != 1 && v->size[3] != 1)) return false;
    for (int d = 0; d < 3; d++)
        if (v->stride[d] < 0) return false;
    *out = (struct heads){ v->data, type, v->stride[0], v->stride[1], v->stride[2] };
    return true;
}

/* The operands q, k, v of both ops. */
static bool attention_of(const struct call *c, struct attention *a)
{
    const struct view *q = &c->in[0], *k = &c->in[1];
    ls_dtype type = q->dtype;

    if (!blocks_best() || (type != LS_F32 && type != LS_BF16 && type != LS_F16)) return false;
    *a = (struct attention){ .causal = c->attr.attention.causal, .scale = (float)c->attr.attention.scale };
    a->pairs = tiles_pairs(type, type);
    if (!attention_heads_of(q, type, &a->q) || !attention_heads_of(k, type, &a->k) || !attention_heads_of(&c->in[2], type, &a->v))
        return false;
    a->B = q->size[0];
    a->T = q->size[1];
    a->H = q->size[2];
    a->D = q->size[3];
    a->S = k->size[1];
    a->G = k->size[2];
    return a->G > 0 && a->H % a->G == 0;
}

static bool forward_of(const struct call *c, struct attention *a)
{
    if (!attention_of(c, a) || !attention_heads_of(&c->out[0], a->q.type, &a->o)) return false;
    a->lse = c->out[1].data;
    return c->out[1].dtype == LS_F32 && view_is_contiguous(&c->out[1]);
}

static bool backward_of(const struct call *c, struct attention *a)
{
    ls_dtype type = c->in[0].dtype;

    if (!attention_of(c, a) || !attention_heads_of(&c->in[3], type, &a->o) || !attention_heads_of(&c->in[5], type, &a->go) ||
        !attention_heads_of(&c->out[0], type, &a->dq) || !attention_heads_of(&c->out[1], type, &a->dk) ||
        !attention_heads_of(&c->out[2], type, &a->dv))
        return false;
    a->lse = c->in[4].data;
    return c->in[4].dtype == LS_F32 && view_is_contiguous(&c->in[4]);
}

/* Reads operand `at`, the step's numbers, if it is given. */
static void take_mask(const struct call *c, int at, struct attention *a)
{
    const struct attention_drop *d = &c->attr.attention.drop;

    if (!call_has_in(c, at)) return;
    const int64_t *step = c->in[at].data;
    a->mask = (struct attention_mask){ .attr = d,
                                       .stream = d->stream ^ (uint64_t)step[0],
                                       .sample = view_count(&c->in[at]) > 1 ? (uint64_t)step[c->in[at].stride[0]] : 0,
                                       .threshold = attention_drop_threshold(d->p),
                                       .kept = (float)(1 / (1 - d->p)) };
}

static bool attention_accepts(const struct call *c)
{
    struct attention a;

    return forward_of(c, &a);
}

static bool attention_grad_accepts(const struct call *c)
{
    struct attention a;

    return backward_of(c, &a);
}

static size_t attention_scratch(const struct call *c)
{
    struct attention a;

    return forward_of(c, &a) ? (size_t)threads_count() * blocks_best()->forward_scratch(&a) : 0;
}

static size_t attention_grad_scratch(const struct call *c)
{
    struct attention a;

    return backward_of(c, &a) ? (size_t)threads_count() * blocks_best()->backward_scratch(&a) : 0;
}

struct work {
    struct attention a;
    const struct attention_blocks *blocks;
    size_t count;   /* blocks of queries per head */
    size_t scratch; /* bytes per thread */
    char *base;
};

static void forward_tasks(void *ctx, size_t begin, size_t end, int thread)
{
    const struct work *w = ctx;
    const struct attention *a = &w->a;
    size_t heads = a->B * a->H;

    for (size_t i = begin; i < end; i++)
        w->blocks->forward(a, i % heads / a->H, i % a->H, w->count - 1 - i / heads, w->base + (size_t)thread * w->scratch);
}

static void backward_tasks(void *ctx, size_t begin, size_t end, int thread)
{
    const struct work *w = ctx;

    for (size_t i = begin; i < end; i++) w->blocks->backward(&w->a, i / w->a.G, i % w->a.G, w->base + (size_t)thread * w->scratch);
}

static void attention_run(const struct call *c)
{
    struct work w = { .blocks = blocks_best(), .base = c->scratch };

    if (!forward_of(c, &w.a)) return;
    take_mask(c, 4, &w.a);
    w.scratch = w.blocks->forward_scratch(&w.a);
    if (call_has_in(c, 3)) {
        int32_t len = *(const int32_t *)c->in[3].data;

        ASSERT(len >= 0 && (size_t)len <= w.a.S);
        w.a.S = (size_t)len;
    }
    w.count = (w.a.T + w.blocks->queries - 1) / w.blocks->queries;
    threads_each(w.a.B * w.a.H * w.count, 1, forward_tasks, &w);
}

static void attention_grad_run(const struct call *c)
{
    struct work w = { .blocks = blocks_best(), .base = c->scratch };

    if (!backward_of(c, &w.a)) return;
    take_mask(c, 6, &w.a);
    w.scratch = w.blocks->backward_scratch(&w.a);
    threads_each(w.a.B * w.a.G, 1, backward_tasks, &w);
}

#define ATTENTION_ROW(id, function)                                                                                                     \
    {                                                                                                                                   \
        .op = OP_##id, .name = "blocks", .device = "cpu", .priority = PRIORITY_BLOCKED, .isa = ISA_AVX2, .accepts = function##_accepts, \
        .scratch = function##_scratch, .run = function##_run                                                                            \
    }

const struct kernel kernels_attention[] = { ATTENTION_ROW(ATTENTION, attention), ATTENTION_ROW(ATTENTION_GRAD, attention_grad),
                                            KERNELS_END };
