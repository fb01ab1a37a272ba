/* report.c - prints the settings of a run before it starts and its results after it ends. */
#include "cli/report.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "device/collectives.h"
#include "parallel/layout.h"
#include "runtime/runtime.h"
#include "train/run/stop.h"
#include "train/run/version.h"

enum { LABEL = 12, WORD_ROOM = 512 };

char *report_quote(char *out, size_t room, const char *word)
{
    size_t plain = strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./=+,:@%-"), used = 0;

    if (word[0] && word[plain] == '\0') {
        snprintf(out, room, "%s", word);
        return out;
    }
    out[used++] = '\'';
    for (; *word && used + 6 < room; word++) {
        if (*word == '\'')
            used += (size_t)snprintf(out + used, room - used, "'\\''");
        else
            out[used++] = *word;
    }
    out[used++] = '\'';
    out[used] = '\0';
    return out;
}

static void label(const char *name) { printf("%s%-*s%s", terminal_style(STYLE_BOLD), LABEL, name, terminal_style(STYLE_PLAIN)); }

/* ---- the start ---- */

static void put_model(const struct trainer *t)
{
    const struct task_model *m = &t->step.model;
    char count[32], what[TASK_TEXT];

    label("model");
    m->task->describe(m, false, what);
    printf("%s: %s parameters\n", what, text_count(count, (int64_t)step_parameters(&t->step)));
}

static void put_data(const struct trainer *t)
{
    const struct config *c = t->config;
    char train[32], validation[32];

    label("data");
    if (t->step.model.task->drawn) {
        printf("%s\n", t->data.what);
        return;
    }
    printf("%s: %s tokens to train on, %s to validate (%s)\n", c->data.text[0] ? c->data.text : c->data.tokens,
           text_count(train, (int64_t)(t->data.train.end - t->data.train.begin)),
           text_count(validation, (int64_t)(t->data.validation.end - t->data.validation.begin)),
           c->data.text[0] ? c->data.tokenizer : ls_tokens_format(t->data.tokens));
}

static void put_batch(const struct trainer *t)
{
    const struct step *s = &t->step;
    char tokens[32];

    label("step");
    printf("%zu sample%s (%zu x %zu x %d)", s->global, s->global == 1 ? "" : "s", s->batch, s->accumulate,
           ls_mesh_size(s->ranks.mesh, LS_GROUP_DP));
    if (s->model.task->sequences) printf(" of %zu tokens: %s tokens", s->seq_len, text_count(tokens, (int64_t)(s->global * s->seq_len)));
    printf("\n");
    if (s->ranks.size == 1) return;
    label("layout");
    char mesh[LS_LAYOUT_TEXT];

    printf("%d ranks over %s: %s\n", s->ranks.size, ls_comm_transport(s->ranks.comm), ls_layout_text(&s->layout, mesh, sizeof mesh));
}

static const char *compute_name(const struct trainer *t) { return config_type(t->config) == LS_BF16 ? "bf16" : "fp32"; }

static void put_graphs(const struct trainer *t)
{
    const struct config *c = t->config;
    struct graph_counts sum = { 0 };
    ls_program *p;

    for (int k = 0; (p = step_program(&t->step, k)); k++) {
        struct graph_counts of = program_graphs(p);

        sum.graphs += of.graphs;
        sum.instructions += of.instructions;
        sum.all += of.all;
    }
    label("graphs");
    if (c->run.cuda_graphs == CUDA_GRAPHS_OFF)
        printf("none (run.cuda_graphs=off)\n");
    else if (c->log.trace || c->debug.check_finite)
        printf("none (%s needs each instruction launched by itself)\n", c->log.trace ? "log.trace" : "debug.check_finite");
    else
        printf("%d CUDA graph%s %d of %d instructions\n", sum.graphs, sum.graphs == 1 ? " launches" : "s launch", sum.instructions,
               sum.all);
}

/* Prints nothing if the build has no device other than the processor. */
static void put_device(const struct trainer *t)
{
    const struct config *c = t->config;
    char memory[16], taken[16];

    if (c->run.device_why[0]) {
        label("device");
        printf("%s: %s\n", config_device(c), c->run.device_why);
    }
    if (!c->run.device_facts.memory) return;
    label("device");
    printf("%s: %s, %s, of which %s were taken before the run (CUDA context, other processes)\n", config_device(c),
           c->run.device_facts.name, text_bytes(memory, c->run.device_facts.memory), text_bytes(taken, t->taken.device));
    put_graphs(t);
    if (!t->ranks.collectives[0]) return;
    label("collectives");
    printf("%s", t->ranks.collectives);
    if (t->taken.collectives) printf(", which took %s of the GPU's memory", text_bytes(taken, t->taken.collectives));
    printf("%s%s\n", t->ranks.collectives_why[0] ? ": " : "", t->ranks.collectives_why);
}

void report_start(const struct trainer *t)
{
    put_model(t);
    put_data(t);
    put_batch(t);
    label("machine");
    printf("%d thread%s%s, %s, %s", threads_count(), threads_count() > 1 ? "s" : "", t->ranks.size > 1 ? " per rank" : "",
           isa_name(isa_best()), compute_name(t));
    if (!isnan(t->peak_flops)) printf(" at %.0f GFLOP/s (%s)", t->peak_flops / 1e9, t->peak.measured ? "measured now" : "cached");
    printf("\n");
    put_device(t);
    label("run");
    printf("%s", t->folder.path);
    if (t->resumed) printf(", resumed from %s", t->resumed);
    printf("\n\n");
    fflush(stdout);
}

/* ---- the end ---- */

static void put_steps(const struct trainer *t)
{
    uint64_t made = t->state.step - t->first_step;
    char tokens[32], time[24];

    label("run");
    printf("%s: step %" PRIu64, t->folder.path, t->state.step);
    if (t->config->train.steps >= (int64_t)t->state.step)
        printf(" of %" PRId64, t->config->train.steps);
    else if (t->config->train.steps >= 0)
        printf(", past train.steps=%" PRId64, t->config->train.steps);
    printf("; %" PRIu64 " steps, %s %s in %s%s%s\n", made, text_count(tokens, (int64_t)t->tokens), t->step.model.task->units,
           progress_duration(time, t->seconds), t->stopped_by ? ", stopped by " : "", t->stopped_by ? stop_name(t->stopped_by) : "");
    if (made == 0) return;
    label("loss");
    printf("%.4f in the last step", t->last.loss);
    if (!isnan(t->val_loss)) printf(", %s%.4f in validation%s", terminal_style(STYLE_CYAN), t->val_loss, terminal_style(STYLE_PLAIN));
    printf("\n");
}

/* With train.non_finite=skip: the number of steps whose loss or gradient norm was not finite. */
static void put_skipped(const struct trainer *t)
{
    if (t->all_skipped == 0) return;
    label("skipped");
    printf("%" PRIu64 " update%s because of values that are not finite; in the last one: %s\n", t->all_skipped,
           t->all_skipped == 1 ? "" : "s", t->non_finite);
}

/* Prints how the peak that MFU refers to was measured: on which processors, when, and whether the machine was busy. */
static void put_peak(const struct trainer *t, double hfu)
{
    static const double NOTABLE = 0.1;
    const struct peak *p = &t->peak;
    time_t when = (time_t)p->when;
    char stamp[24];
    struct tm utc;

    gmtime_r(&when, &utc);
    strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M", &utc);
    label("peak");
    printf("%s matmuls on %d of %d processors%s, measured %s UTC, %s%s\n", compute_name(t), p->threads, p->machine.processors,
           p->machines ? " of each machine" : "", stamp, p->path[0] ? "cached in " : "not cached: ", p->path[0] ? p->path : p->note);
    if (p->busy > NOTABLE)
        printf("%*sother processes used %.0f%% of the processors during the measurement; --run.measure_peak=again repeats it\n", LABEL, "",
               100 * p->busy);
    else if (hfu > 1)
        printf("%*sthis run was faster than the peak, which is out of date; --run.measure_peak=again measures it again\n", LABEL, "");
}

static void put_speed(const struct trainer *t)
{
    double steps = (double)(t->state.step - t->first_step), rate = t->seconds * t->peak_flops,
           hfu = steps * step_executed_flops(&t->step) / rate;
    char tokens[32];

    if (steps == 0) return;
    label("speed");
    printf("%s %s/s", text_count(tokens, (int64_t)((double)t->tokens / t->seconds)), t->step.model.task->units);
    if (!isnan(hfu))
        printf(", MFU %.1f%%, HFU %.1f%% of %.0f GFLOP/s", 100 * steps * step_model_flops(&t->step) / rate, 100 * hfu, t->peak_flops / 1e9);
    printf("\n");
    if (!isnan(hfu)) put_peak(t, hfu);
}

static void put_time(const struct trainer *t)
{
    char split[PROGRESS_TIME];

    if (!progress_time(split, t, t->time)) return;
    label("time");
    printf("%s\n", split);
}

/* A row of the comparison; reference NULL: there is none. */
static void put_compared(const char *name, const char *own, const char *reference)
{
    printf("  %-24s%16s%16s\n", name, own, reference ? reference : "");
}

static const char *compared_bytes(char out[16], const struct cost_figures *f, double bytes)
{
    return f->steps ? text_bytes(out, (size_t)(bytes + 0.5)) : NULL;
}

/* Compares the cost of a method other than allreduce with that of allreduce. */
static void put_method(const struct trainer *t)
{
    const struct cost_figures *m = &t->method, *r = &t->reference;
    char own[40], other[40], title[48];

    if (m->steps == 0) return;
    label("method");
    printf("%s on %d ranks", layout_method_name(t->step.layout.method), t->ranks.size);
    if (r->steps)
        printf(", beside %" PRIu64 " step%s of allreduce from the same weights on the same samples", r->steps, r->steps == 1 ? "" : "s");
    printf("\n");
    put_compared("", layout_method_name(t->step.layout.method), r->steps ? "allreduce" : NULL);
    snprintf(own, sizeof own, "%.4g", 1e3 * m->seconds);
    snprintf(other, sizeof other, "%.4g", 1e3 * r->seconds);
    put_compared("step, median [ms]", own, r->steps ? other : NULL);
    put_compared("busiest rank sends", compared_bytes(own, m, m->sent), compared_bytes(other, r, r->sent));
    put_compared("             receives", compared_bytes(own, m, m->received), compared_bytes(other, r, r->received));
    put_compared("memory of rank 0", compared_bytes(own, m, (double)m->first), compared_bytes(other, r, (double)r->first));
    put_compared("       of another, most", compared_bytes(own, m, (double)m->others), compared_bytes(other, r, (double)r->others));
    if (r->steps && !isnan(m->loss)) {
        snprintf(title, sizeof title, "loss of step %" PRIu64, r->after);
        snprintf(own, sizeof own, "%.4f", m->loss);
        snprintf(other, sizeof other, "%.4f", r->loss);
        put_compared(title, own, other);
    }
    if (m->updates == 0) return;
    snprintf(own, sizeof own, "%.2f", m->stale);
    put_compared("staleness [updates]", own, r->steps ? "0" : NULL);
    snprintf(own, sizeof own, "%" PRIu64, m->stale_most);
    put_compared("           most", own, r->steps ? "0" : NULL);
}

static void report_put_bytes(const char *name, const size_t *planned, size_t measured)
{
    char left[16] = "", right[16];

    if (planned) text_bytes(left, *planned);
    printf("  %-*s%14s%14s\n", LABEL + 2, name, left, text_bytes(right, measured));
}

static void put_memory(const struct trainer *t)
{
    const size_t *peak = t->most.peak;
    const ls_cost planned = t->planned;

    if (t->state.step == t->first_step) return;
    label("memory");
    printf("    %14s%14s%s\n", "planned", "measured", t->ranks.size > 1 ? ", of the largest rank" : "");
    report_put_bytes("parameters", &planned.parameters, peak[MEM_PARAMETERS]);
    report_put_bytes("gradients", &planned.gradients, peak[MEM_GRADIENTS]);
    report_put_bytes("optimizer", &planned.optimizer, peak[MEM_OPTIMIZER]);
    report_put_bytes("activations", &planned.activations, peak[MEM_ACTIVATIONS]);
    if (planned.communication) report_put_bytes("communication", &planned.communication, peak[MEM_COMMUNICATION]);
    if (planned.offload) report_put_bytes("offload", &planned.offload, peak[MEM_OFFLOAD]);
    report_put_bytes("other", NULL, peak[MEM_OTHER]);
    if (!t->config->run.device_facts.memory) {
        report_put_bytes("peak", NULL, t->most.total_peak);
        return;
    }
    report_put_bytes("peak, GPU", NULL, t->most.device_peak);
    report_put_bytes("peak, host", NULL, t->most.host_peak);
    report_put_bytes("CUDA context", NULL, t->taken.device); /* in addition to the peak: GPU memory that the run did not allocate */
    if (t->taken.collectives) report_put_bytes(t->ranks.native->name, NULL, t->taken.collectives);
    if (t->taken.graphs) report_put_bytes("CUDA graphs", NULL, t->taken.graphs);
}

/* Prints the commands that resume the run and sample from it. A finished run can only be resumed with more steps and a longer lr schedule.
 */
static void put_commands(const struct trainer *t)
{
    char program[WORD_ROOM], config[WORD_ROOM], folder[WORD_ROOM];
    int64_t more = 2 * MAX(t->config->train.steps, 1);

    report_quote(program, sizeof program, program_invocation_name);
    report_quote(config, sizeof config, t->folder.config);
    report_quote(folder, sizeof folder, t->config->checkpoint.dir[0] ? t->folder.checkpoints : t->folder.path);
    label("resume");
    printf("%s train --config %s", program, config);
    if (t->state.step >= (uint64_t)t->config->train.steps)
        printf("%s --train.steps=%" PRId64 " --train.schedule_steps=%" PRId64,
               t->config->train.time_budget > 0 ? " --train.time_budget=0" : "", more, more);
    printf("\n");
    if (!t->step.model.task->generates) return;
    label("sample");
    printf("%s generate %s %s\n", program, folder, t->data.tokenizer ? "--prompt \"In the\"" : "--ids 0");
}

void report_end(const struct trainer *t)
{
    char *checkpoint = trainer_checkpoint(t);

    printf("\n");
    put_steps(t);
    put_skipped(t);
    put_speed(t);
    put_time(t);
    put_memory(t);
    put_method(t);
    label("checkpoint");
    printf("%s\n", checkpoint ? checkpoint : "none");
    mem_free(checkpoint);
    put_commands(t);
}
