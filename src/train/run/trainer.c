/* trainer.c - the step loop. */
#include "train/run/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/device.h"
#include "runtime/store.h"
#include "train/run/async.h"
#include "train/run/reference.h"
#include "train/run/stop.h"

enum { SKIPPED_MOST = 10 }; /* largest number of consecutive steps without an update; more indicate a persistent problem */

/* ---- one step ---- */

static void note_memory(struct trainer *t, const struct metrics *m)
{
    for (int c = 0; c < MEM_CATEGORIES; c++) t->most.peak[c] = MAX(t->most.peak[c], m->memory.peak[c]);
    t->most.total_peak = MAX(t->most.total_peak, m->memory.total_peak);
    t->most.host_peak = MAX(t->most.host_peak, m->memory.host_peak);
    t->most.device_peak = MAX(t->most.device_peak, m->memory.device_peak);
}

static void note_speed(const struct trainer *t, struct metrics *m, double seconds)
{
    m->step_seconds = seconds;
    m->tokens_per_second = (double)m->tokens / seconds;
    m->mfu = step_model_flops(&t->step) / seconds / t->peak_flops;
    m->hfu = step_executed_flops(&t->step) / seconds / t->peak_flops;
}

static void note_totals(struct trainer *t, const struct metrics *m)
{
    t->seconds += m->step_seconds;
    t->tokens += m->tokens;
    for (int i = 0; i < METRICS_TIMES; i++) t->time[i] += m->time[i];
}

void trainer_note_step(struct trainer *t, struct metrics *m, double seconds)
{
    note_speed(t, m, seconds);
    note_memory(t, m);
    note_totals(t, m);
}

/* Moves the seconds spent waiting for other stages from "exposed" to "bubble", and sets "other" so that the parts add up to the step. */
static void split_time(const struct trainer *t, struct metrics *m, double bubble)
{
    double *time = m->time, rest = m->step_seconds;

    time[METRICS_BUBBLE] = t->step.pipeline ? fmin(bubble, time[METRICS_EXPOSED] + time[METRICS_BUBBLE]) : 0;
    time[METRICS_EXPOSED] -= time[METRICS_BUBBLE];
    for (int i = 0; i < METRICS_OTHER; i++) rest -= time[i];
    time[METRICS_OTHER] = fmax(0, rest);
}

double trainer_read_comm(ls_comm_count *out)
{
    double exposed = 0;

    for (int op = 0; op < LS_COLLECTIVES; op++) {
        out[op] = comm_counted((ls_collective)op);
        exposed += out[op].exposed;
    }
    return exposed;
}

void trainer_note_comm(struct metrics *m, const ls_comm_count *before)
{
    ls_comm_count now[LS_COLLECTIVES];

    m->time[METRICS_EXPOSED] = trainer_read_comm(now);
    for (int op = 0; op < LS_COLLECTIVES; op++) {
        m->time[METRICS_EXPOSED] -= before[op].exposed;
        m->comm[op] = (ls_comm_count){ now[op].calls - before[op].calls, now[op].bytes - before[op].bytes,
                                       now[op].seconds - before[op].seconds, now[op].exposed - before[op].exposed };
    }
}

/* Exposed seconds so far by axis; below 0: the axis has one rank. A comm that serves several groups is counted once. */
static void read_axes(const ls_mesh *mesh, double *out)
{
    static const struct {
        ls_group group;
        enum metrics_axis axis;
    } of[] = {
        { LS_GROUP_TP, METRICS_TP },       { LS_GROUP_CP, METRICS_CP },          { LS_GROUP_PP, METRICS_PP },
        { LS_GROUP_PP_BACK, METRICS_PP },  { LS_GROUP_ENDS, METRICS_PP },        { LS_GROUP_EP, METRICS_EP },
        { LS_GROUP_DATA, METRICS_DP },     { LS_GROUP_DP, METRICS_DP },          { LS_GROUP_SHARD, METRICS_DP },
        { LS_GROUP_REPLICAS, METRICS_DP }, { LS_GROUP_EXPERT_DATA, METRICS_DP }, { LS_GROUP_EXPERT_SHARD, METRICS_DP },
    };

    for (int a = 0; a < METRICS_AXES; a++) out[a] = -1;
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        const ls_comm *c = ls_mesh_comm(mesh, of[i].group);
        bool seen = !c;

        for (size_t k = 0; k < i; k++) seen = seen || ls_mesh_comm(mesh, of[k].group) == c;
        if (seen) continue;
        out[of[i].axis] = fmax(out[of[i].axis], 0);
        for (int op = 0; op < LS_COLLECTIVES; op++) out[of[i].axis] += ls_comm_counters(c, (ls_collective)op).exposed;
    }
}

static void note_axes(const struct trainer *t, struct metrics *m, const double *before)
{
    read_axes(t->ranks.mesh, m->axis);
    for (int a = 0; a < METRICS_AXES; a++)
        if (m->axis[a] >= 0) m->axis[a] -= before[a];
}

/* Ends the job with this thread's message and logs it. All ranks and the launcher receive the message before any of them exits, so that it
 * is not lost with this rank. */
static ls_status name_cause(const struct trainer *t, ls_status st)
{
    char line[1024];

    snprintf(line, sizeof line, "%s", ls_errmsg());
    if (t->ranks.comm) comm_fail(t->ranks.comm, st);
    log_line(LOG_DEBUG, "%s", line);
    return ls_fail(st, "%s", line);
}

/* Takes over the message of `rank`, which ends the job: this rank waits for data that `rank` never sends, and receives its message
 * instead. */
static ls_status take_cause(const struct trainer *t, int rank)
{
    char line[1024], own[24], none;
    ls_status st = ls_recv(t->ranks.comm, &none, 1, LS_U8, rank, NULL);

    ASSERT(st != LS_OK);
    if (st == LS_EPEER || st == LS_ETIMEOUT) return st; /* that rank was killed before it could report */
    snprintf(line, sizeof line, "%s", ls_errmsg());
    size_t front = (size_t)snprintf(own, sizeof own, "rank %d: ", rank);
    return ls_fail(st, "stopped by %s%s", strncmp(line, own, front) == 0 ? "" : own, line);
}

/* Handles a step whose loss or gradient norm is not finite; st and its message say which. Parameters and optimizer state are unchanged,
 * except for what updates in backward changed before the value was found. */
static ls_status lose_step(struct trainer *t, struct metrics *m, ls_status st)
{
    bool skip = t->config->train.non_finite == NON_FINITE_SKIP && ++t->skipped <= SKIPPED_MOST;
    char what[96], row[48] = "", kept[64] = "";
    int rank;

    snprintf(what, sizeof what, "%s", ls_errmsg());
    if (isfinite(m->loss))
        snprintf(what, sizeof what, "step %" PRIu64 ": the gradient norm is %s", m->step, isnan(m->grad_norm) ? "NaN" : "infinite");
    else
        m->grad_norm = NAN;
    LS_TRY(step_find_non_finite(&t->step, t->state.step, &rank, t->non_finite));
    m->skipped = skip;
    t->all_skipped += skip;
    recorder_skipped(t->all_skipped);
    if (skip) {
        LS_TRY(step_share_non_finite(&t->step, rank, t->non_finite));
        return ls_fail(LS_OK, "%s: the update is skipped; first: %s", what, t->non_finite);
    }
    if (rank != t->ranks.rank) return take_cause(t, rank);
    if (t->skipped) snprintf(row, sizeof row, ", %d steps in a row", t->skipped);
    if (t->saved_step != UINT64_MAX) snprintf(kept, sizeof kept, ", the checkpoint of step %" PRIu64 " is intact", t->saved_step);
    ls_fail(st, "%s%s; first: %s; %s%s; a lower optim.lr or a longer optim.warmup helps most often", what, row, t->non_finite,
            t->config->optim.in_backward ? "only parameters whose gradients came before it were updated" : "nothing was updated", kept);
    return name_cause(t, st);
}

/* Fetches the samples, computes the gradients and updates, and measures each part without the communication that was exposed in it. */
static ls_status compute_step(struct trainer *t, struct metrics *m, size_t *valid)
{
    ls_comm_count comm[LS_COLLECTIVES];
    double began = base_now(), before = trainer_read_comm(comm);

    LS_TRY(samples_fetch(&t->step, &t->samples, t->state.samples));
    double fetched = base_now();
    t->step.norm = t->state.grad_norm;
    LS_TRY(step_set(&t->step, m->lr, m->step));
    ls_status st = step_gradients(&t->step, t->state.step, &m->loss, valid);
    double updated = base_now();
    double between = trainer_read_comm(comm);
    if (st == LS_OK) st = step_update(&t->step, m->step, &m->grad_norm);
    double ended = base_now(), after = trainer_read_comm(comm);
    m->time[METRICS_DATA] = fetched - began;
    m->time[METRICS_OPTIMIZER] = fmax(0, ended - updated - (after - between));
    m->time[METRICS_COMPUTE] = fmax(0, ended - fetched - (after - before) - m->time[METRICS_OPTIMIZER]);
    if (st == LS_EINVAL && !(isfinite(m->loss) && isfinite(m->grad_norm))) return lose_step(t, m, st);
    t->skipped = 0;
    return st;
}

static ls_status take_step(struct trainer *t, struct metrics *m)
{
    ls_comm_count comm[LS_COLLECTIVES];
    double began = base_now(), axis[METRICS_AXES];
    struct offload_count before = store_offload_count(t->step.store);
    size_t valid;

    cost_begin(&t->cost);
    mem_reset_peak();
    trainer_read_comm(comm);
    read_axes(t->ranks.mesh, axis);
    const ls_model *model = &t->step.model.transformer;
    *m = (struct metrics){ .bubble = -1,
                           .load = t->step.load,
                           .layers = model->layers,
                           .experts = model->experts,
                           .save_seconds = t->save_seconds,
                           .step = t->state.step + 1,
                           .lr = ls_schedule_lr(&t->schedule, t->state.step) };
    LS_TRY(compute_step(t, m, &valid));
    t->state.step = m->step;
    t->state.grad_norm = t->step.norm;
    t->state.samples += t->step.global;
    t->state.tokens += valid;
    m->tokens = valid;
    m->tokens_seen = t->state.tokens;
    note_speed(t, m, base_now() - began);
    trainer_note_comm(m, comm);
    note_axes(t, m, axis);
    split_time(t, m, t->step.pipeline ? ls_pipeline_last_times(t->step.pipeline).waiting : 0);
    mem_read(&m->memory);
    struct offload_count after = store_offload_count(t->step.store);
    m->offload = (struct offload_count){ after.loaded - before.loaded, after.saved - before.saved, after.waited - before.waited };
    cost_end(&t->cost, m);
    return LS_OK;
}

/* ---- exchange between ranks after a step ---- */

/* Replaces seconds by their mean over the ranks. longest: seconds of the slowest rank's pipeline, for which the other stages wait. */
static ls_status share_time(struct trainer *t, struct metrics *m, double longest)
{
    ls_pipeline_spent spent = t->step.pipeline ? ls_pipeline_last_times(t->step.pipeline) : (ls_pipeline_spent){ 0 };
    enum { SECONDS = METRICS_TIMES, BUSY, SUMS };
    double sums[SUMS] = { [SECONDS] = m->step_seconds, [BUSY] = spent.forward + spent.backward + spent.weights };
    int n = t->ranks.size;

    if (t->step.pipeline) {
        m->time[METRICS_EXPOSED] += m->time[METRICS_BUBBLE];
        m->time[METRICS_BUBBLE] = 0;
        split_time(t, m, spent.waiting + (longest - spent.total));
    }
    memcpy(sums, m->time, sizeof m->time);
    LS_TRY(ranks_sum(&t->ranks, sums, SUMS));
    for (int i = 0; i < METRICS_TIMES; i++) m->time[i] = sums[i] / n;
    if (t->step.pipeline) m->bubble = 1 - sums[BUSY] / (longest * n);
    note_speed(t, m, sums[SECONDS] / n);
    return LS_OK;
}

/* GPU memory that graphs use is no longer available for allocations. Returns how many bytes. */
static size_t note_graphs(struct trainer *t)
{
    const struct device *d = store_device(t->step.store);
    size_t taken = d->graphs_taken ? d->graphs_taken() : 0, limit = mem_device_limit() + t->graphs_taken;

    if (taken == t->graphs_taken) return taken;
    if (!t->config->run.memory_limit) mem_set_device_limit(limit - MIN(taken, limit - 1));
    log_line(LOG_INFO, "CUDA graphs: they took %zu bytes of the GPU's memory; %zu are left for the run", taken, mem_device_limit());
    return t->graphs_taken = taken;
}

/* Replaces figures by their maximum over the ranks; a request that one rank received applies to all. */
static ls_status sync_metrics(struct trainer *t, struct metrics *m)
{
    enum {
        STOP,
        SAVE,
        PEAK,
        HOST_PEAK,
        DEVICE_PEAK,
        PIPELINE,
        GRAPHS,
        MEMORY,
        AXES = MEMORY + MEM_CATEGORIES,
        COMM = AXES + METRICS_AXES,
        OFFLOAD = COMM + 4 * LS_COLLECTIVES,
        STATS = OFFLOAD + 3
    };
    double stats[STATS] = { [STOP] = stop_requested(),
                            [SAVE] = !t->trial && stop_take_save(),
                            [PEAK] = (double)m->memory.total_peak,
                            [HOST_PEAK] = (double)m->memory.host_peak,
                            [DEVICE_PEAK] = (double)m->memory.device_peak,
                            [GRAPHS] = (double)note_graphs(t) };

    if (t->step.pipeline) stats[PIPELINE] = ls_pipeline_last_times(t->step.pipeline).total;
    for (int i = 0; i < MEM_CATEGORIES; i++) stats[MEMORY + i] = (double)m->memory.peak[i];
    memcpy(&stats[AXES], m->axis, sizeof m->axis);
    for (int i = 0; i < LS_COLLECTIVES; i++) {
        const ls_comm_count *c = &m->comm[i];

        memcpy(&stats[COMM + 4 * i], (double[4]){ (double)c->calls, (double)c->bytes, c->seconds, c->exposed }, 4 * sizeof *stats);
    }
    memcpy(&stats[OFFLOAD], (double[3]){ (double)m->offload.loaded, (double)m->offload.saved, m->offload.waited }, 3 * sizeof *stats);
    LS_TRY(ranks_most(&t->ranks, stats, STATS));
    LS_TRY(share_time(t, m, stats[PIPELINE]));
    memcpy(m->axis, &stats[AXES], sizeof m->axis);
    t->stop = (int)stats[STOP];
    t->save = stats[SAVE] > 0;
    m->memory.total_peak = (size_t)stats[PEAK];
    m->memory.host_peak = (size_t)stats[HOST_PEAK];
    m->memory.device_peak = (size_t)stats[DEVICE_PEAK];
    t->taken.graphs = MAX(t->taken.graphs, (size_t)stats[GRAPHS]);
    for (int i = 0; i < MEM_CATEGORIES; i++) m->memory.peak[i] = (size_t)stats[MEMORY + i];
    for (int i = 0; i < LS_COLLECTIVES; i++) {
        const double *c = &stats[COMM + 4 * i];

        m->comm[i] = (ls_comm_count){ (uint64_t)c[0], (uint64_t)c[1], c[2], c[3] };
    }
    m->offload = (struct offload_count){ (uint64_t)stats[OFFLOAD], (uint64_t)stats[OFFLOAD + 1], stats[OFFLOAD + 2] };
    note_memory(t, m);
    note_totals(t, m);
    return LS_OK;
}

ls_status trainer_step(struct trainer *t, struct metrics *m)
{
    LS_TRY(take_step(t, m));
    return sync_metrics(t, m);
}

/* ---- between steps ---- */

static ls_status evaluate(struct trainer *t, struct metrics *m)
{
    if (!evaluation_is_open(&t->evaluation)) return LS_OK;
    recorder_doing("evaluating");
    LS_TRY(evaluation_run(&t->evaluation, &t->val_loss));
    recorder_doing("training");
    m->evaluated = true;
    m->val_loss = t->val_loss;
    return LS_OK;
}

static bool is_first(const struct trainer *t) { return t->ranks.rank == 0; }

/* Every rank logs the message; only rank 0 does so as a warning, which is printed. */
static void warn(const struct trainer *t, const struct trainer_watch *w, const char *what)
{
    if (w->warned) w->warned(w->ctx);
    log_line(is_first(t) ? LOG_WARN : LOG_INFO, "%s%s", what, ls_errmsg());
}

static ls_status fail_save(const struct trainer *t, ls_status st)
{
    if (t->saved_step == UINT64_MAX) return ls_fail_at(st, "step %" PRIu64 " is not saved", t->state.step);
    return ls_fail_at(st, "step %" PRIu64 " is not saved, the checkpoint of step %" PRIu64 " is intact", t->state.step, t->saved_step);
}

/* Removes all but the newest checkpoint.keep checkpoints. Checkpoints of later steps, which another run may have written, are kept in
 * addition. */
static ls_status prune_checkpoints(const struct trainer *t)
{
    size_t keep = (size_t)t->config->checkpoint.keep, count = 0;
    uint64_t *steps = NULL;

    LS_TRY(ls_checkpoint_list(t->folder.checkpoints, &steps, &count));
    for (size_t i = 0; i < count; i++) keep += steps[i] > t->saved_step;
    ls_free(steps);
    return ls_checkpoint_prune(t->folder.checkpoints, keep);
}

ls_status trainer_write_checkpoint(struct trainer *t)
{
    const char *files[] = { t->folder.config, t->folder.tokenizer, NULL };

    return ls_checkpoint_save_ranks(t->ranks.comm, t->folder.checkpoints, t->step.store, task_transformer(&t->step.model), &t->state,
                                    files);
}

static ls_status save(struct trainer *t, const struct trainer_watch *w)
{
    double began = base_now();

    recorder_doing("saving");
    ls_status st = trainer_write_checkpoint(t);
    recorder_doing("training");
    t->save_seconds = base_now() - began;
    if (st != LS_OK) return fail_save(t, st);
    t->saved_step = t->state.step;
    if (!is_first(t)) return LS_OK;
    if (prune_checkpoints(t) != LS_OK) warn(t, w, "old checkpoints are not removed: ");
    char *path = trainer_checkpoint(t);
    if (!path) return LS_ENOMEM;
    log_line(LOG_INFO, "saved %s in %.3f s", path, t->save_seconds);
    if (w->saved) w->saved(w->ctx, t, path);
    mem_free(path);
    return LS_OK;
}

/* Saves a checkpoint during the run. A failure is only a warning, unless a rank was lost. */
static ls_status try_save(struct trainer *t, const struct trainer_watch *w)
{
    ls_status st = t->saved_step == t->state.step ? LS_OK : save(t, w);

    if (st == LS_EPEER || st == LS_ETIMEOUT) return st;
    if (st != LS_OK) warn(t, w, "training continues: ");
    return LS_OK;
}

static bool due(int64_t every, uint64_t step) { return every > 0 && step % (uint64_t)every == 0; }

bool trainer_is_due(const struct trainer *t, uint64_t step)
{
    return due(t->config->train.eval_every, step) || due(t->config->checkpoint.every, step);
}

ls_status trainer_after_step(struct trainer *t, const struct trainer_watch *w, struct metrics *m, bool last)
{
    recorder_stepped(m->step, (uint64_t)t->config->train.steps, m->tokens_per_second, t->step.model.task->units);
    if (last || t->save || trainer_is_due(t, m->step)) LS_TRY(cost_settle(&t->cost, t->step.store));
    if (last || due(t->config->train.eval_every, m->step)) LS_TRY(evaluate(t, m));
    if (is_first(t)) LS_TRY(run_folder_put(&t->folder, m));
    t->save_seconds = 0;
    t->last = *m;
    log_line(LOG_DEBUG, "step %" PRIu64 " loss %.6f grad_norm %.4f lr %.3e step_seconds %.3f", m->step, m->loss, m->grad_norm, m->lr,
             m->step_seconds);
    if (w->stepped) w->stepped(w->ctx, t, m);
    bool saves = due(t->config->checkpoint.every, m->step) || t->save || (!t->ranks.comm && stop_take_save());
    return saves && !last ? try_save(t, w) : LS_OK;
}

/* If any rank received a signal while the run was opened, all ranks stop before the first step. */
static ls_status agree_to_stop(struct trainer *t)
{
    double requested = stop_requested();

    LS_TRY(ranks_most(&t->ranks, &requested, 1));
    t->stop = (int)requested;
    return LS_OK;
}

/* A single rank reads the request at once; several ranks exchange requests in sync_metrics(). */
bool trainer_must_leave(struct trainer *t)
{
    if (!t->ranks.comm) t->stop = stop_requested();
    return t->stop != 0;
}

/* "SIGINT: saving a checkpoint at step 3 of 10, then exiting" */
static void say_stopped(const struct trainer *t)
{
    char of[32] = "";

    if (t->config->train.steps >= (int64_t)t->state.step) snprintf(of, sizeof of, " of %" PRId64, t->config->train.steps);
    log_line(LOG_WARN, "%s: saving a checkpoint at step %" PRIu64 "%s, then exiting", stop_name(t->stopped_by), t->state.step, of);
}

/* One step of all ranks together. */
static ls_status step_together(struct trainer *t, const struct trainer_watch *w, uint64_t steps)
{
    struct metrics m;

    LS_TRY(take_step(t, &m));
    if (m.skipped) warn(t, w, "");
    LS_TRY(run_folder_put_own(&t->folder, &m));
    LS_TRY(sync_metrics(t, &m));
    return trainer_after_step(t, w, &m, t->state.step == steps);
}

/* How a method runs steps: at least one of them, up to `steps`, the run's last. */
typedef ls_status advance_fn(struct trainer *t, const struct trainer_watch *w, uint64_t steps);
static advance_fn *const advances[LS_METHODS] = {
    [LS_METHOD_ALLREDUCE] = step_together,
    [LS_METHOD_DATAPARALLEL] = step_together,
    [LS_METHOD_SERVER] = step_together,
    [LS_METHOD_ASYNC] = async_advance,
};

static ls_status trainer_loop(struct trainer *t, const struct trainer_watch *w)
{
    recorder_doing("training");
    LS_TRY(agree_to_stop(t));
    if (!trainer_must_leave(t)) LS_TRY(trainer_fix_steps(t, w));
    uint64_t steps = (uint64_t)t->config->train.steps; /* still -1 if a signal came before it was fixed: the loop then does nothing */
    advance_fn *advance = advances[t->ranks.size > 1 ? t->step.layout.method : LS_METHOD_ALLREDUCE];
    while (t->state.step < steps && !trainer_must_leave(t)) LS_TRY(advance(t, w, steps));
    LS_TRY(reference_compare(t));
    t->stopped_by = t->state.step < steps ? t->stop : 0;
    if (t->stopped_by && is_first(t)) {
        if (w->warned) w->warned(w->ctx);
        say_stopped(t);
    }
    return t->saved_step == t->state.step ? LS_OK : save(t, w);
}

/* Records for the doctor how this rank ends, with its exit code: 3 for LS_EPEER and LS_ETIMEOUT. */
void trainer_note_end(const struct trainer *t, ls_status st)
{
    char why[64] = "";

    if (t->stopped_by) snprintf(why, sizeof why, "stopped by %s", stop_name(t->stopped_by));
    if (st == LS_OK)
        recorder_ended(0, why);
    else
        recorder_ended(st == LS_EPEER || st == LS_ETIMEOUT ? 3 : 1, ls_errmsg());
}

ls_status trainer_run(struct trainer *t, const struct trainer_watch *watch)
{
    static const struct trainer_watch nobody = { 0 };

    ls_status st = trainer_loop(t, is_first(t) ? watch : &nobody);
    if (st == LS_OK && t->trace && t->state.step > t->first_step) st = trace_write(t->trace, &t->ranks, t->folder.path, t->first_step);
    if (st == LS_EPEER && t->ranks.comm) comm_fail(t->ranks.comm, st); /* a device has failed: the other ranks end with this message */
    trainer_note_end(t, st);
    if (st != LS_OK) log_line(LOG_DEBUG, "failed: %s", ls_errmsg());
    stop_uninstall();
    return st;
}

/* ---- report ---- */

char *trainer_checkpoint(const struct trainer *t)
{
    if (t->saved_step == UINT64_MAX) return NULL;
    return file_path("%s/step_%08" PRIu64, t->folder.checkpoints, t->saved_step);
}
