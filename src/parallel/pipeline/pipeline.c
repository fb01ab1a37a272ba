/* pipeline.c - opening a pipeline: balances stages, leaves out parameters of other ranks, builds a program per chunk, plan and buffers. */
#include "parallel/pipeline/pipeline.h"

#include <string.h>
#include "base/mem.h"
#include "parallel/layout.h"
#include "parallel/pipeline/stage.h"
#include "runtime/store.h"

static const char *const end_names[ENDS] = { "stage.in", "stage.out", "stage.din", "stage.dout" };

static int stages_of(const ls_pipeline *l) { return l->schedule.stages * l->schedule.chunks; }

/* ---- stage boundaries ---- */

static ls_stage stage_at(const ls_pipeline *l, int stage)
{
    return (ls_stage){ stage, stages_of(l), l->begin[stage], l->begin[stage + 1] };
}

/* Boundaries that the caller gives are checked like those of a layout. */
static ls_status take_begin(ls_pipeline *l, const int *given, int blocks)
{
    memcpy(l->begin, given, ((size_t)stages_of(l) + 1) * sizeof *given);
    for (int s = 0; s < stages_of(l); s++) {
        ls_stage stage = stage_at(l, s);

        LS_TRY(layout_check_stage(&stage, blocks));
    }
    return LS_OK;
}

static ls_status choose_begin(ls_pipeline *l, const ls_program *model, const int *given)
{
    int blocks = model->nblocks - 1;
    ls_layout layout = ls_layout_default();
    double *cost, before, after;

    layout.pp = l->schedule.stages;
    layout.vpp = l->schedule.chunks;
    if (given) return take_begin(l, given, blocks);
    LS_TRY(layout_check_stages((size_t)blocks, &layout));
    cost = mem_array(MEM_OTHER, (size_t)blocks, sizeof *cost);
    if (!cost) return LS_ENOMEM;
    stage_costs(model, cost, &before, &after);
    ls_status st = ls_pipeline_balance(blocks, cost, before, after, stages_of(l), l->begin);
    mem_free(cost);
    return st;
}

/* ---- assigning parameters to ranks ---- */

/* Handles a parameter that the first and the last stage read (tied embeddings) on two ranks: each has a partial sum of its gradient; the
 * first owns it. */
static ls_status share(ls_store *store, size_t i, int first, int second, int stages, bool second_here)
{
    if (first != 0 || second != stages - 1)
        return ls_fail(LS_EINVAL,
                       "pipeline: parameter '%s' is read by stages %d and %d of %d on different ranks; only the first and the last stage "
                       "can share one",
                       ls_store_name(store, i), first, second, stages);
    store_placement(store, i)[LS_AXIS_PP].partial_gradient = 1;
    if (second_here) store_set_owner(store, i, false);
    return LS_OK;
}

/* first[], last[]: the first and the last stage that reads each parameter; -1: none. */
static ls_status settle_parameters(ls_pipeline *l, ls_store *store, const int *first, const int *last, const bool *here)
{
    int chunk;

    for (size_t i = 0; i < ls_store_count(store); i++) {
        if (first[i] < 0) continue; /* read only by another program */
        if (!here[i] && store_is_here(store, i) && store_unit_of(store, i) < 0 && !store_is_allocated(store, i, STORE_VALUE, NULL))
            store_leave_out(store, i);
        if (here[i] && !store_is_here(store, i))
            return ls_fail(LS_EINVAL,
                           "pipeline: stages of this rank read parameter '%s', which another pipeline of the store placed on another rank",
                           ls_store_name(store, i));
        if (first[i] != last[i] && ls_pipeline_rank(&l->schedule, first[i], &chunk) == ls_pipeline_rank(&l->schedule, last[i], &chunk))
            store_set_joint(store, i);
        else if (first[i] != last[i])
            LS_TRY(share(store, i, first[i], last[i], stages_of(l), ls_pipeline_rank(&l->schedule, last[i], &chunk) == l->rank));
    }
    return LS_OK;
}

static ls_status look_at_stages(ls_pipeline *l, ls_program *model, bool *reads, bool *here, int *first, int *last)
{
    size_t n = ls_store_count(model->store);

    for (size_t i = 0; i < n; i++) first[i] = last[i] = -1;
    for (int s = 0; s < stages_of(l); s++) {
        ls_stage stage = stage_at(l, s);
        int chunk;
        bool mine = ls_pipeline_rank(&l->schedule, s, &chunk) == l->rank;

        memset(reads, 0, n * sizeof *reads);
        LS_TRY(stage_reads(model, &stage, reads));
        for (size_t i = 0; i < n; i++)
            if (reads[i]) {
                first[i] = first[i] < 0 ? s : first[i];
                last[i] = s;
                here[i] = here[i] || mine;
            }
    }
    return settle_parameters(l, model->store, first, last, here);
}

static ls_status divide_parameters(ls_pipeline *l, ls_program *model)
{
    size_t n = ls_store_count(model->store) + 1;
    bool *reads = mem_array(MEM_OTHER, n, sizeof *reads), *here = mem_array(MEM_OTHER, n, sizeof *here);
    int *first = mem_array(MEM_OTHER, n, sizeof *first), *last = mem_array(MEM_OTHER, n, sizeof *last);
    ls_status st = reads && here && first && last ? look_at_stages(l, model, reads, here, first, last) : LS_ENOMEM;

    mem_free(reads);
    mem_free(here);
    mem_free(first);
    mem_free(last);
    return st;
}

/* ---- programs ---- */

static ls_status pipeline_build(ls_store *store, const ls_pipeline_options *o, const ls_stage *stage, ls_program **out)
{
    ls_program *p;

    LS_TRY(ls_program_new(store, &p));
    ls_status st = o->build(o->ctx, p, stage);
    if (st == LS_OK) st = ls_program_status(p);
    if (st < 0)
        ls_program_release(&p);
    else
        *out = p;
    return st;
}

/* Builds the complete model, never compiled, to find what its parts cost and read. */
static ls_status pipeline_divide(ls_pipeline *l, ls_store *store, const ls_pipeline_options *o)
{
    ls_program *model;

    LS_TRY(pipeline_build(store, o, &(ls_stage){ 0, 1, 0, 0 }, &model));
    ls_status st = choose_begin(l, model, o->begin);
    if (st == LS_OK && stages_of(l) > 1) st = divide_parameters(l, model);
    ls_program_release(&model);
    return st;
}

/* Partitions and compiles without allocating: the parameters of all chunks must be known before the store allocates any. */
static ls_status compile_chunk(ls_pipeline *l, ls_store *store, const ls_pipeline_options *o, int chunk)
{
    struct chunk *c = &l->chunk[chunk];
    ls_compile_options compile = o->compile;

    c->stage = stage_at(l, ls_pipeline_stage(&l->schedule, l->rank, chunk));
    LS_TRY(pipeline_build(store, o, &c->stage, &c->program));
    if (c->program->builder.backward != (bool)l->schedule.backward)
        return ls_fail(LS_EINVAL, "pipeline: schedule '%s' has %s, but the programs have %s", l->schedule.name,
                       l->schedule.backward ? "backwards" : "only forwards", c->program->builder.backward ? "a backward" : "no backward");
    compile.slots = l->plan.slots[chunk];
    compile.split_backward = l->schedule.split;
    compile.fuse_loss = o->compile.fuse_loss && c->stage.index == c->stage.stages - 1;
    compile.plan_only = 1;
    return ls_program_compile(c->program, &compile);
}

static ls_status find_end(struct chunk *c, enum end e, int slots, bool runnable)
{
    ls_value v = program_find(c->program, end_names[e]);
    struct chunk_end *x = &c->end[e];

    if (!v.id) return LS_OK;
    x->count = value_count(program_value(c->program, v));
    x->type = program_value(c->program, v)->dtype;
    x->data = mem_array(MEM_OTHER, (size_t)slots, sizeof *x->data);
    x->work = mem_array(MEM_OTHER, (size_t)slots, sizeof *x->work);
    x->message = mem_array(MEM_OTHER, (size_t)slots, sizeof(struct device_event *));
    if (!x->data || !x->work || !x->message) return LS_ENOMEM;
    for (int s = 0; runnable && s < slots; s++) LS_TRY(store_device(c->program->store)->event_new(&x->message[s]));
    for (int s = 0; runnable && s < slots; s++) {
        LS_TRY(ls_program_select(c->program, s));
        x->data[s] = program_data(c->program, v);
    }
    return LS_OK;
}

static ls_status bind_chunk(ls_pipeline *l, int chunk)
{
    struct chunk *c = &l->chunk[chunk];

    if (l->runnable) LS_TRY(program_bind(c->program));
    for (int e = 0; e < ENDS; e++) LS_TRY(find_end(c, (enum end)e, l->plan.slots[chunk], l->runnable));
    return l->runnable ? ls_program_select(c->program, 0) : LS_OK;
}

/* ---- open and close ---- */

static ls_status pipeline_check(const ls_mesh *mesh, const ls_pipeline_options *o)
{
    LS_TRY(ls_pipeline_schedule_check(o->schedule));
    if (o->schedule->stages != ls_mesh_size(mesh, LS_GROUP_PP))
        return ls_fail(LS_EINVAL, "pipeline: the schedule has %d stages, but the mesh has pp %d", o->schedule->stages,
                       ls_mesh_size(mesh, LS_GROUP_PP));
    return LS_OK;
}

/* The streams of the messages. While one of them waits for a peer, the driver could wait for it to make another. */
static ls_status open_streams(ls_pipeline *l)
{
    for (int k = 0; k < l->plan.n; k++) {
        const struct plan_step *s = &l->plan.step[k];
        int peer = s->receive ? s->from : s->to, index;

        if (peer < 0) continue;
        LS_TRY(stream_set_find(
            l->streams, stream_key_of(l->comm[s->action.kind], s->receive ? LS_COLLECTIVE_RECV : LS_COLLECTIVE_SEND, peer), true, &index));
    }
    return LS_OK;
}

static ls_status open_all(ls_pipeline *l, ls_store *store, const ls_pipeline_options *o)
{
    l->chunk = mem_array(MEM_OTHER, (size_t)l->schedule.chunks, sizeof *l->chunk);
    l->begin = mem_array(MEM_OTHER, (size_t)stages_of(l) + 1, sizeof *l->begin);
    if (!l->chunk || !l->begin) return LS_ENOMEM;
    LS_TRY(pipeline_plan_make(o->schedule, l->rank, &l->plan));
    LS_TRY(pipeline_divide(l, store, o));
    for (int c = 0; c < l->schedule.chunks; c++) LS_TRY(compile_chunk(l, store, o, c));
    for (int c = 0; c < l->schedule.chunks; c++) LS_TRY(bind_chunk(l, c));
    return l->runnable && !l->streams->device->immediate ? open_streams(l) : LS_OK;
}

ls_status ls_pipeline_open(ls_store *store, const ls_mesh *mesh, const ls_pipeline_options *o, ls_pipeline **out)
{
    ls_pipeline *l;

    LS_TRY(pipeline_check(mesh, o));
    l = mem_zalloc(MEM_OTHER, sizeof *l);
    if (!l) return LS_ENOMEM;
    l->schedule = *o->schedule;
    l->comm[0] = ls_mesh_comm(mesh, LS_GROUP_PP);
    l->comm[1] = ls_mesh_comm(mesh, LS_GROUP_PP_BACK);
    l->world = ls_mesh_comm(mesh, LS_GROUP_WORLD);
    l->streams = store_streams(store);
    l->rank = ls_mesh_index(mesh, LS_GROUP_PP);
    l->runnable = !o->compile.plan_only;
    l->fused = o->compile.fuse_loss && l->schedule.backward;
    ls_status st = open_all(l, store, o);
    if (st < 0)
        ls_pipeline_close(&l);
    else
        *out = l;
    return st;
}

void ls_pipeline_close(ls_pipeline **lp)
{
    ls_pipeline *l = lp ? *lp : NULL;

    if (!l) return;
    for (int c = 0; l->chunk && c < l->schedule.chunks; c++) {
        for (int e = 0; e < ENDS; e++) {
            struct chunk_end *x = &l->chunk[c].end[e];

            for (int s = 0; x->message && s < l->plan.slots[c]; s++) l->streams->device->event_free(x->message[s]);
            mem_free(x->data);
            mem_free(x->work);
            mem_free(x->message);
        }
        ls_program_release(&l->chunk[c].program);
    }
    pipeline_plan_free(&l->plan);
    mem_free(l->chunk);
    mem_free(l->begin);
    mem_free(l);
    *lp = NULL;
}

/* ---- queries ---- */

int ls_pipeline_chunks(const ls_pipeline *l) { return l->schedule.chunks; }
ls_program *ls_pipeline_program(const ls_pipeline *l, int chunk) { return l->chunk[chunk].program; }
ls_stage ls_pipeline_stage_of(const ls_pipeline *l, int chunk) { return l->chunk[chunk].stage; }
const int *ls_pipeline_begin(const ls_pipeline *l) { return l->begin; }
ls_pipeline_spent ls_pipeline_last_times(const ls_pipeline *l) { return l->spent; }

size_t ls_pipeline_bytes(const ls_pipeline *l, size_t *messages)
{
    size_t bytes = 0, n = 0;

    for (int k = 0; k < l->plan.n; k++) {
        const struct plan_step *s = &l->plan.step[k];
        const struct chunk_end *e = &l->chunk[s->action.chunk].end[s->action.kind == LS_ACTION_FORWARD ? END_OUT : END_DIN];

        if (s->receive || s->to < 0) continue;
        bytes += e->count * ls_dtype_bytes(e->type);
        n++;
    }
    if (messages) *messages = n;
    return bytes;
}
