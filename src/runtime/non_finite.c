/* non_finite.c - checks each instruction for NaN and infinity, and names a finding by parameter, op and block. */
#include "runtime/non_finite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "runtime/store.h"
#include "runtime/stream_set.h"

/* ---- one operand ---- */

/* The first non-finite element of v, which the host can read. */
static bool find_in_view(const struct view *v, size_t *element, bool *nan)
{
    enum { CHUNK = 256 };
    double part[CHUNK];
    bool contiguous = view_is_contiguous(v);
    size_t count = view_count(v), bytes = ls_dtype_bytes(v->dtype), most = contiguous ? CHUNK : 1;

    if (!view_given(v) || !ls_dtype_is_float(v->dtype)) return false;
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

/* The same for v on any device. */
static ls_status find_element(const ls_program *p, const struct view *v, struct found *out, bool *found)
{
    struct stream_set *set = store_streams(p->store);
    ptrdiff_t low, high, esize = (ptrdiff_t)ls_dtype_bytes(v->dtype);
    struct view staged = *v;
    char *stage = NULL;
    ls_status st = LS_OK;

    *found = false;
    if (!view_given(v) || !ls_dtype_is_float(v->dtype) || !view_reach(v, &low, &high)) return LS_OK;
    if (!set->device->host_visible) {
        size_t bytes = (size_t)((high - low + 1) * esize);

        stage = mem_alloc(MEM_OTHER, bytes);
        staged.data = stage - low * esize;
        st = stage ? stream_set_join(set) : LS_ENOMEM;
        if (st == LS_OK) st = set->device->copy_out(set->stream[STREAM_COMPUTE].stream, stage, (const char *)v->data + low * esize, bytes);
        if (st == LS_OK) st = set->device->stream_sync(set->stream[STREAM_COMPUTE].stream);
    }
    *found = st == LS_OK && find_in_view(&staged, &out->element, &out->nan);
    mem_free(stage);
    return st;
}

static ls_status find_operand(const ls_program *p, const ls_value *id, const struct view *view, int n, struct found *out, bool *found)
{
    *found = false;
    for (int k = 0; k < n && !*found; k++)
        if (id[k].id) {
            LS_TRY(find_element(p, &view[k], out, found));
            out->value = id[k];
        }
    return LS_OK;
}

ls_status check_outputs(const ls_program *p, const struct instruction *i, int number)
{
    struct found f;
    bool found;

    LS_TRY(find_operand(p, i->out, instruction_bound(p, i)->out, i->nout, &f, &found));
    if (!found) return LS_OK;
    return ls_fail(LS_EINVAL, "instruction %d, %s of '%s' (%s, %s): element %zu is %s", number, program_op_name(i->op),
                   p->values[f.value.id].name, phase_name(i->phase), ls_dtype_name(p->values[f.value.id].dtype), f.element,
                   f.nan ? "NaN" : "infinite");
}

/* ---- a run that checks ---- */

void program_look(ls_program *p, struct finding *f) { p->run.finding = f; }

static void non_finite_note(struct found *to, struct found f, const ls_program *p, const struct instruction *i, int number)
{
    if (to->program) return;
    f.program = p;
    f.instruction = i;
    f.number = number;
    f.tag = p->run.tag[p->run.slot];
    *to = f;
}

ls_status non_finite_before(const ls_program *p, const struct instruction *i, int number)
{
    struct finding *to = p->run.finding;
    struct found f = { .given = true };
    bool found;

    to->clean = true;
    if (to->source.program || instruction_is_wait(i)) return LS_OK;
    LS_TRY(find_operand(p, i->in, instruction_bound(p, i)->in, i->nin, &f, &found));
    if (!found) return LS_OK;
    to->clean = false;
    non_finite_note(p->values[p->values[f.value.id].root].role == LS_ROLE_PARAMETER ? &to->source : &to->received, f, p, i, number);
    return LS_OK;
}

ls_status non_finite_after(const ls_program *p, const struct instruction *i, int number)
{
    struct finding *to = p->run.finding;
    struct found f = { 0 };
    bool found;

    if (to->source.program || !to->clean || instruction_is_begun(i)) return LS_OK;
    LS_TRY(find_operand(p, i->out, instruction_bound(p, i)->out, i->nout, &f, &found));
    if (found) non_finite_note(instruction_communicates(i) ? &to->received : &to->source, f, p, i, number);
    return LS_OK;
}

/* ---- names ---- */

/* The parameter in whose value or gradient this element of v is, and its position there; -1: none. */
static int parameter_at(const ls_program *p, ls_value v, size_t element, size_t *within)
{
    const struct value *x = &p->values[v.id], *root = &p->values[x->root];
    int unit = root->unit >= 0 ? root->unit : root->flat - 1, k = 0;
    const struct store_unit *g = unit >= 0 ? store_unit_at(p->store, unit) : NULL;
    size_t at = (size_t)x->offset + element;

    *within = at;
    if (!g) return root->param;
    if (value_count(root) < g->total) /* this rank's shard */
        at += g->begin;
    while (k + 1 < g->n && at >= g->at[k + 1]) k++;
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

int value_parameter(const ls_program *p, ls_value v, bool gradient, size_t *within)
{
    return v.id && (gradient ? is_gradient(p, v) : is_weight(p, v)) ? parameter_at(p, v, 0, within) : -1;
}

/* The name of the parameter that an operand of i is (a part of). */
static const char *weight_of(const ls_program *p, const struct instruction *i)
{
    size_t within;

    for (int k = 0; k < i->nin; k++) {
        int param = value_parameter(p, i->in[k], false, &within);

        if (param >= 0 && !instruction_is_begun(i)) return ls_store_name(p->store, (size_t)param);
    }
    return NULL;
}

/* Prefers the gradient's or parameter's own name. */
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

    put_what(f, out, FOUND_TEXT);
    size_t at = strlen(out);
    at += (size_t)snprintf(out + at, FOUND_TEXT - at, " is %s%s (%s", f->nan ? "NaN" : "infinite", f->given ? " already" : "",
                           instruction_name(i));
    if (weight && !f->given && at < FOUND_TEXT) at += (size_t)snprintf(out + at, FOUND_TEXT - at, " of '%.80s'", weight);
    if (at < FOUND_TEXT)
        snprintf(out + at, FOUND_TEXT - at, ", %s%s%.60s%s, instruction %d)", phase_name(i->phase), block[0] ? ", block '" : "", block,
                 block[0] ? "'" : "", f->number);
    return out;
}
