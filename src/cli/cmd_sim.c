/* cmd_sim.c - `lockstep sim`: simulates days of a training job on any described machine. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/csv.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/args.h"
#include "cli/sim_report.h"
#include "cli/step_trace.h"
#include "lockstep/mesh.h"

enum { CHECKPOINT_BYTES = 12 }; /* bytes per parameter: fp32 weights and Adam's two moments */

static const char *sim_machine, *events, *trace;
static int64_t more_ranks, runs = 20, sim_seed = 1, steps = 5, slow, spares = -1;
static double days = 1, jitter, spread, slower = 1.2, step_seconds, failures = -1, stall = -1, write_seconds, read_seconds = -1, interval,
              detect = -1, restart = -1, repair = -1;
static bool sim_json;
static struct cluster sim_cluster;

static const struct flag sim_flags[] = {
    { "machine", FLAG_STRING, &sim_machine, 0, 0, "NAME", "machine by name or as a FILE.yaml (docs/planner.md)" },
    { "ranks", FLAG_INT, &more_ranks, 1, LS_MESH_RANKS_MOST, "N", "ranks, as -n N" },
    { "days", FLAG_REAL, &days, 1e-6, 1e5, "DAYS", "length of the job" },
    { "runs", FLAG_INT, &runs, 1, 10000, "N", "number of simulated jobs, each with different failures" },
    { "seed", FLAG_INT, &sim_seed, 0, INT32_MAX, "N", "seed of all random numbers" },
    { "jitter", FLAG_REAL, &jitter, 0, 1, "SHARE",
      "relative standard deviation of the seconds of the kernels between two collectives, drawn anew each time" },
    { "spread", FLAG_REAL, &spread, 0, 0.3, "SHARE", "relative standard deviation of the processors' speeds, the same in all steps" },
    { "slow", FLAG_INT, &slow, 0, LS_MESH_RANKS_MOST, "N", "number of stragglers, which are drawn at random" },
    { "slower", FLAG_REAL, &slower, 1, 1000, "TIMES", "factor by which stragglers are slower" },
    { "steps", FLAG_INT, &steps, 1, 100000, "N", "with --jitter: number of steps that are simulated on all ranks" },
    { "step-seconds", FLAG_REAL, &step_seconds, 1e-9, 1e6, "S", "seconds of a step, instead of planning one: no model is needed" },
    { "failures", FLAG_REAL, &failures, 0, 1e3, "RATE", "failures per processor and hour, instead of the machine's rates; 0: none" },
    { "stall", FLAG_REAL, &stall, 0, 1e6, "S",
      "seconds that training waits for a checkpoint [the time to write it to the machine's storage]" },
    { "write", FLAG_REAL, &write_seconds, 0, 1e6, "S", "seconds from then until it is complete, while training continues" },
    { "read", FLAG_REAL, &read_seconds, 0, 1e6, "S", "seconds to read a checkpoint, instead of the storage's" },
    { "interval", FLAG_REAL, &interval, 1e-9, 1e9, "S", "seconds of training between checkpoints [the best by simulation]" },
    { "detect", FLAG_REAL, &detect, 0, 1e6, "S", "seconds until a failure is noticed, instead of the machine's" },
    { "restart", FLAG_REAL, &restart, 0, 1e6, "S", "seconds from then to the first step, without reading, instead of the machine's" },
    { "repair", FLAG_REAL, &repair, 0, 1e8, "S", "seconds until a failed node is back, instead of the machine's" },
    { "spares", FLAG_INT, &spares, -1, 1e6, "N", "number of spare nodes, which replace failed ones; -1: always enough" },
    { "events", FLAG_STRING, &events, 0, 0, "FILE", "write what happens in the first job as CSV: seconds,event,kind,steps" },
    { "trace", FLAG_STRING, &trace, 0, 0, "FILE", "write one step of a rank of each stage as a trace for Perfetto" },
    { "json", FLAG_SWITCH, &sim_json, 0, 0, NULL, "print the figures as JSON" },
    { 0 },
};

/* ---- a step ---- */

static ls_status play_steps(struct step_sim *sim, struct sim_shown *x)
{
    int count = jitter > 0 ? (int)steps : 1;
    struct sim_step s;

    for (int i = 0; i < count; i++) {
        LS_TRY(step_sim_play(sim, i, NULL, NULL, &s));
        x->step.seconds += s.seconds / count;
        x->step.kernels += s.kernels / count;
        x->step.exposed += s.exposed / count;
        x->step.bubble += s.bubble / count;
    }
    x->steps_played = count;
    x->classes = step_sim_classes(sim);
    x->collisions = step_sim_collisions(sim);
    return trace ? step_trace_write(sim, trace) : LS_OK;
}

static ls_status plan_step(const struct config *c, struct sim_shown *x)
{
    struct variation v = {
        .seed = (uint64_t)sim_seed, .spread = spread, .jitter = jitter, .slow = (int)slow, .slower = slower, .collide = true
    };
    struct task_model model;
    struct plan_job job;
    struct step_seconds planned;
    struct step_sim *sim;
    ls_layout l;

    LS_TRY(task_model_of(c, 0, &model));
    LS_TRY(plan_of_config(c, &model, &job, &l));
    LS_TRY(step_seconds_of(&job, &l, &sim_cluster, &planned));
    LS_TRY(step_sim_open(&job, &l, &sim_cluster, &v, &sim));
    ls_status st = play_steps(sim, x);
    step_sim_close(&sim);
    x->planned = planned.step;
    x->offloads = l.offload || l.offload_parameters;
    x->units = (double)job.step.global * (double)(model.task->sequences ? l.seq_len : 1);
    x->unit = model.task->units;
    x->peak = sim_cluster.flops[l.compute];
    x->model_flops = planned.model_flops;
    x->checkpoint_bytes = CHECKPOINT_BYTES * (double)model.task->parameters(&model);
    model.task->describe(&model, true, x->model);
    ls_layout_text(&l, x->layout, sizeof x->layout);
    return st;
}

/* ---- the job ---- */

static double storage_seconds(double bytes, double node, double nodes)
{
    double rate = nodes * node;

    if (sim_cluster.shared > 0) rate = fmin(rate, sim_cluster.shared);
    return rate > 0 ? bytes / rate : 0;
}

static ls_status need(double value, const char *what, const char *flag)
{
    if (value >= 0) return LS_OK;
    if (sim_machine) return ls_fail(LS_EINVAL, "machine '%s' does not say %s; give --%s", sim_machine, what, flag);
    return ls_fail(LS_EINVAL, "%s is not known; give --%s, or a --machine that says it", what, flag);
}

static double sim_given(double flag, double of_machine, bool known) { return flag >= 0 ? flag : known ? of_machine : -1; }

static ls_status fill_job(struct sim_shown *x)
{
    struct goodput_job *j = &x->job;
    bool rates = false, times = sim_cluster.restart > 0 || sim_cluster.detect > 0 || sim_cluster.repair > 0;

    for (int k = 0; k < FAILURES; k++) rates = rates || sim_cluster.failures[k] > 0;
    *j = (struct goodput_job){ .seconds = days * 86400, .step = x->step.seconds, .spares = (int)spares, .seed = (uint64_t)sim_seed };
    LS_TRY(need(sim_given(failures, 0, rates), "how often processors fail", "failures RATE (of a processor in an hour)"));
    for (int k = 0; k < FAILURES; k++)
        j->rate[k] = x->ranks / 3600.0 * (failures >= 0 ? k == FAILURE_PROCESSOR ? failures : 0 : sim_cluster.failures[k]);
    bool fails = failures != 0;
    j->detect = sim_given(detect, sim_cluster.detect, times || !fails);
    j->restart = sim_given(restart, sim_cluster.restart, times || !fails);
    j->repair = sim_given(repair, sim_cluster.repair, times || !fails || spares < 0);
    j->write = write_seconds;
    j->stall = sim_given(stall, storage_seconds(x->checkpoint_bytes, sim_cluster.write, x->nodes),
                         (sim_cluster.write > 0 && x->checkpoint_bytes > 0) || !fails);
    j->read = sim_given(read_seconds, storage_seconds(x->checkpoint_bytes, sim_cluster.read, x->nodes),
                        (sim_cluster.read > 0 && x->checkpoint_bytes > 0) || !fails);
    LS_TRY(need(j->detect, "how soon a failure is noticed", "detect S"));
    LS_TRY(need(j->restart, "how long a restart takes", "restart S"));
    LS_TRY(need(j->repair, "how long a repair takes", "repair S"));
    LS_TRY(need(j->stall, "how fast a checkpoint is written", "stall S"));
    return need(j->read, "how fast a checkpoint is read", "read S");
}

static ls_status choose_interval(struct sim_shown *x)
{
    double all = 0;

    for (int k = 0; k < FAILURES; k++) all += x->job.rate[k];
    x->between = 1 / all;
    x->daly = goodput_daly(x->job.stall, x->between);
    LS_TRY(goodput_best_every(&x->job, (int)MIN(runs, 20), &x->best));
    x->job.every = interval > 0 ? (int64_t)fmax(1, round(interval / x->job.step)) : x->best;
    return LS_OK;
}

static void put_event(void *ctx, enum goodput_event e, enum failure_kind kind, double at, int64_t done)
{
    text_put(ctx, "%.6f,%s,%s,%" PRId64 "\n", at, goodput_event_name(e), e == EVENT_STOP ? failure_name(kind) : "", done);
}

static ls_status write_events(const struct goodput_job *j)
{
    struct text t = { 0 };
    struct goodput g;

    text_put(&t, "seconds,event,kind,steps\n");
    ls_status st = goodput_play(j, put_event, &t, &g);
    if (st == LS_OK) st = text_status(&t);
    if (st == LS_OK) st = file_write(events, t.data, t.bytes);
    text_free(&t);
    return st;
}

static ls_status simulate(struct sim_shown *x)
{
    LS_TRY(fill_job(x));
    LS_TRY(choose_interval(x));
    struct goodput_job j = x->job;
    x->result = mem_array(MEM_OTHER, (size_t)runs, sizeof *x->result);
    if (!x->result) return LS_ENOMEM;
    for (x->runs = 0; x->runs < runs; x->runs++, j.seed++) LS_TRY(goodput_play(&j, NULL, NULL, &x->result[x->runs]));
    if (events) LS_TRY(write_events(&x->job));
    return sim_json ? sim_report_json(x) : (sim_report_print(x), LS_OK);
}

static ls_status sim_with(const struct config *c)
{
    struct sim_shown x = { .cluster = &sim_cluster, .ranks = (double)c->launch.ranks, .slow = (int)slow, .slower = slower };
    ls_status st = LS_OK;

    threads_set(1);
    x.nodes = sim_machine ? ceil(x.ranks / sim_cluster.processors) : 1;
    if (step_seconds > 0)
        x.step.seconds = step_seconds;
    else
        st = plan_step(c, &x);
    if (st == LS_OK) st = simulate(&x);
    mem_free(x.result);
    return st;
}

/* ---- the command ---- */

static ls_status cmd_sim_run(struct invocation *in)
{
    mem_keep_pages();
    return args_refuse(in, sim_with(&in->config));
}

static ls_status cmd_sim_complete(struct invocation *in)
{
    struct config *c = &in->config;

    if (more_ranks > 0 && c->launch.ranks > 0 && c->launch.ranks != more_ranks)
        return ls_fail(LS_EINVAL, "--ranks %" PRId64 " and -n %" PRId64 ": leave one of them out", more_ranks, c->launch.ranks);
    if (more_ranks > 0) c->launch.ranks = more_ranks;
    if (!sim_machine && step_seconds <= 0)
        return ls_fail(LS_EINVAL, "sim needs --machine NAME to plan a step for, such as %s, or --step-seconds S", cluster_builtin(0));
    if (sim_machine) LS_TRY(cluster_read_own(sim_machine, &sim_cluster));
    step_seconds_settle(c, &sim_cluster);
    return LS_OK;
}

static ls_status cmd_sim_check(const struct invocation *in)
{
    const struct config *c = &in->config;

    if (step_seconds > 0 && (jitter > 0 || spread > 0 || slow > 0 || trace))
        return ls_fail(LS_EINVAL, "--step-seconds simulates no step; leave %s out",
                       trace        ? "--trace"
                       : jitter > 0 ? "--jitter"
                       : spread > 0 ? "--spread"
                                    : "--slow");
    if (slow > c->launch.ranks) return ls_fail(LS_EINVAL, "--slow %" PRId64 ": there are %" PRId64 " ranks", slow, c->launch.ranks);
    if (c->data.text[0] || c->data.tokens[0])
        return ls_fail(LS_EINVAL, "%s: no data are read to simulate; leave it out", c->data.text[0] ? "data.text" : "data.tokens");
    return step_seconds > 0 ? LS_OK : config_check_fit(c);
}

const struct command command_sim = {
    .name = "sim",
    .arguments = "",
    .summary = "simulate days of training on a described machine: variation, failures, checkpoints, effective training time",
    .verb = VERB_PLAN,
    .flags = sim_flags,
    .complete = cmd_sim_complete,
    .check = cmd_sim_check,
    .run = cmd_sim_run,
    .about =
        "Simulates a step on all ranks, with random variation of each, then days of such steps, with failures at the machine's rates,\n"
        "checkpoints, restarts and repairs. `--step-seconds` uses the seconds of a measured step instead.\n",
    .examples =
        "  lockstep sim --machine h100-meta -n 16384 --model.preset=llama3-405b --data.seq_len=8192 --parallel.tp=8 --parallel.pp=16 \\\n"
        "      --parallel.dp=128 --parallel.zero=1 --parallel.sp --train.micro_batch=1 --train.accumulate=16 --days 54\n"
        "  lockstep sim --step-seconds 1.5 -n 16 --failures 0.01 --stall 4 --read 5 --detect 1 --restart 20 --days 0.5\n",
};
