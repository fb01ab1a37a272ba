/* trainer_budget.c - train.time_budget: a trial before the first step measures the run's costs and fixes the number of steps, N.
 *
 *     save a checkpoint of step 0       gives the seconds of a save
 *     run 2 steps                       warms caches; not counted
 *     run 3 to 9 steps                  gives the seconds of a step, their median; stops after 3 if steps have taken 2% of the budget
 *     evaluate the first samples        gives the seconds of an evaluation
 *     load the checkpoint of step 0     restores the state before the trial
 *
 * N is known before the first step, so no learning rate depends on an unknown length: the run has, bit for bit, the results of a run with
 * train.steps=N, whatever warm-up and decay the lr schedule has. The time of the trial counts as spent. N is written into config.yaml and
 * into every checkpoint; a resumed run reads it and measures nothing.
 *
 * All ranks measure; the slowest rank's times count; rank 0 computes N.
 */
#include "train/run/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include "base/base.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "checkpoint/collective_status.h"
#include "train/run/time_budget.h"
#include "train/run/trainer_probe.h"

enum { WARM = 2, LEAST = 3, WINDOW = 9 };
static const double SHARE = 0.02;
static const uint64_t STEPS_MOST = 1000000000000000; /* as train.steps */

/* *seconds: the seconds since `began`, on the slowest rank. */
static ls_status measure_since(const struct trainer *t, double began, double *seconds)
{
    *seconds = base_now() - began;
    return ranks_most(&t->ranks, seconds, 1);
}

/* Times steps with learning rate 0, which leave the weights unchanged. *step: their median; NaN if a signal came before one was counted. */
static ls_status try_steps(struct trainer *t, double *step)
{
    double seconds[WINDOW], sum = 0;
    size_t counted = 0;

    t->schedule = (ls_schedule){ .kind = LS_CONSTANT };
    for (int i = 0; i < WARM + WINDOW && !trainer_must_leave(t); i++) {
        double began = base_now(), one;
        struct metrics m;

        if (counted >= LEAST && sum > SHARE * t->config->train.time_budget) break;
        LS_TRY(trainer_step(t, &m));
        LS_TRY(measure_since(t, began, &one));
        sum += one;
        if (i >= WARM) seconds[counted++] = one;
    }
    *step = counted ? base_median(seconds, counted) : NAN;
    return LS_OK;
}

static ls_status try_evaluation(struct trainer *t, double *seconds)
{
    double began = base_now(), times;

    *seconds = 0;
    if (!evaluation_is_open(&t->evaluation)) return LS_OK;
    LS_TRY(evaluation_run_part(&t->evaluation, &times));
    LS_TRY(measure_since(t, began, seconds));
    *seconds *= times;
    return LS_OK;
}

/* The part of the trial between saving and loading. *leave: true if a signal ends the run here. */
static ls_status try_run(struct trainer *t, struct time_budget *b, bool *leave)
{
    LS_TRY(try_steps(t, &b->step));
    *leave = trainer_must_leave(t);
    return *leave ? LS_OK : try_evaluation(t, &b->evaluation);
}

/* Restores everything that the trial changed. The checkpoint of step 0 is kept if the run ends here. */
static ls_status undo_trial(struct trainer *t, const struct trainer *before, bool leave)
{
    char *path = file_path("%s/step_%08d", t->folder.checkpoints, 0);
    ls_status st = path ? ls_checkpoint_load(path, t->step.store, LS_LOAD_OPTIMIZER, NULL) : LS_ENOMEM;

    st = agree(t->ranks.comm, st);
    if (st == LS_OK && before->saved_step != 0 && !leave && t->ranks.rank == 0) st = file_remove_tree(path);
    mem_free(path);
    t->saved_step = leave ? 0 : before->saved_step;
    t->trial = false;
    t->state = before->state;
    t->schedule = before->schedule;
    t->step.fault = before->step.fault;
    t->last = before->last;
    t->most = before->most;
    t->seconds = before->seconds;
    for (int i = 0; i < METRICS_TIMES; i++) t->time[i] = before->time[i];
    t->tokens = before->tokens;
    if (t->trace) trace_forget(t->trace);
    LS_TRY(ranks_agree(&t->ranks, st));
    return trainer_start_loader(t);
}

static ls_status try_all(struct trainer *t, struct time_budget *b, bool *leave)
{
    const struct trainer before = *t;
    double began = base_now();

    recorder_doing("measuring");
    LS_TRY(trainer_write_checkpoint(t));
    LS_TRY(measure_since(t, began, &b->save));
    t->trial = true;
    t->step.fault.name = NULL; /* debug.non_finite counts the steps of the run, not of the trial */
    LS_TRY(try_run(t, b, leave));
    LS_TRY(undo_trial(t, &before, *leave));
    recorder_doing("training");
    return measure_since(t, t->opened, &b->spent);
}

static ls_status fail_small(const struct time_budget *b)
{
    char spent[24], step[24], evaluation[24], save[24];

    return ls_fail(
        LS_EINVAL,
        "train.time_budget=%g s: too short for one step: start-up took %s, a step takes %s, an evaluation %s, a checkpoint %s; use %.0f or "
        "more",
        b->seconds, time_budget_text(spent, b->spent), time_budget_text(step, b->step), time_budget_text(evaluation, b->evaluation),
        time_budget_text(save, b->save), ceil(time_budget_least(b)));
}

static ls_status decide_steps(const struct trainer *t, const struct time_budget *b, uint64_t *steps)
{
    *steps = time_budget_steps(b);
    if (t->ranks.comm) LS_TRY(ls_broadcast(t->ranks.comm, steps, 1, LS_I64, 0, NULL));
    return *steps ? LS_OK : ranks_agree(&t->ranks, fail_small(b));
}

static void say_line(const struct trainer *t, const struct trainer_watch *w, const char *line)
{
    if (t->ranks.rank > 0) return;
    log_line(LOG_INFO, "%s", line);
    if (w->fixed) w->fixed(w->ctx, t, line);
}

static const char *plural(uint64_t n) { return n == 1 ? "" : "s"; }

static void say_measured(const struct trainer *t, const struct trainer_watch *w, const struct time_budget *b)
{
    uint64_t steps = t->state.budget_steps, evaluations = b->evaluation > 0 ? time_budget_times(b->eval_every, steps) : 0,
             saves = time_budget_times(b->save_every, steps);
    char line[320], count[32], step[24], spent[24], evaluation[24], save[24];

    snprintf(line, sizeof line,
             "train.time_budget=%g s: %s%s step%s of %s (start-up took %s; %" PRIu64 " evaluation%s of %s, %" PRIu64 " checkpoint%s of %s)",
             b->seconds, steps == b->most ? "all of train.steps: " : "", text_count(count, (int64_t)steps), plural(steps),
             time_budget_text(step, b->step), time_budget_text(spent, b->spent), evaluations, plural(evaluations),
             time_budget_text(evaluation, b->evaluation), saves, plural(saves), time_budget_text(save, b->save));
    say_line(t, w, line);
}

static void say_recorded(const struct trainer *t, const struct trainer_watch *w)
{
    char line[160], count[32];

    snprintf(line, sizeof line, "train.time_budget=%g s: %s step%s, fixed when the run began", t->state.budget_seconds,
             text_count(count, (int64_t)t->state.budget_steps), plural(t->state.budget_steps));
    say_line(t, w, line);
}

ls_status trainer_fix_steps(struct trainer *t, const struct trainer_watch *w)
{
    struct config *c = t->config;
    struct time_budget b = {
        .seconds = c->train.time_budget,
        .eval_every = (uint64_t)c->train.eval_every,
        .save_every = (uint64_t)c->checkpoint.every,
        .most = c->train.steps < 0 ? STEPS_MOST : (uint64_t)c->train.steps,
    };
    uint64_t steps;
    bool leave;

    if (c->train.time_budget == 0) return LS_OK;
    if (t->state.budget_steps) {
        say_recorded(t, w);
        return LS_OK;
    }
    LS_TRY(try_all(t, &b, &leave));
    if (leave) return LS_OK;
    LS_TRY(decide_steps(t, &b, &steps));
    ls_status st = config_fix_steps(c, (int64_t)steps);
    if (st != LS_OK) ls_fail_at(st, "train.time_budget=%g s is enough for %" PRIu64 " steps", b.seconds, steps);
    LS_TRY(ranks_agree(&t->ranks, st));
    t->schedule = config_schedule(c);
    t->state.schedule_steps = (uint64_t)c->train.schedule_steps;
    t->state.budget_steps = steps;
    t->state.budget_seconds = b.seconds;
    LS_TRY(ranks_agree(&t->ranks, t->ranks.rank == 0 ? trainer_write_config(t) : LS_OK));
    LS_TRY(trainer_probe_space(t));
    say_measured(t, w, &b);
    return LS_OK;
}
