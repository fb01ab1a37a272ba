/* fault_values.c - debug.non_finite: a value that is NaN on one rank, in one micro-batch of a step. */
#include "train/faults/fault_kinds.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"
#include "runtime/non_finite.h"
#include "runtime/store.h"
#include "train/plan/plan.h"
#include "train/run/step.h"

struct value_fault fault_value(const struct config *c)
{
    struct value_fault f = { 0 };
    int64_t *number[] = { &f.step, &f.rank, &f.micro };
    const char *at = c->debug.non_finite;

    for (size_t i = 0; i < COUNT_OF(number); i++) {
        size_t length = strcspn(at, ":");
        char word[24] = "";

        if (length < sizeof word) memcpy(word, at, length);
        if (at[length] != ':' || !text_read_int(word, number[i])) return f;
        at += length + 1;
    }
    if (at[0]) f.name = at;
    return f;
}

ls_status fault_value_check(const struct config *c)
{
    struct value_fault f = fault_value(c);

    if (!c->debug.non_finite[0]) return LS_OK;
    if (!f.name || f.step < 1 || f.rank < 0 || f.rank >= MAX(c->launch.ranks, 1) || f.micro < 0 || f.micro >= c->train.accumulate)
        return ls_fail(LS_EINVAL,
                       "debug.non_finite=%s: expected STEP:RANK:MICRO:NAME with STEP from 1, RANK below launch.ranks=%" PRId64
                       ", MICRO below train.accumulate=%" PRId64,
                       c->debug.non_finite, c->launch.ranks, c->train.accumulate);
    return LS_OK;
}

ls_status faults_check_rank(const struct config *c)
{
    struct value_fault fault = fault_value(c);
    struct task_model model;
    struct plan_bytes bytes;
    struct plan_job job;
    ls_layout layout;

    if (!fault.name) return LS_OK;
    LS_TRY(task_model_of(c, 0, &model));
    LS_TRY(plan_of_config(c, &model, &job, &layout));
    return plan_of_rank(&job, &layout, (int)fault.rank, &bytes);
}

/* ---- in a program ---- */

/* True if v is NAME.grad or parameter NAME, as far as this rank computes it. */
static bool fault_values_is_named(const ls_program *p, ls_value v, const char *name, bool gradient)
{
    size_t within, length = strlen(name) - (gradient ? 5 : 0);
    int param = value_parameter(p, v, gradient, &within);
    const char *its = param >= 0 ? ls_store_name(p->store, (size_t)param) : "";

    return param >= 0 && within == 0 && strlen(its) == length && strncmp(its, name, length) == 0 &&
           value_count(&p->values[v.id]) <= store_local_count(p->store, (size_t)param);
}

/* The output of i that becomes NaN; -1: none. */
static int named_output(const ls_program *p, const struct instruction *i, const char *name)
{
    size_t length = strlen(name);
    bool gradient = length > 5 && strcmp(name + length - 5, ".grad") == 0;

    if (op_run_kind(i->op) != RUN_KERNEL || i->nin == 0 || !i->nout || i->phase == LS_PHASE_OPTIMIZER || i->phase == LS_PHASE_COMMUNICATE)
        return -1;
    for (int k = 0; gradient && k < i->nout; k++)
        if (fault_values_is_named(p, i->out[k], name, true)) return k;
    for (int k = 0; !gradient && i->phase == LS_PHASE_FORWARD && k < i->nin; k++)
        if (fault_values_is_named(p, i->in[k], name, false)) return 0;
    return -1;
}

static bool has_output(const ls_program *p, const char *name)
{
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++)
            if (named_output(p, &p->list[s].at[n], name) >= 0) return true;
    return false;
}

/* Sets an element of the first output that has the name to NaN, once. */
static ls_status value_nan(const void *name, ls_program *p, const struct instruction *i)
{
    const struct device *d = store_device(p->store);
    const struct instruction_run *r = instruction_run(p, i);
    static const double nan = NAN;
    int k = named_output(p, i, name);
    const struct view *v = k >= 0 ? &r->call->out[k] : NULL;

    if (!v || !view_given(v) || !ls_dtype_is_float(v->dtype)) return LS_OK;
    size_t bytes = ls_dtype_bytes(v->dtype);
    double raw;

    ls_convert(&raw, v->dtype, &nan, LS_F64, 1);
    LS_TRY(d->copy_in(r->call->stream, (char *)v->data + view_offset(v, view_count(v) / 2) * (ptrdiff_t)bytes, &raw, bytes));
    p->run.fault.fn = NULL;
    LS_TRY(d->stream_sync(r->call->stream));
    return r->end ? d->event_record(r->end, r->call->stream) : LS_OK;
}

#define VALUE_FN(id, name, what, when, arm) arm /* of the only row */

void fault_micro_batch(const struct value_fault *f, int rank, ls_program *p, uint64_t step, int micro)
{
    if (!f->name || f->rank != rank) return;
    if ((uint64_t)f->step == step && f->micro == micro)
        p->run.fault = (struct run_fault){ FAULT_VALUE_MAP(VALUE_FN), f->name, p->run.slot };
    else if (p->run.fault.slot == p->run.slot)
        p->run.fault.fn = NULL;
}

/* ---- in a step ---- */

enum { NEAREST = 3 };

/* Finds the indices of the store's parameters whose names are most similar to `name`, the most similar first; returns how many. A name that
 * contains it has distance 0. */
static size_t find_nearest(const ls_store *store, const char *name, size_t out[NEAREST])
{
    size_t distances[NEAREST], n = 0;

    for (size_t i = 0; i < ls_store_count(store); i++) {
        const char *other = ls_store_name(store, i);
        size_t distance = strstr(other, name) ? 0 : text_distance(name, other), at = n;

        while (at > 0 && distance < distances[at - 1]) at--;
        if (at == NEAREST) continue;
        n = MIN(n + 1, (size_t)NEAREST);
        for (size_t k = n - 1; k > at; k--) {
            distances[k] = distances[k - 1];
            out[k] = out[k - 1];
        }
        distances[at] = distance;
        out[at] = i;
    }
    return n;
}

static ls_status fail_value(const struct step *s)
{
    size_t length = strlen(s->fault.name), near[NEAREST];
    bool grad = length > 5 && strcmp(s->fault.name + length - 5, ".grad") == 0;
    struct text name = { 0 }, names = { 0 };

    text_put(&name, "%.*s", (int)(grad ? length - 5 : length), s->fault.name);
    ls_status st = text_status(&name);
    size_t n = st == LS_OK ? find_nearest(s->store, name.data, near) : 0;
    for (size_t i = 0; i < n; i++) text_put(&names, "%s%s", i ? ", " : "", ls_store_name(s->store, near[i]));
    if (st == LS_OK) st = text_status(&names);
    bool known = st == LS_OK && n && strcmp(ls_store_name(s->store, near[0]), name.data) == 0;
    if (known)
        st = ls_fail(LS_EINVAL, "debug.non_finite: rank %d runs no op that reads or writes '%s'%s", s->ranks.rank, s->fault.name,
                     s->pipeline ? "; another stage of the pipeline does" : "");
    else if (st == LS_OK)
        st = ls_fail(LS_EINVAL, "debug.non_finite: there is no parameter '%s'; the nearest names are %s", name.data, names.data);
    text_free(&name);
    text_free(&names);
    return st;
}

ls_status fault_step_opened(const struct step *s)
{
    bool possible = !s->fault.name || s->fault.rank != s->ranks.rank;
    ls_program *p;

    for (int i = 0; !possible && (p = step_program(s, i)); i++) possible = has_output(p, s->fault.name);
    return possible ? LS_OK : fail_value(s);
}
