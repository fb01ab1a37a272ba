/* helper_kernel_many.c - see helper_kernel_many.h. */
#include "helper_kernel_many.h"

#include <stdlib.h>
#include <string.h>
#include "base/base.h"

enum { LIKE = 130, SHARED = 90, SMALL = 12000, HELD = 2 * CALL_OPERANDS + 1 };

struct many {
    const struct kernel *k;
    const struct many_place *place;
    struct call *call; /* [most] */
    void **held;       /* [most * HELD] copies that are dropped at the end */
    int n, most, helds;
};

static void *many_copy(struct many *m, const void *bytes, size_t n, size_t grain)
{
    return m->held[m->helds++] = m->place->copy(bytes, n, grain);
}

static void copy_views(struct many *m, struct view *v, int n)
{
    for (int i = 0; i < n; i++)
        if (view_given(&v[i]))
            v[i].data = many_copy(m, v[i].data, view_bytes(&v[i]), ls_dtype_bytes(v[i].dtype));
}

static size_t elements_of_call(const struct call *c)
{
    size_t n = 0;

    for (int i = 0; i < c->nin; i++) n += view_count(&c->in[i]);
    for (int i = 0; i < c->nout; i++) n += view_count(&c->out[i]);
    return n;
}

/* hyper[4] or factor[1], which may also be a parameter of that size. */
static bool is_adjustment(const struct view *v)
{
    return view_given(v) && v->dtype == LS_F32 && (view_count(v) == 4 || view_count(v) == 1);
}

static void make_alike(struct call *c, const struct call *first)
{
    float decay = c->attr.optim.weight_decay;
    struct rounding rounding = c->attr.optim.rounding;

    if (c->op == OP_SUM_SQUARES || c->op == OP_SIGN_STEP)
        return;
    for (int i = 1; i < c->nin; i++)
        if (is_adjustment(&c->in[i]) && is_adjustment(&first->in[i]) && view_count(&c->in[i]) == view_count(&first->in[i]))
            c->in[i].data = first->in[i].data;
    c->attr = first->attr;
    c->attr.optim.weight_decay = decay;
    c->attr.optim.rounding = rounding;
    c->attr.optim.rounding.seed = first->attr.optim.rounding.seed;
}

static void many_add(void *ctx, struct kernel_case *c)
{
    struct many *m = ctx;
    struct call *x = &m->call[m->n];

    if (m->n == m->most || elements_of_call(&c->call) > SMALL || !m->k->accepts(&c->call))
        return;
    *x = c->call;
    copy_views(m, x->in, x->nin);
    copy_views(m, x->out, x->nout);
    size_t scratch = m->k->scratch ? m->k->scratch(x) : 0;
    x->scratch = scratch ? many_copy(m, NULL, scratch, 4) : NULL;
    if (x->op == OP_SUM_SQUARES && m->n % SHARED)
        x->out[0].data = m->call[m->n / SHARED * SHARED].out[0].data;
    make_alike(x, &m->call[m->n / LIKE * LIKE]);
    m->n++;
}

static struct many many_make(const struct kernel *k, const struct many_place *place, int most)
{
    struct many m = { .k = k, .place = place, .most = most };

    m.call = calloc((size_t)most, sizeof *m.call);
    m.held = calloc((size_t)most * HELD, sizeof *m.held);
    assert_non_null(m.call);
    assert_non_null(m.held);
    while (m.n < most) kernel_cases(k->op, many_add, &m);
    return m;
}

static void many_free(struct many *m)
{
    for (int i = 0; i < m->helds; i++) m->place->drop(m->held[i]);
    free(m->call);
    free(m->held);
}

static void compare_output(const struct many_place *place, const struct view *one, const struct view *many, int call, enum op op)
{
    size_t bytes = view_given(one) ? view_bytes(one) : 0;
    char *x = malloc(bytes + 1), *y = malloc(bytes + 1);

    assert_non_null(x);
    assert_non_null(y);
    if (bytes) {
        place->read(x, one->data, bytes);
        place->read(y, many->data, bytes);
    }
    if (memcmp(x, y, bytes) != 0)
        fail_msg("%s: an output of call %d differs from that of a call by itself", op_name(op), call);
    free(x);
    free(y);
}

void kernel_check_many(const struct kernel *k, const struct many_place *place, int calls)
{
    struct many one = many_make(k, place, calls), many = many_make(k, place, calls);
    const struct call **list = calloc((size_t)calls, sizeof *list);

    assert_non_null(list);
    for (int i = 0; i < calls; i++) {
        place->run(k, &one.call[i]);
        list[i] = &many.call[i];
    }
    place->run_many(k, list, calls);
    for (int i = 0; i < calls; i++)
        for (int o = 0; o < one.call[i].nout; o++)
            compare_output(place, &one.call[i].out[o], &many.call[i].out[o], i, k->op);
    free(list);
    many_free(&one);
    many_free(&many);
}
