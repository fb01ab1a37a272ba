/* D9 - asynchronous updates use stale gradients: noisier. On the user's model: `lockstep train` with parallel.method=async, in which
 * rank 0 keeps the weights, updates with the gradient of each worker as it comes, and answers that worker with the new weights. Workers
 * are served in turn (parallel.async_turns), so that the lab repeats; real servers take them as they come.
 *
 *     in turn    one worker: each gradient is computed with the current weights
 *     stale      W workers, the same small batches in the same order: a gradient was computed W - 1 updates ago
 *     together   W ranks and an all-reduce: all gradients at the same weights, averaged, and one update for W batches
 *
 * "stale" differs from "in turn" only by staleness, from "together" also by the size of its batches. All use plain SGD with a constant
 * learning rate, unless the user chooses another optimizer. The rows about losses are claims about the lab's own model: with other options
 * they are printed and not judged. */
#include "lab_runs.h"

enum { WORKERS = 4, WORKERS_MOST = 8, FASTER = 3 };

/* One run. loss[i]: mean over the samples i * WORKERS * batch ..; NAN from where it failed on. */
struct curve {
    int points, failed, workers;
    double *loss, staleness, most, seconds, sent, ring_seconds, ring_sent, ring_loss, ended;
};

static char d9_folder[COMMAND_PATH];

static double stale_rate(int faster)
{
    const char *lr = lab_option("optim.lr");

    return (lr ? strtod(lr, NULL) : 0.1) * (faster ? FASTER : 1);
}


/* The losses of all steps, `each` batches a step, as means over WORKERS batches. */
static void curve_read(const char *name, int each, struct curve *c)
{
    char *metrics = run_file(d9_folder, name, "metrics.jsonl");
    int steps = (int)lab_size("updates") / each, batches = 0;

    c->points = (int)lab_size("updates") / WORKERS;
    c->loss = calloc((size_t)c->points, sizeof *c->loss);
    if (!c->loss) exit(1);
    for (int s = 0, at = 0; s < steps && at < c->points; s++) {
        double loss = run_number(metrics, s, "loss");

        for (int k = 0; k < each && at < c->points; k++) {
            c->loss[at] += loss / WORKERS;
            if (++batches % WORKERS == 0) at++;
        }
        if (isfinite(loss)) c->ended = loss;
        if (s == steps - 1) c->staleness = run_number(metrics, s, "staleness.mean");
    }
    free(metrics);
}

static void curve_costs(const char *name, struct curve *c)
{
    char *costs = run_file(d9_folder, name, "method.json");

    c->most = lab_json(costs, "cost.staleness_most");
    c->seconds = lab_json(costs, "cost.step_seconds") / c->workers;
    c->sent = lab_json(costs, "cost.sent") / c->workers;
    c->ring_seconds = lab_json(costs, "allreduce.step_seconds");
    c->ring_sent = lab_json(costs, "allreduce.sent");
    c->ring_loss = lab_json(costs, "allreduce.loss");
    free(costs);
}

/* W workers in turn, for `updates` updates, and the steps of allreduce that process as many samples. */
static struct curve stale_run(int workers, int faster)
{
    long updates = lab_size("updates"), batch = lab_size("batch");
    struct curve c = { .workers = workers };
    char name[64], line[RUN_TEXT];
    static int runs;

    snprintf(name, sizeof name, "async_%d", runs++);
    c.failed = run_train(d9_folder, name, line,
                         "-n %d --optim.lr=%g --train.steps=%ld --train.micro_batch=%ld --train.global_batch=%ld --parallel.method=async "
                         "--parallel.async_turns=true --parallel.reference_steps=%ld",
                         workers + 1, stale_rate(faster), updates / workers, batch, batch * workers,
                         workers > 1 && !faster ? updates / workers : 0);
    if (c.failed && !strstr(line, "finite")) {
        fprintf(stderr, "%s\n", line);
        folder_remove(d9_folder);
        exit(1);
    }
    curve_read(name, workers, &c);
    if (!c.failed) curve_costs(name, &c);
    return c;
}

/* The synchronous run: W ranks with the same samples of a step. */
static struct curve together_run(int faster)
{
    long batch = lab_size("batch");
    struct curve c = { .workers = WORKERS };

    RUN_TRAIN(d9_folder, faster ? "together_fast" : "together", "-n %d --optim.lr=%g --train.steps=%ld --train.micro_batch=%ld", WORKERS,
              stale_rate(faster), lab_size("updates") / WORKERS, batch);
    curve_read(faster ? "together_fast" : "together", WORKERS, &c);
    return c;
}

/* ---- the curves ---- */

static double curve_mean(const struct curve *c, int from, int to)
{
    double sum = 0;

    for (int i = from; i < to; i++) sum += c->loss[i];
    return to > from ? sum / (to - from) : NAN;
}

static double first_quarter(const struct curve *c) { return curve_mean(c, 0, c->points / 4); }
static double last_quarter(const struct curve *c) { return curve_mean(c, c->points - c->points / 4, c->points); }

/* The sum of all increases of the loss in the first quarter. */
static double curve_rises(const struct curve *c)
{
    double sum = 0;

    for (int i = 1; i < c->points / 4; i++) sum += fmax(0, c->loss[i] - c->loss[i - 1]);
    return sum;
}

static int curves_differ(const struct curve *a, const struct curve *b)
{
    int n = 0;

    for (int i = 0; i < a->points; i++) n += a->loss[i] != b->loss[i];
    return n;
}

static void print_curves(const struct curve *together, const struct curve *stale, const struct curve *turn, double rate)
{
    int step = turn->points / 12 > 0 ? turn->points / 12 : 1;

    lab_say("loss by samples seen, learning rate %g\n%10s %12s %12s %12s\n", rate, "samples", "together", "stale", "in turn");
    for (int i = 0; i < turn->points; i += step)
        lab_say("%10ld %12.4f %12.4f %12.4f\n", (i + 1) * WORKERS * lab_size("batch"), together->loss[i], stale->loss[i], turn->loss[i]);
    lab_say("\n");
}

static void print_staleness(const struct curve *const *c, int n)
{
    lab_say("%ld updates each, learning rate %g; beside them all-reduce on as many ranks, fewer and larger updates\n", lab_size("updates"),
            stale_rate(0));
    lab_say("%8s %10s %14s %12s %16s %16s %16s\n", "workers", "staleness", "loss, last 1/4", "all-reduce", "s an update",
            "busiest sends", "all-reduce sends");
    for (int i = 0; i < n; i++)
        lab_say("%8d %10.2f %14.4f %12.4f %16.6f %16.0f %16.0f\n", c[i]->workers, c[i]->staleness, last_quarter(c[i]), c[i]->ring_loss,
                c[i]->seconds, c[i]->sent, c[i]->ring_sent);
    lab_say("\n");
}

/* ---- rows ---- */

static void stale_rows(const struct curve *turn, const struct curve *two, const struct curve *stale, const struct curve *eight,
                       const struct curve *together)
{
    char what[100];

    snprintf(what, sizeof what, "rate %g: mean loss of the first quarter, %d workers / in turn", stale_rate(0), WORKERS);
    lab_above(what, 1, first_quarter(stale) / first_quarter(turn));
    lab_above("       noise on the way down: the loss rises by, more than together's", curve_rises(together), curve_rises(stale));
    lab_above("       more than in turn's", curve_rises(turn), curve_rises(stale));
    lab_above("       loss of the last quarter by staleness: 1 / 0", 1, last_quarter(two) / last_quarter(turn));
    lab_above("       3 / 1", 1, last_quarter(stale) / last_quarter(two));
    lab_above("       7 / 3", 1, last_quarter(eight) / last_quarter(stale));
}

static void fast_rows(const struct curve *turn, const struct curve *stale, const struct curve *together)
{
    char what[100];

    snprintf(what, sizeof what, "rate %g, together: loss of the last quarter / of the first step", stale_rate(1));
    lab_below(what, 0.5, last_quarter(together) / together->loss[0]);
    lab_below("       in turn: the same", 0.5, last_quarter(turn) / turn->loss[0]);
    lab_above("       stale: the same: it does not learn", 0.5, stale->failed ? INFINITY : last_quarter(stale) / stale->loss[0]);
}

LAB_TRAINS(d9_stale, "model data optim", "asynchronous updates", { "ranks", "workers of the last row", WORKERS, 2, WORKERS_MOST },
           { "updates", "updates of each run", 240, 32, 100000 }, { "batch", "samples of a worker's batch", 4, 1, 1024 })
{
    int chosen = (int)lab_size("ranks"), own = lab_options()[0] || lab_size("updates") != 240 || lab_size("batch") != 4;
    char what[100], text[COMMAND_PATH + 16];
    struct curve run[4], fast[2], together[2];

    run_defaults = run_user_gives("optim.name") ? "--optim.schedule=constant --optim.warmup=0"
                                                : "--optim.name=sgd --optim.momentum=0 --optim.schedule=constant --optim.warmup=0";
    folder_new(d9_folder);
    snprintf(text, sizeof text, "%s/text.txt", d9_folder);
    folder_write_text(text);
    for (int i = 0; i < 4; i++) run[i] = stale_run(1 << i, 0);
    for (int i = 0; i < 2; i++) {
        fast[i] = stale_run(i ? WORKERS : 1, 1);
        together[i] = together_run(i);
    }
    struct curve again = stale_run(WORKERS, 0);
    struct curve last = chosen == WORKERS ? run[2] : stale_run(chosen, 0);
    folder_remove(d9_folder);
    print_curves(&together[0], &run[2], &run[0], stale_rate(0));
    print_curves(&together[1], &fast[1], &fast[0], stale_rate(1));
    print_staleness((const struct curve *[]){ &run[0], &run[1], &run[2], &run[3] }, 4);
    lab_open("D9");
    lab_equal("stale: updates that a gradient is behind, workers - 1", WORKERS - 1, run[2].staleness, 0);
    lab_check("       at most", WORKERS - 1, run[2].most, 0);
    lab_check("in turn: updates that a gradient is behind", 0, run[0].staleness, 0);
    if (!own) stale_rows(&run[0], &run[1], &run[2], &run[3], &together[0]);
    if (!own) fast_rows(&fast[0], &fast[1], &together[1]);
    lab_check("stale, once more: losses that differ", 0, curves_differ(&run[2], &again), 0);
    snprintf(what, sizeof what, "%d workers in turn: updates between a gradient's weights and its use", chosen);
    lab_equal(what, chosen - 1, last.staleness, 0);
    for (int i = 0; i < 4; i++) free(run[i].loss);
    for (int i = 0; i < 2; i++) {
        free(fast[i].loss);
        free(together[i].loss);
    }
    free(again.loss);
    if (chosen != WORKERS) free(last.loss);
    return lab_close();
}
