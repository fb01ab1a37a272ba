/* execute.c - the executor: walks the list and calls kernels. A run allocates nothing, except that the second one records graphs
 * (graphs.h), and computes no shapes: bind.c has resolved every pointer.
 */
#include "ir/op_info.h"

#include <math.h>
#include <stdio.h>
#include "base/pulse.h"
#include "runtime/exchange.h"
#include "runtime/graphs.h"
#include "runtime/hooks.h"
#include "runtime/multi_launch.h"
#include "runtime/non_finite.h"
#include "runtime/store.h"
#include "passes/streams.h"

static const struct device *device_of(const ls_program *p) { return store_device(p->store); }

/* Refuses a norm that is not finite: an update would spoil the weights, with clipping all of them. */
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
                                    p->builder.update_in_backward ? "only parameters whose gradients came before it were updated"
                                                                  : "no parameter was updated");
}

/* True for an update that must not run: in a backward in which a gradient is not finite, or in one that searches for that gradient. */
static bool is_held_back(const ls_program *p, const struct instruction *i)
{
    enum optimizer_stage stage = op_info(i->op)->stage;

    return (stage == OPTIMIZER_NORMS || stage == OPTIMIZER_UPDATE) && (p->run.no_update || p->run.finding);
}

/* Stops the updates in backward if a sum of squares is not finite. They run only on the cpu, where the sum can be read at once. */
static void check_squares(ls_program *p, const struct instruction *i)
{
    if (!p->builder.update_in_backward || op_info(i->op)->stage != OPTIMIZER_SQUARES) return;
    p->run.no_update = p->run.no_update || !isfinite(*(const double *)instruction_bound(p, i)->out[0].data);
}

/* The segment in which gradients become final. */
static enum segment final_segment(const ls_program *p) { return p->list[SEG_WEIGHTS].n ? SEG_WEIGHTS : SEG_BACKWARD; }

/* True if segment s can run after what has run in the slot. A backward reads what the previous forward left there, and replaces it unless
 * the program retains it. */
static bool has_before(const ls_program *p, int s, int last)
{
    bool again = p->arguments.options.retain && (last == LS_BACKWARD || last == LS_WEIGHTS);

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

        if (!(segments >> s & 1) || (s == SEG_WEIGHTS && !p->arguments.options.split_backward)) continue;
        if (empty && (s == SEG_BACKWARD || s == SEG_OPTIMIZER))
            return ls_fail(LS_EINVAL, "run: this program has no %s segment; create it with %s", segment_name((enum segment)s),
                           s == SEG_BACKWARD ? "ls_backward" : "ls_optimizer_append");
        if (!has_before(p, s, last))
            return ls_fail(LS_EINVAL, "run: %s needs a new %s; the previous one has been consumed%s", segment_name((enum segment)s),
                           segment_name((enum segment)(s - 1)),
                           s == SEG_BACKWARD && !p->arguments.options.retain ? "; to run it again, compile with retain" : "");
        if (s == (int)final_segment(p)) reduced = segments & LS_LAST;
        if (s == SEG_OPTIMIZER && p->results.wants_last && !reduced)
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

/* Divides the host's seconds evenly among the instructions of a launch. */
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

/* Where instructions are timed one by one the host waits for each, or it would time how long a device with streams takes to enqueue it. */
static bool waits_for_each(const ls_program *p) { return !device_of(p)->immediate && (p->run.singly || p->run.watch); }

/* A collective that has only begun may need what other ranks do next, so nothing waits for its stream. */
static ls_status wait_for_stream(const ls_program *p, const struct instruction *i)
{
    return i->stream < 0 || instruction_is_start(i) ? LS_OK : device_of(p)->stream_sync(instruction_bound(p, i)->stream);
}

/* Until i could run. What it waits for has that time: of collectives, what is exposed. */
static ls_status wait_until_ready(const ls_program *p, const struct instruction *i)
{
    for (int k = 0; k < i->waits; k++) {
        struct instruction_run *other = &p->run.instruction[p->results.wait[i->first_wait + k]];
        double began = base_now();

        LS_TRY(device_of(p)->event_sync(other->end));
        other->seconds += base_now() - began;
    }
    return wait_for_stream(p, i);
}

/* Runs one instruction, and notes when it began and ended. */
static ls_status run_timed(ls_program *p, const struct instruction *i, double *began, double *ended)
{
    bool waits = waits_for_each(p);

    if (waits) LS_TRY(wait_until_ready(p, i));
    *began = base_now();
    LS_TRY(device_of(p)->immediate ? run_one(p, i) : run_queued(p, i, 1));
    if (waits) LS_TRY(wait_for_stream(p, i));
    *ended = base_now();
    count_runs(p, i, 1, *ended - *began);
    return LS_OK;
}

/* Runs one instruction with its watchers and checks; *over: the run ends after it. */
static ls_status run_instruction(ls_program *p, const struct instruction *i, int number, bool *over)
{
    bool clips = op_info(i->op)->stage == OPTIMIZER_CLIP;
    double began, ended;

    if (is_held_back(p, i)) return LS_OK;
    if (p->run.finding) LS_TRY(non_finite_before(p, i, number));
    LS_TRY(run_timed(p, i, &began, &ended));
    if (p->run.watch) p->run.watch(p->run.watch_ctx, p, i, began, ended);
    if (p->run.fault.fn && p->run.fault.slot == p->run.slot) LS_TRY(p->run.fault.fn(p->run.fault.ctx, p, i));
    if (p->run.finding)
        LS_TRY(non_finite_after(p, i, number));
    else if (p->arguments.options.check_finite && !instruction_is_begun(i))
        LS_TRY(check_outputs(p, i, number));
    check_squares(p, i);
    *over = p->run.finding && clips;
    return clips && !*over ? check_norm(p, i) : LS_OK;
}

/* The position of a run in the program. */
struct execute_walk {
    enum segment s;
    int segments, number; /* number: of the segment's first instruction, over all segments */
    bool over;            /* the run ends here */
};

/* Runs instructions [begin, end) of the segment that belong to this run, except those in graph g. */
static ls_status walk_between(ls_program *p, struct execute_walk *w, int begin, int end, const struct graph *g)
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

static ls_status record_graph(ls_program *p, const struct execute_walk *w, const struct graph *g, struct device_graph **out)
{
    const struct instruction *at = p->list[w->s].at;
    struct device_stream *stream = instruction_bound(p, &at[g->begin])->stream;
    ls_status st = LS_OK;

    LS_TRY(device_of(p)->graph_begin(stream));
    for (int n = g->begin, count; n < g->end && st == LS_OK; n += count) {
        count = graph_takes(&at[n], w->segments) ? multi_count(p, &at[n]) : 1;
        if (graph_takes(&at[n], w->segments)) st = run_queued(p, &at[n], count);
    }
    ls_status ended = device_of(p)->graph_end(stream, out);
    if (st == LS_OK) return ended;
    device_of(p)->graph_free(*out);
    *out = NULL;
    return st;
}

/* Divides the host's seconds evenly among the instructions of a graph. */
static void count_graph(ls_program *p, const struct execute_walk *w, const struct graph *g, double seconds)
{
    const struct instruction *at = p->list[w->s].at;
    struct instruction_run *r = instruction_run(p, at);

    for (int n = g->begin; n < g->end; n++) {
        if (!graph_takes(&at[n], w->segments)) continue;
        r[n].seconds += seconds / g->instructions;
        r[n].runs++;
    }
}

/* Launches graph g, then runs the instructions of other streams between its own. The first run launches everything one by one; the second
 * records the graph and launches it. */
static ls_status run_graph(ls_program *p, struct execute_walk *w, struct graph *g)
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

static ls_status walk_segment(ls_program *p, struct execute_walk *w)
{
    LS_TRY(streams_enter(p, w->s, w->segments));
    if (w->s == SEG_OPTIMIZER) LS_TRY(store_gathers_wait(p->store)); /* the optimizer writes what these gathers read */
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
    struct execute_walk w = { .segments = segments };

    if (!p->results.carries) LS_TRY(ls_store_wait(p->store));
    if (segments & LS_BACKWARD) p->run.no_update = false;
    if (segments & ~(LS_OPTIMIZER_STEP | LS_LAST)) /* exchanges in flight after a backward use the arenas until here */
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
    LS_TRY(ls_program_status(p));
    if (!p->run.runnable)
        return ls_fail(LS_EINVAL, "run: %s",
                       p->results.compiled ? "the program was compiled with plan_only" : "the program is not compiled");
    LS_TRY(check_order(p, segments));
    LS_TRY(store_check_loaded(p->store));
    ls_status st = execute_walk(p, segments);
    return st < 0 ? give_up(p, st) : LS_OK;
}

int ls_program_has(const ls_program *p, const char *name)
{
    ls_value v = program_find(p, name);

    return v.id && p->results.compiled && p->values[p->values[v.id].root].used;
}

void program_tag(ls_program *p, int micro) { p->run.tag[p->run.slot] = micro; }

void program_watch(ls_program *p, program_watch_fn *fn, void *ctx)
{
    p->run.watch = fn;
    p->run.watch_ctx = ctx;
}
