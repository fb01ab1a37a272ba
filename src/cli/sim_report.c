/* sim_report.c - see sim_report.h. */
#include "cli/sim_report.h"

#include <math.h>
#include <stdio.h>
#include "base/base.h"
#include "base/text.h"
#include "cli/terminal.h"

/* ---- over all runs ---- */

struct over_runs {
    double mean, deviation;
};

static struct over_runs over_runs(const struct sim_shown *x, double (*of)(const struct goodput *g, int k), int k)
{
    double sum = 0, squares = 0;

    for (int r = 0; r < x->runs; r++) sum += of(&x->result[r], k);
    for (int r = 0; r < x->runs; r++) squares += pow(of(&x->result[r], k) - sum / x->runs, 2);
    return (struct over_runs){ sum / x->runs, x->runs > 1 ? sqrt(squares / (x->runs - 1)) : 0 };
}

enum part { PART_TRAINED, PART_AGAIN, PART_SAVED, PART_DOWN, PART_WAITED, PARTS };
static const struct {
    const char *name, *key;
} sim_report_parts[PARTS] = { { "training", "training" },
                              { "repeated steps", "again" },
                              { "checkpoints", "checkpoints" },
                              { "failures and restarts", "restarts" },
                              { "waiting for nodes", "nodes" } };

static double part_of(const struct goodput *g, int k)
{
    const double all[PARTS] = { g->trained, g->again, g->saved, g->down, g->waited };

    return all[k];
}

static double stops_of(const struct goodput *g, int kind) { return g->stops[kind]; }

/* All except planned ones. */
static double unexpected_of(const struct goodput *g, int k)
{
    int sum = 0;

    (void)k;
    for (int i = 0; i < FAILURE_PLANNED; i++) sum += g->stops[i];
    return sum;
}

static double steps_of(const struct goodput *g, int k)
{
    (void)k;
    return (double)g->steps;
}

static int most_out(const struct sim_shown *x)
{
    int most = 0;

    for (int r = 0; r < x->runs; r++) most = MAX(most, x->result[r].out);
    return most;
}

/* ---- for people ---- */

static const char *duration(char out[32], double seconds)
{
    if (!isfinite(seconds))
        snprintf(out, 32, "never");
    else if (seconds < 120)
        snprintf(out, 32, "%.3g s", seconds);
    else if (seconds < 7200)
        snprintf(out, 32, "%.3g min", seconds / 60);
    else if (seconds < 2 * 86400)
        snprintf(out, 32, "%.3g h", seconds / 3600);
    else
        snprintf(out, 32, "%.3g days", seconds / 86400);
    return out;
}

static void print_step(const struct sim_shown *x)
{
    char count[32];

    if (x->planned == 0) {
        printf("step        %.4g s, as given\n", x->step.seconds);
        return;
    }
    printf("step        %.4g s: kernels %.4g s, %s %.4g s, waits for other stages and ranks %.4g s (means)\n", x->step.seconds,
           x->step.kernels, x->offloads ? "exposed communication and offload" : "exposed communication", x->step.exposed, x->step.bubble);
    printf("            %.4g s as planned, without variation; ", x->planned);
    printf("%s ranks simulated, %d step%s\n", text_count(count, x->classes), x->steps_played, x->steps_played > 1 ? "s" : "");
    if (x->slow) printf("            %d slow rank%s, %.3g times as long\n", x->slow, x->slow > 1 ? "s" : "", x->slower);
    if (x->collisions > 1)
        printf("            connections collide: the bytes of the slowest group take %.3g times as long\n", x->collisions);
    if (x->peak > 0) printf("            MFU %.1f%%\n", 100 * x->model_flops / x->step.seconds / x->peak / x->ranks);
}

static void print_checkpoints(const struct sim_shown *x)
{
    char text[32];

    printf("checkpoint  ");
    if (x->checkpoint_bytes > 0) printf("%s; ", text_bytes(text, (size_t)x->checkpoint_bytes));
    printf("training waits %s", duration(text, x->job.stall));
    if (x->job.write > 0) printf(", complete %s later", duration(text, x->job.write));
    printf("; reading takes %s\n", duration(text, x->job.read));
    printf("            every %s", duration(text, (double)x->job.every * x->job.step));
    printf(" (by simulation best: %s", duration(text, (double)x->best * x->job.step));
    printf(", by Daly's formula: %s)\n", duration(text, x->daly));
}

static void print_failures(const struct sim_shown *x)
{
    struct over_runs all = over_runs(x, unexpected_of, 0), planned = over_runs(x, stops_of, FAILURE_PLANNED);
    const char *comma = "";
    char text[32];

    printf("failures    %.4g +- %.2g", all.mean, all.deviation);
    if (isfinite(x->between)) printf(", a stop every %s", duration(text, x->between));
    if (planned.mean > 0) printf("; %.3g planned stops", planned.mean);
    printf("\n            ");
    for (int k = 0; k < FAILURE_PLANNED; k++) {
        struct over_runs kind = over_runs(x, stops_of, k);

        if (x->job.rate[k] > 0) printf("%s%s %.3g", comma, failure_name((enum failure_kind)k), kind.mean), comma = ", ";
    }
    printf("%snoticed after %s", *comma ? "; " : "", duration(text, x->job.detect));
    printf(", restarted in %s", duration(text, x->job.restart));
    printf(", nodes back after %s\n", duration(text, x->job.repair));
}

static void print_result(const struct sim_shown *x)
{
    struct over_runs s = over_runs(x, steps_of, 0);
    char count[32], out[32];

    printf("result      %s steps", text_count(count, (int64_t)s.mean));
    if (x->units > 0) printf(", %.4g %s", s.mean * x->units, x->unit);
    if (x->cluster->price > 0 && x->units > 0) {
        double cost = x->cluster->price * x->ranks * x->job.seconds / 3600;

        printf("; %.3g %s, %.3g for a million %s", cost, x->cluster->currency, 1e6 * cost / (s.mean * x->units), x->unit);
    }
    printf("\n            at most %s node%s in repair at once", text_count(out, most_out(x)), most_out(x) == 1 ? "" : "s");
    if (x->job.spares >= 0) printf(", %d spare", x->job.spares);
    printf("\n");
}

void sim_report_print(const struct sim_shown *x)
{
    char text[32], count[32];

    printf("job         %s on %s %s", duration(text, x->job.seconds), text_count(count, (int64_t)x->ranks),
           *x->cluster->name ? x->cluster->processor : "ranks");
    if (*x->model) printf(": %s, %s", x->model, x->layout);
    printf("; %d run%s\n", x->runs, x->runs > 1 ? "s" : "");
    print_step(x);
    print_checkpoints(x);
    print_failures(x);
    for (int k = 0; k < PARTS; k++) {
        struct over_runs part = over_runs(x, part_of, k);

        printf("%-12s%-24s%7.2f%%", k ? "" : "time", sim_report_parts[k].name, 100 * part.mean / x->job.seconds);
        if (k == PART_TRAINED && x->runs > 1) printf(" +- %.2f", 100 * part.deviation / x->job.seconds);
        printf("\n");
    }
    print_result(x);
}

/* ---- JSON ---- */

ls_status sim_report_json(const struct sim_shown *x)
{
    struct json_out j = { 0 };
    struct over_runs all = over_runs(x, unexpected_of, 0), trained = over_runs(x, part_of, PART_TRAINED);

    json_begin_object(&j, NULL);
    json_put_int(&j, "ranks", (int64_t)x->ranks);
    json_put_real(&j, "days", x->job.seconds / 86400);
    json_put_int(&j, "runs", x->runs);
    json_put_real(&j, "step_seconds", x->step.seconds);
    if (x->planned > 0) {
        json_put_real(&j, "planned_seconds", x->planned);
        json_put_int(&j, "ranks_played", x->classes);
        json_put_real(&j, "collisions", x->collisions);
        json_put_real(&j, "kernels", x->step.kernels);
        json_put_real(&j, "exposed", x->step.exposed);
        json_put_real(&j, "bubble", x->step.bubble);
    }
    json_put_real(&j, "stall", x->job.stall);
    json_put_real(&j, "read", x->job.read);
    json_put_int(&j, "steps_between_checkpoints", x->job.every);
    json_put_int(&j, "best_steps_between_checkpoints", x->best);
    if (isfinite(x->daly)) json_put_real(&j, "daly_seconds", x->daly);
    json_put_real(&j, "failures", all.mean);
    json_put_real(&j, "failures_deviation", all.deviation);
    json_begin_object(&j, "stops");
    for (int k = 0; k < FAILURES; k++) json_put_real(&j, failure_name((enum failure_kind)k), over_runs(x, stops_of, k).mean);
    json_end_object(&j);
    json_begin_object(&j, "share");
    for (int k = 0; k < PARTS; k++) json_put_real(&j, sim_report_parts[k].key, over_runs(x, part_of, k).mean / x->job.seconds);
    json_end_object(&j);
    json_put_real(&j, "training_deviation", trained.deviation / x->job.seconds);
    json_put_real(&j, "steps", over_runs(x, steps_of, 0).mean);
    json_put_int(&j, "most_nodes_in_repair", most_out(x));
    json_end_object(&j);
    return terminal_put_json(&j);
}
