/* non_finite.c - looking for NaN and infinity, instruction by instruction, and naming what is found by parameter, op and block. */
#include "program/non_finite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "program/store.h"

/* ---- one operand ---- */

/* The first element of v that is not finite. */
static bool find_element(const struct view *v, size_t *element, bool *nan)
{
    enum { CHUNK = 256 };
    double part[CHUNK];
    bool contiguous = view_is_contiguous(v);
    size_t count = view_count(v), bytes = ls_dtype_bytes(v->dtype), most = contiguous ? CHUNK : 1;

    if (!view_given(v) || !ls_dtype_is_float(v->dtype))
        return false;
    for (size_t at = 0; at < count; at += most) {
        size_t n = MIN(most, count - at);
        ptrdiff_t first = contiguous ? (ptrdiff_t)at : view_offset(v, at);

        ls_convert(part, LS_F64, (const char *)v->data + first * (ptrdiff_t)bytes, v->dtype, n);
        for (size_t e = 0; e < n; e++)
            if (!isfinite(part[e])) {
                *element = at + e;
                *nan = isnan(part[e]);
                return true;
            }
    }
    return false;
}

static bool find_operand(const ls_value *id, const struct view *view, int n, struct found *out)
{
    for (int k = 0; k < n; k++)
        if (id[k].id && find_element(&view[k], &out->element, &out->nan)) {
            out->value = id[k];
            return true;
        }
    return false;
}

ls_status check_outputs(const ls_program *p, const struct instruction *i, int number)
{
    struct found f;

    if (!find_operand(i->out, i->call->out, i->nout, &f))
        return LS_OK;
    return ls_fail(LS_EINVAL, "instruction %d, %s of '%s' (%s, %s): element %zu is %s", number, program_op_name(i->op),
                   p->values[f.value.id].name, phase_name(i->phase), ls_dtype_name(p->values[f.value.id].dtype), f.element,
                   f.nan ? "NaN" : "infinite");
}

/* ---- a run that looks ---- */

void program_look(ls_program *p, struct finding *f) { p->finding = f; }

static void note(struct found *to, struct found f, const ls_program *p, const struct instruction *i, int number)
{
    if (to->program)
        return;
    f.program = p;
    f.instruction = i;
    f.number = number;
    f.tag = p->tag[p->slot];
    *to = f;
}

static bool is_exchange(const struct instruction *i)
{
    return i->op == OP_COMM_WAIT || i->op == OP_SHUFFLE || i->op == OP_SHUFFLE_COUNTS;
}

void non_finite_before(const ls_program *p, const struct instruction *i, int number)
{
    struct finding *to = p->finding;
    struct found f = { .given = true };

    to->clean = true;
    if (to->source.program || i->op == OP_COMM_WAIT || !find_operand(i->in, i->call->in, i->nin, &f))
        return;
    to->clean = false;
    note(p->values[p->values[f.value.id].root].role == LS_ROLE_PARAMETER ? &to->source : &to->received, f, p, i, number);
}

void non_finite_after(const ls_program *p, const struct instruction *i, int number)
{
    struct finding *to = p->finding;
    struct found f = { 0 };

    if (to->source.program || !to->clean || i->op == OP_COMM_START || !find_operand(i->out, i->call->out, i->nout, &f))
        return;
    note(is_exchange(i) ? &to->received : &to->source, f, p, i, number);
}

/* ---- names ---- */

/* The parameter in whose value or gradient this element of v lies, and where in it; -1: in none. */
static int parameter_at(const ls_program *p, ls_value v, size_t element, size_t *within)
{
    const struct value *x = &p->values[v.id], *root = &p->values[x->root];
    int group = root->group >= 0 ? root->group : root->flat - 1, k = 0;
    const struct store_group *g = group >= 0 ? store_group_at(p->store, group) : NULL;
    size_t at = (size_t)x->offset + element;

    *within = at;
    if (!g)
        return root->param;
    if (value_count(root) < g->total)  /* this rank's shard */
        at += g->begin;
    while (k + 1 < g->n && at >= g->at[k + 1])
        k++;
    *within = at - g->at[k];
    return g->params[k];
}

static bool is_gradient(const ls_program *p, ls_value v)
{
    const struct value *root = &p->values[p->values[v.id].root];

    return root->role == LS_ROLE_GRADIENT || root->flat_gradient;
}

static bool is_weight(const ls_program *p, ls_value v)
{
    const struct value *root = &p->values[p->values[v.id].root];

    return root->role == LS_ROLE_PARAMETER || (root->flat && !root->flat_gradient);
}

/* The name of the parameter that an operand of i is, or a part of. */
static const char *weight_of(const ls_program *p, const struct instruction *i)
{
    size_t within;

    for (int k = 0; k < i->nin; k++) {
        int param = i->in[k].id && is_weight(p, i->in[k]) ? parameter_at(p, i->in[k], 0, &within) : -1;

        if (param >= 0 && i->op != OP_COMM_START)
            return ls_store_name(p->store, (size_t)param);
    }
    return NULL;
}

/* The gradient's or parameter's own name, where it is one. */
static void put_what(const struct found *f, char *out, size_t room)
{
    size_t within;
    int param = parameter_at(f->program, f->value, f->element, &within);
    bool gradient = is_gradient(f->program, f->value);

    if (param >= 0 && (gradient || is_weight(f->program, f->value)))
        snprintf(out, room, "element %zu of %s '%.*s'", within, gradient ? "the gradient of" : "parameter", FOUND_PARAMETER,
                 ls_store_name(f->program->store, (size_t)param));
    else
        snprintf(out, room, "element %zu of '%.*s'", f->element, FOUND_PARAMETER, f->program->values[f->value.id].name);
}

char *found_text(const struct found *f, char out[FOUND_TEXT])
{
    const struct instruction *i = f->instruction;
    const char *weight = weight_of(f->program, i), *block = i->block ? f->program->blocks[i->block] : "";
    size_t at;

    put_what(f, out, FOUND_TEXT);
    at = strlen(out);
    at += (size_t)snprintf(out + at, FOUND_TEXT - at, " is %s%s (%s", f->nan ? "NaN" : "infinite", f->given ? " already" : "",
                           instruction_name(i));
    if (weight && !f->given && at < FOUND_TEXT)
        at += (size_t)snprintf(out + at, FOUND_TEXT - at, " of '%.80s'", weight);
    if (at < FOUND_TEXT)
        snprintf(out + at, FOUND_TEXT - at, ", %s%s%.60s%s, instruction %d)", phase_name(i->phase), block[0] ? ", block '" : "", block,
                 block[0] ? "'" : "", f->number);
    return out;
}

/* ---- one on purpose ---- */

/* True where NAME.grad is v, or NAME a parameter that v is: the whole of it that this rank computes. */
static bool is_named(const ls_program *p, ls_value v, const char *name, bool gradient)
{
    size_t within, length = strlen(name) - (gradient ? 5 : 0);
    int param = v.id && (gradient ? is_gradient(p, v) : is_weight(p, v)) ? parameter_at(p, v, 0, &within) : -1;
    const char *its = param >= 0 ? ls_store_name(p->store, (size_t)param) : "";

    return param >= 0 && within == 0 && strlen(its) == length && strncmp(its, name, length) == 0
           && value_count(&p->values[v.id]) <= store_local_count(p->store, (size_t)param);
}

/* Which output of i the fault NAME is in; -1: none. */
static int poison_output(const ls_program *p, const struct instruction *i, const char *name)
{
    size_t length = strlen(name);
    bool gradient = length > 5 && strcmp(name + length - 5, ".grad") == 0;

    if (i->op >= OP_VIEW || i->nin == 0 || !i->nout || i->phase == LS_PHASE_OPTIMIZER || i->phase == LS_PHASE_COMMUNICATE)
        return -1;
    for (int k = 0; gradient && k < i->nout; k++)
        if (is_named(p, i->out[k], name, true))
            return k;
    for (int k = 0; !gradient && i->phase == LS_PHASE_FORWARD && k < i->nin; k++)
        if (is_named(p, i->in[k], name, false))
            return 0;
    return -1;
}

bool program_can_poison(const ls_program *p, const char *name)
{
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++)
            if (poison_output(p, &p->list[s].at[n], name) >= 0)
                return true;
    return false;
}

void program_poison(ls_program *p, const char *name)
{
    if (name || p->poison.slot == p->slot)
        p->poison = (struct poison){ name, p->slot };
}

void poison_after(ls_program *p, const struct instruction *i)
{
    static const double nan = NAN;
    int k = p->poison.slot == p->slot ? poison_output(p, i, p->poison.name) : -1;
    const struct view *v = k >= 0 ? &i->call->out[k] : NULL;

    if (!v || !view_given(v) || !ls_dtype_is_float(v->dtype))
        return;
    size_t bytes = ls_dtype_bytes(v->dtype);
    ls_convert((char *)v->data + view_offset(v, view_count(v) / 2) * (ptrdiff_t)bytes, v->dtype, &nan, LS_F64, 1);
    p->poison.name = NULL;
}
