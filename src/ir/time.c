/* time.c - the time dim of values: the dim that counts the tokens of a sequence, which context and sequence parallelism shard.
 *
 * The builder declares it for inputs and bound values (ls_declare_time); each op propagates it to its outputs by the rule of its row. A
 * value without a separate time dim (tokens of all samples in one dim, sums over tokens, rows by expert) has none.
 */
#include "ir/op_info.h"

void ls_declare_time(ls_program *p, ls_value x, int dim)
{
    if (!program_ok(p) || !x.id) return;
    struct value *v = program_value(p, x);
    if (dim < 0 || dim >= v->ndim)
        program_fail(p, "declare_time: dim %d of '%s' is out of range: it has %d dims", dim, v->name, v->ndim);
    else if (v->time_dim >= 0 && v->time_dim != dim)
        program_fail(p, "declare_time: the time dim of '%s' is already %d; it cannot be %d as well", v->name, v->time_dim, dim);
    else
        v->time_dim = dim;
}

void program_carry_time(ls_program *p, const struct instruction *i)
{
    op_time_fn *rule = op_info(i->op)->time;

    for (int k = 0; rule && k < i->nout; k++) {
        struct value *v = &p->values[i->out[k].id];

        if (i->out[k].id && v->time_dim < 0) v->time_dim = rule(p, i, k);
    }
}

static int time_of(const ls_program *p, ls_value x) { return x.id ? p->values[x.id].time_dim : -1; }

/* Same position, counted from the first dim. */
static int carried(const ls_program *p, ls_value x, ls_value y)
{
    int dim = time_of(p, x);

    return dim >= 0 && dim < p->values[y.id].ndim && p->values[y.id].size[dim] == p->values[x.id].size[dim] ? dim : -1;
}

/* out[0] has in[0]'s time dim. */
int time_first(const ls_program *p, const struct instruction *i, int k) { return k == 0 ? carried(p, i->in[0], i->out[0]) : -1; }

int time_all(const ls_program *p, const struct instruction *i, int k) { return carried(p, i->in[0], i->out[k]); }

int time_rows(const ls_program *p, const struct instruction *i, int k) { return k == 0 ? carried(p, i->in[1], i->out[0]) : -1; }

/* Operands have one shape or suffixes of it, so dims are aligned at the last one. */
int time_suffix(const ls_program *p, const struct instruction *i, int k)
{
    for (int n = 0; n < i->nin && k == 0; n++)
        if (time_of(p, i->in[n]) >= 0) return time_of(p, i->in[n]) + p->values[i->out[0].id].ndim - p->values[i->in[n].id].ndim;
    return -1;
}

int time_concat(const ls_program *p, const struct instruction *i, int k)
{
    int dim = time_suffix(p, i, k);

    return dim == i->attr.concat.dim ? -1 : dim;
}

/* a[..,M,K] b[..,K,N]: M comes from a, N from b; K disappears. */
int time_matmul(const ls_program *p, const struct instruction *i, int k)
{
    int last = p->values[i->out[k].id].ndim - 1, a = time_of(p, i->in[0]), b = time_of(p, i->in[1]);

    return a >= 0 && a < last ? a : b >= 0 && b != last - 1 ? b : -1;
}

int time_sum(const ls_program *p, const struct instruction *i, int k)
{
    int dim = time_of(p, i->in[0]), over = i->attr.reduce.dim;

    (void)k;
    return dim < 0 || over < 0 || over == dim ? -1 : dim - (over < dim);
}

/* o[B,T,H,D] lse[B,H,T] */
int time_attention(const ls_program *p, const struct instruction *i, int k) { return time_of(p, i->in[0]) != 1 ? -1 : k == 0 ? 1 : 2; }

/* ---- views ---- */

static size_t product(const size_t *size, int n)
{
    size_t all = 1;

    for (int d = 0; d < n; d++) all *= size[d];
    return all;
}

/* The dim of y with the same size and the same number of elements before it. */
static int reshaped(const struct value *x, const struct value *y, int dim)
{
    size_t before = product(x->size, dim);

    if (dim < y->ndim && y->size[dim] == x->size[dim] && product(y->size, dim) == before) return dim;
    for (int d = 0; d < y->ndim; d++)
        if (y->size[d] == x->size[dim] && product(y->size, d) == before) return d;
    return -1;
}

int time_view(const ls_program *p, const struct instruction *i, int k)
{
    const struct value *x = &p->values[i->in[0].id], *y = &p->values[i->out[k].id];
    const struct view_rule *view = instruction_view(i);
    int dim = x->time_dim;

    if (dim < 0) return -1;
    switch (view->kind) {
    case VIEW_RESHAPE: return reshaped(x, y, dim);
    case VIEW_TRANSPOSE: return dim == view->dim0 ? view->dim1 : dim == view->dim1 ? view->dim0 : dim;
    case VIEW_SLICE: return dim < y->ndim && y->size[dim] == x->size[dim] ? dim : -1;
    case VIEW_EXPAND: return view->dim0 < 0 ? -1 : dim + (view->dim0 <= dim);
    case VIEW_STOP: return dim;
    }
    return -1;
}
