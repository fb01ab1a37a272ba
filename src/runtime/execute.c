/* execute.c - the executor: assigns bytes to values, then walks the list and calls kernels.
 *
 * bind_pass() allocates the arenas and resolves every pointer once. A run allocates nothing, except that the second one
 * records graphs (graphs.h), and computes no shapes.
 */
#include "ir/op_info.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/pulse.h"
#include "runtime/arena_bytes.h"
#include "runtime/exchange.h"
#include "runtime/graphs.h"
#include "runtime/hooks.h"
#include "runtime/multi_launch.h"
#include "runtime/non_finite.h"
#include "runtime/store.h"
#include "passes/streams.h"

static const struct device *device_of(const ls_program *p) { return store_device(p->store); }

static struct bytes_home home_of(const ls_program *p, enum arena a)
{
    const struct device *device = store_device(p->store);

    if (a == ARENA_COMMUNICATION) return (struct bytes_home){ device, p->arena_comm, MEM_COMMUNICATION };
    return (struct bytes_home){ device, NULL, MEM_ACTIVATIONS };
}

static size_t arena_size(const ls_program *p, enum arena a) { return p->arena_bytes[a] * (size_t)(a == ARENA_SLOT ? program_slots(p) : 1); }

/* ---- what is kept of each instruction ---- */

struct instruction_run *instruction_run(const ls_program *p, const struct instruction *i)
{
    struct instruction_run *first = p->run.instruction;

    for (int s = 0; s < SEGMENTS; first += p->list[s++].n) {
        uintptr_t from = (uintptr_t)p->list[s].at, bytes = (uintptr_t)i - from;

        if (bytes < (size_t)p->list[s].n * sizeof *i) return first + bytes / sizeof *i;
    }
    ASSERT(!"an instruction of the program");
    return NULL;
}

struct call *instruction_bound(const ls_program *p, const struct instruction *i) { return instruction_run(p, i)->call; }

/* *calls: of those that have one: all but views. Returns how many instructions there are. */
static size_t count_instructions(const ls_program *p, size_t *calls)
{
    size_t all = 0;

    *calls = 0;
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++, all++) *calls += !instruction_is_view(&p->list[s].at[n]);
    return all;
}

ls_status runs_reserve(ls_program *p)
{
    size_t calls, all = count_instructions(p, &calls), bytes = all * sizeof(struct instruction_run) + calls * sizeof(struct call);

    LS_TRY(mem_take(MEM_OTHER, bytes));
    p->run.reserved = bytes;
    return LS_OK;
}

static void runs_unreserve(ls_program *p)
{
    if (p->run.reserved) mem_give(MEM_OTHER, p->run.reserved);
    p->run.reserved = 0;
}

static ls_status runs_allocate(ls_program *p)
{
    size_t calls, all = count_instructions(p, &calls);
    struct instruction_run *r;
    struct call *c;

    runs_unreserve(p);
    r = p->run.instruction = mem_array(MEM_OTHER, all, sizeof *r);
    c = p->run.calls = mem_array(MEM_OTHER, calls, sizeof *c);
    if (!r || !c) return LS_ENOMEM;
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++, r++) {
            if (instruction_is_view(&p->list[s].at[n])) continue;
            r->call = c++;
            instruction_call(p, &p->list[s].at[n], r->call);
        }
    return LS_OK;
}

static void runs_free(ls_program *p)
{
    struct instruction_run *r = p->run.instruction;

    runs_unreserve(p);
    for (int s = 0; r && s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++, r++) {
            const struct kernel *k = p->list[s].at[n].kernel;

            if (k && r->call && r->call->state && k->release) k->release(r->call);
            shuffle_unbind(p, r);
        }
    mem_free(p->run.instruction);
    p->run.instruction = NULL;
    mem_free(p->run.calls);
    p->run.calls = NULL;
}

void unbind(ls_program *p)
{
    device_of(p)->sync(); /* the result does not matter here */
    exchange_drop_all(p);
    store_offload_drop(p->store);
    graphs_unbind(p);
    multi_unbind(p);
    streams_unbind(p);
    staged_release(p);
    mem_free(p->run.work);
    p->run.work = NULL;
    mem_free(p->run.last_run);
    p->run.last_run = NULL;
    mem_free(p->run.tag);
    p->run.tag = NULL;
    mem_free(p->run.slot_operands);
    p->run.slot_operands = NULL;
    p->run.nslot_operands = p->run.slot = 0;
    runs_free(p);
    for (int a = 0; a < ARENAS; a++) {
        struct bytes_home home = home_of(p, (enum arena)a);

        bytes_free(&home, p->run.block[a], arena_size(p, (enum arena)a));
        p->run.block[a] = p->run.arena[a] = NULL;
    }
}

static void *unit_data(const ls_program *p, const struct value *v)
{
    enum store_kind kind = v->role == LS_ROLE_PARAMETER ? STORE_VALUE : v->role == LS_ROLE_GRADIENT ? STORE_GRAD : STORE_STATE;

    return store_unit_data(p->store, v->unit, kind, v->state);
}

static char *slot_base(const ls_program *p) { return (char *)p->run.arena[ARENA_SLOT] + (size_t)p->run.slot * p->arena_bytes[ARENA_SLOT]; }

/* The first byte of the value that owns v's bytes. */
static void *root_data(const ls_program *p, int v)
{
    const struct value *root = &p->values[p->values[v].root];

    if (root->unit >= 0) return unit_data(p, root);
    switch (root->role) {
    case LS_ROLE_PARAMETER: return ls_tensor_data(ls_store_value(p->store, (size_t)root->param));
    case LS_ROLE_GRADIENT: return ls_tensor_data(ls_store_grad(p->store, (size_t)root->param));
    case LS_ROLE_OPTIMIZER: return ls_tensor_data(ls_store_state(p->store, (size_t)root->param, root->state));
    case LS_ROLE_BOUND: return ls_tensor_data(root->tensor);
    default: return (root->arena == ARENA_SLOT ? slot_base(p) : (char *)p->run.arena[root->arena]) + root->at;
    }
}

static bool in_slot(const ls_program *p, ls_value x) { return p->values[p->values[x.id].root].arena == ARENA_SLOT; }

/* Records the operand if it is in a slot. */
static void follow_slot(ls_program *p, ls_value x, void **data)
{
    if (in_slot(p, x))
        p->run.slot_operands[p->run.nslot_operands++] = (struct slot_operand){ data, (size_t)((char *)*data - slot_base(p)) };
}

void *program_data(const ls_program *p, ls_value v)
{
    const struct value *x = &p->values[v.id];

    return (char *)root_data(p, x->root) + x->offset * (ptrdiff_t)ls_dtype_bytes(x->dtype);
}

static ls_status bind_instruction(ls_program *p, const struct instruction *i)
{
    struct call *c = instruction_bound(p, i);

    for (int k = 0; k < i->nin; k++)
        if (i->in[k].id) c->in[k] = value_view(&p->values[i->in[k].id], root_data(p, i->in[k].id));
    for (int k = 0; k < i->nout; k++)
        if (i->out[k].id) c->out[k] = value_view(&p->values[i->out[k].id], root_data(p, i->out[k].id));
    for (int k = 0; k < i->nin; k++) follow_slot(p, i->in[k], &c->in[k].data);
    for (int k = 0; k < i->nout; k++) follow_slot(p, i->out[k], &c->out[k].data);
    c->scratch = i->scratch_bytes ? (char *)p->run.arena[ARENA_ACTIVATIONS] + i->scratch_at : NULL;
    pulse();
    return i->kernel && i->kernel->prepare ? i->kernel->prepare(c) : LS_OK;
}

/* Checks that a parameter which is read directly is complete on this rank, and that a unit holds the kind that is read. */
static ls_status check_held(const ls_program *p, ls_value x)
{
    static const char *const what[] = { [LS_ROLE_PARAMETER] = "value", [LS_ROLE_GRADIENT] = "gradient", [LS_ROLE_OPTIMIZER] = "state" };
    const struct value *v = x.id ? &p->values[p->values[x.id].root] : NULL;
    const ls_tensor *t;

    if (v && v->unit >= 0 && !unit_data(p, v))
        return ls_fail(LS_EINVAL, "'%s': all parameters of the unit are frozen, so it does not exist", v->name);
    if (!v || v->param < 0 || v->role == LS_ROLE_ACTIVATION) return LS_OK;
    t = v->role == LS_ROLE_PARAMETER  ? ls_store_value(p->store, (size_t)v->param)
        : v->role == LS_ROLE_GRADIENT ? ls_store_grad(p->store, (size_t)v->param)
                                      : ls_store_state(p->store, (size_t)v->param, v->state);
    if (!t || ls_tensor_count(t) != value_count(v))
        return ls_fail(
            LS_EINVAL,
            "%s of parameter '%s' is sharded or lives on another rank; compile this program with the layout that created the store",
            what[v->role], ls_store_name(p->store, (size_t)v->param));
    return LS_OK;
}

static size_t count_slot_operands(const ls_program *p)
{
    size_t count = 0;

    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            const struct instruction *i = &p->list[s].at[n];

            for (int k = 0; !instruction_is_view(i) && k < i->nin; k++) count += in_slot(p, i->in[k]);
            for (int k = 0; !instruction_is_view(i) && k < i->nout; k++) count += in_slot(p, i->out[k]);
        }
    return count;
}

static ls_status execute_allocate(ls_program *p)
{
    LS_TRY(ls_store_allocate(p->store));
    for (int a = 0; a < ARENAS; a++) {
        struct bytes_home home = home_of(p, (enum arena)a);

        if (a != ARENA_ACTIVATIONS && !p->arena_bytes[a]) continue;
        p->run.block[a] = bytes_alloc(&home, arena_size(p, (enum arena)a));
        if (!p->run.block[a]) return device_no_memory(home.device);
        p->run.arena[a] = p->run.block[a];
        if (a == ARENA_COMMUNICATION) p->run.arena[a] = (char *)p->run.block[a] + (0 - (uintptr_t)p->run.block[a]) % p->comm_align;
    }
    p->run.work = mem_array(MEM_OTHER, (size_t)p->exchanges, sizeof *p->run.work);
    p->run.last_run = mem_array(MEM_OTHER, (size_t)program_slots(p), sizeof *p->run.last_run);
    p->run.tag = mem_array(MEM_OTHER, (size_t)program_slots(p), sizeof *p->run.tag);
    p->run.slot_operands = mem_array(MEM_OTHER, count_slot_operands(p), sizeof *p->run.slot_operands);
    return p->run.work && p->run.last_run && p->run.tag && p->run.slot_operands ? LS_OK : LS_ENOMEM;
}

ls_status bind_pass(ls_program *p)
{
    LS_TRY(execute_allocate(p));
    LS_TRY(runs_allocate(p));
    LS_TRY(streams_bind(p));
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            const struct instruction *i = &p->list[s].at[n];

            if (instruction_is_view(i)) continue;
            p->wants_last = p->wants_last || ((s == SEG_BACKWARD || s == SEG_WEIGHTS) && i->when == LS_WHEN_LAST);
            for (int k = 0; k < i->nin; k++) LS_TRY(check_held(p, i->in[k]));
            for (int k = 0; k < i->nout; k++) LS_TRY(check_held(p, i->out[k]));
            LS_TRY(bind_instruction(p, i));
            LS_TRY(shuffle_bind(p, i));
        }
    LS_TRY(multi_bind(p));
    return graphs_bind(p);
}

/* ---- running ---- */

/* A non-finite gradient would spoil the weights; with clipping, all of them. */
static ls_status check_norm(const ls_program *p, const struct instruction *i)
{
    const struct call *c = instruction_bound(p, i);
    const struct view *v = &c->out[0];
    double norm, raw;

    LS_TRY(device_of(p)->copy_out(c->stream, &raw, v->data, ls_dtype_bytes(v->dtype)));
    LS_TRY(device_of(p)->stream_sync(c->stream));
    ls_convert(&norm, LS_F64, &raw, v->dtype, 1);
    return isfinite(norm) ? LS_OK
                          : ls_fail(LS_EINVAL, "the norm of the gradient is %s; %s", isnan(norm) ? "NaN" : "infinite",
                                    p->update_in_backward ? "only parameters whose gradients came before it were updated"
                                                          : "no parameter was updated");
}

/* Whether i is an update that must not run: in a backward with a gradient that is not finite, or in one that looks for it. */
static bool is_held_back(const ls_program *p, const struct instruction *i)
{
    enum optimizer_stage stage = op_info(i->op)->stage;

    return (stage == OPTIMIZER_NORMS || stage == OPTIMIZER_UPDATE) && (p->run.no_update || p->run.finding);
}

/* Updates in backward run on the cpu alone, where the sum can be read at once. */
static void check_squares(ls_program *p, const struct instruction *i)
{
    if (!p->update_in_backward || op_info(i->op)->stage != OPTIMIZER_SQUARES) return;
    p->run.no_update = p->run.no_update || !isfinite(*(const double *)instruction_bound(p, i)->out[0].data);
}

/* The segment in which gradients become final. */
static enum segment final_segment(const ls_program *p) { return p->list[SEG_WEIGHTS].n ? SEG_WEIGHTS : SEG_BACKWARD; }

/* True if segment s can run after what has run in the slot. A backward reads what the previous forward left there, and replaces it unless
 * the program retains it. */
static bool has_before(const ls_program *p, int s, int last)
{
    bool again = p->options.retain && (last == LS_BACKWARD || last == LS_WEIGHTS);

    if (s == SEG_BACKWARD) return last == LS_FORWARD || again || !p->list[SEG_FORWARD].n;
    return s != SEG_WEIGHTS || last == LS_BACKWARD;
}

static ls_status check_order(ls_program *p, int segments)
{
    int last = p->run.last_run[p->run.slot];
    bool reduced = p->run.ran_last;

    if (segments & ~(LS_FORWARD | LS_BACKWARD | LS_WEIGHTS | LS_OPTIMIZER_STEP | LS_LAST))
        return ls_fail(LS_EINVAL,
                       "run: segments is %d; use a combination of LS_FORWARD, LS_BACKWARD, LS_WEIGHTS, LS_OPTIMIZER_STEP, LS_LAST",
                       segments);
    for (int s = 0; s < SEGMENTS; s++) {
        bool empty = !p->list[s].n;

        if (!(segments >> s & 1) || (s == SEG_WEIGHTS && !p->options.split_backward)) continue;
        if (empty && (s == SEG_BACKWARD || s == SEG_OPTIMIZER))
            return ls_fail(LS_EINVAL, "run: this program has no %s segment; create it with %s", segment_name((enum segment)s),
                           s == SEG_BACKWARD ? "ls_backward" : "ls_optimizer_append");
        if (!has_before(p, s, last))
            return ls_fail(LS_EINVAL, "run: %s needs a new %s; the previous one has been consumed%s", segment_name((enum segment)s),
                           segment_name((enum segment)(s - 1)),
                           s == SEG_BACKWARD && !p->options.retain ? "; to run it again, compile with retain" : "");
        if (s == (int)final_segment(p)) reduced = segments & LS_LAST;
        if (s == SEG_OPTIMIZER && p->wants_last && !reduced)
            return ls_fail(LS_EINVAL, "run: update after a backward without LS_LAST: gradients have not been reduced over ranks");
        last = 1 << s;
    }
    return LS_OK;
}

static ls_status run_one(ls_program *p, const struct instruction *i)
{
    struct call *c = instruction_bound(p, i);

    pulse();
    switch (op_run_kind(i->op)) {
    case RUN_KERNEL: return kernel_launch(device_of(p), i->kernel, c);
    case RUN_START: return exchange_start(p, i);
    case RUN_WAIT: return exchange_wait(p, i);
    case RUN_LOAD: return store_load(p->store, c->stream, instruction_state(i), c->out[0].data);
    case RUN_SAVE: return store_save(p->store, c->stream, instruction_state(i), c->in[0].data);
    case RUN_OFFLOAD_WAIT: return store_offload_wait(p->store, instruction_state(i));
    case RUN_SHUFFLE_COUNTS: return shuffle_run_counts(p, i);
    case RUN_SHUFFLE: return shuffle_run_rows(p, i, NULL);
    case RUN_NOTHING:
    case RUN_LOWERED: break;
    }
    ASSERT(!"an instruction that does not run");
    return LS_EINVAL;
}

/* Runs `count` instructions of the list from i on, which are one launch, or one instruction. */
static ls_status run_queued(ls_program *p, const struct instruction *i, int count)
{
    LS_TRY(streams_before(p, i));
    LS_TRY(count > 1 ? multi_launch(p, i, count) : run_one(p, i));
    return streams_after(p, &i[count - 1]);
}

/* Seconds of the host are divided evenly among the instructions of a launch. */
static void count_runs(const ls_program *p, const struct instruction *i, int count, double seconds)
{
    struct instruction_run *r = instruction_run(p, i);
    int n = 0;

    for (int k = 0; k < count; k++) n += !instruction_is_view(&i[k]);
    for (int k = 0; k < count; k++) {
        if (instruction_is_view(&i[k])) continue;
        r[k].seconds += seconds / n;
        r[k].runs++;
    }
}

static ls_status run_multi(ls_program *p, const struct instruction *i, int count)
{
    double began = base_now();

    pulse();
    LS_TRY(run_queued(p, i, count));
    count_runs(p, i, count, base_now() - began);
    return LS_OK;
}

/* Runs one instruction with its watchers and checks; *over: the run ends after it. */
static ls_status run_instruction(ls_program *p, const struct instruction *i, int number, bool *over)
{
    bool clips = op_info(i->op)->stage == OPTIMIZER_CLIP;
    double began, ended;

    if (is_held_back(p, i)) return LS_OK;
    if (p->run.finding) LS_TRY(non_finite_before(p, i, number));
    began = base_now();
    if (!device_of(p)->immediate)
        LS_TRY(run_queued(p, i, 1));
    else
        LS_TRY(run_one(p, i));
    ended = base_now();
    count_runs(p, i, 1, ended - began);
    if (p->run.watch) p->run.watch(p->run.watch_ctx, p, i, began, ended);
    if (p->run.fault.fn && p->run.fault.slot == p->run.slot) LS_TRY(p->run.fault.fn(p->run.fault.ctx, p, i));
    if (p->run.finding)
        LS_TRY(non_finite_after(p, i, number));
    else if (p->options.check_finite && !instruction_is_begun(i))
        LS_TRY(check_outputs(p, i, number));
    check_squares(p, i);
    *over = p->run.finding && clips;
    return clips && !*over ? check_norm(p, i) : LS_OK;
}

/* The position of a run. */
struct walk {
    enum segment s;
    int segments, number; /* number: of the segment's first instruction, over all segments */
    bool over;            /* the run ends here */
};

/* Instructions [begin, end) of the segment that are to run, except those that graph g takes. */
static ls_status walk_between(ls_program *p, struct walk *w, int begin, int end, const struct graph *g)
{
    for (int n = begin, count; n < end && !w->over; n += count) {
        const struct instruction *i = &p->list[w->s].at[n];

        count = 1;
        if (instruction_is_view(i) || !instruction_runs(i, w->segments) || (g && graph_takes(i, w->segments))) continue;
        count = multi_count(p, i);
        if (p->run.hooks) LS_TRY(hooks_before(p, w->s, n));
        LS_TRY(count > 1 ? run_multi(p, i, count) : run_instruction(p, i, w->number + n, &w->over));
        if (p->run.hooks) LS_TRY(hooks_after(p, w->s, n));
    }
    return LS_OK;
}

static ls_status record_graph(ls_program *p, const struct walk *w, const struct graph *g, struct device_graph **out)
{
    const struct instruction *at = p->list[w->s].at;
    struct device_stream *stream = instruction_bound(p, &at[g->begin])->stream;
    ls_status st = LS_OK, ended;

    LS_TRY(device_of(p)->graph_begin(stream));
    for (int n = g->begin, count; n < g->end && st == LS_OK; n += count) {
        count = graph_takes(&at[n], w->segments) ? multi_count(p, &at[n]) : 1;
        if (graph_takes(&at[n], w->segments)) st = run_queued(p, &at[n], count);
    }
    ended = device_of(p)->graph_end(stream, out);
    if (st == LS_OK) return ended;
    device_of(p)->graph_free(*out);
    *out = NULL;
    return st;
}

/* Seconds of the host are divided evenly among its instructions. */
static void count_graph(ls_program *p, const struct walk *w, const struct graph *g, double seconds)
{
    const struct instruction *at = p->list[w->s].at;
    struct instruction_run *r = instruction_run(p, at);

    for (int n = g->begin; n < g->end; n++) {
        if (!graph_takes(&at[n], w->segments)) continue;
        r[n].seconds += seconds / g->instructions;
        r[n].runs++;
    }
}

/* Launches g, whose second run records it first, then runs the instructions of other streams between its own. Its first run launches
 * everything one by one. */
static ls_status run_graph(ls_program *p, struct walk *w, struct graph *g)
{
    const struct instruction *first = &p->list[w->s].at[g->begin];
    struct graph_recording *r = &g->recording[p->run.slot];
    double began = base_now();

    if (!r->warm) {
        LS_TRY(walk_between(p, w, g->begin, g->end, NULL));
        r->warm = true;
        return LS_OK;
    }
    pulse();
    if (!r->graph) LS_TRY(record_graph(p, w, g, &r->graph));
    LS_TRY(device_of(p)->graph_launch(r->graph, instruction_bound(p, first)->stream));
    streams_used(p, first);
    count_graph(p, w, g, base_now() - began);
    return walk_between(p, w, g->begin, g->end, g);
}

static ls_status walk_segment(ls_program *p, struct walk *w)
{
    LS_TRY(streams_enter(p, w->s, w->segments));
    if (w->s == SEG_OPTIMIZER) LS_TRY(store_gathers_wait(p->store)); /* it writes what they read */
    p->run.last_run[p->run.slot] = 1 << w->s;
    if (w->s == final_segment(p)) p->run.ran_last = w->segments & LS_LAST;
    for (int n = 0, end; n < p->list[w->s].n && !w->over; n = end) {
        struct graph *g = graph_at(p, w->s, w->segments, n);

        for (end = g ? g->end : n + 1; !g && end < p->list[w->s].n && !graph_at(p, w->s, w->segments, end);) end++;
        LS_TRY(g ? run_graph(p, w, g) : walk_between(p, w, n, end, NULL));
    }
    return LS_OK;
}

static ls_status execute_walk(ls_program *p, int segments)
{
    struct walk w = { .segments = segments };

    if (!p->carries) LS_TRY(ls_store_wait(p->store));
    if (segments & LS_BACKWARD) p->run.no_update = false;
    if (segments & ~(LS_OPTIMIZER_STEP | LS_LAST)) /* exchanges in flight after a backward use its bytes until here */
        LS_TRY(exchange_finish_all(p));
    for (int s = 0; s < SEGMENTS; s++) {
        w.s = (enum segment)s;
        if ((segments >> s & 1) && p->list[s].n && !w.over) LS_TRY(walk_segment(p, &w));
        w.number += p->list[s].n;
    }
    return LS_OK;
}

/* When a run fails, waits for everything in flight, because the comm owns those buffers until then. The first message is kept. */
static ls_status give_up(ls_program *p, ls_status st)
{
    char message[512];

    snprintf(message, sizeof message, "%s", ls_errmsg());
    stream_set_sync(store_streams(p->store));
    exchange_drop_all(p);
    store_offload_drop(p->store);
    return ls_fail(st, "%s", message);
}

ls_status ls_program_run(ls_program *p, int segments)
{
    ls_status st;

    LS_TRY(ls_program_status(p));
    if (!p->run.runnable)
        return ls_fail(LS_EINVAL, "run: %s", p->compiled ? "the program was compiled with plan_only" : "the program is not compiled");
    LS_TRY(check_order(p, segments));
    LS_TRY(store_check_loaded(p->store));
    st = execute_walk(p, segments);
    return st < 0 ? give_up(p, st) : LS_OK;
}

ls_status ls_program_select(ls_program *p, int slot)
{
    char *base;

    if (!p->run.runnable) return ls_fail(LS_EINVAL, "select: the program is not compiled to run");
    if (slot < 0 || slot >= program_slots(p))
        return ls_fail(LS_EINVAL, "select: slot %d does not exist; the program has %d", slot, program_slots(p));
    p->run.slot = slot;
    base = slot_base(p);
    for (int k = 0; k < p->run.nslot_operands; k++) *p->run.slot_operands[k].data = base + p->run.slot_operands[k].at;
    return LS_OK;
}

int ls_program_has(const ls_program *p, const char *name)
{
    ls_value v = program_find(p, name);

    return v.id && p->compiled && p->values[p->values[v.id].root].used;
}

void program_tag(ls_program *p, int micro) { p->run.tag[p->run.slot] = micro; }

void program_watch(ls_program *p, program_watch_fn *fn, void *ctx)
{
    p->run.watch = fn;
    p->run.watch_ctx = ctx;
}
