/* cmd_bench.c - `lockstep bench train`. */
#include <math.h>
#include <stdio.h>
#include "base/base.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/bench_time.h"
#include "cli/launching.h"
#include "cli/terminal.h"
#include "ir/program.h"
#include "train/run/machine.h"
#include "train/run/metrics.h"
#include "train/run/peak.h"
#include "train/plan/plan.h"
#include "train/plan/step_sim.h"
#include "train/run/random_tokens.h"
#include "train/run/step.h"

static bool bench_json, profile;
static const char *predict;
static struct cluster bench_cluster; /* --predict; zeroed: not given */

static const struct flag train_flags[] = {
    { "json", FLAG_SWITCH, &bench_json, 0, 0, NULL, "print the figures as JSON" },
    { "profile", FLAG_SWITCH, &profile, 0, 0, NULL,
      "also print where the time goes, by operation; on a GPU each is launched by itself, without CUDA graphs, and waited for" },
    { "predict", FLAG_STRING, &predict, 0, 0, "MACHINE",
      "also predict the step for this machine, by name or as a FILE.yaml that `bench machine` wrote, and print both" },
    { 0 },
};

struct result {
    bool enqueues; /* the device works later than the host enqueues: only the seconds of complete steps are known */
    double loss, seconds, peak_flops;
    struct peak peak;
    ls_machine machine;
    double exposed;         /* seconds per step that this rank waited for others */
    struct bench_time time; /* how the timed steps were spent */
    struct mem_stats memory;
};

/* Everything from here on is measured; the warm-up is over. */
static void begin_timed(struct step *s, struct bench_time *t)
{
    ls_program *p;

    mem_reset_peak();
    for (int i = 0; (p = step_program(s, i)); i++) program_profile_clear(p);
    bench_time_begin(s, t);
}

/* Runs the steps; seconds are those of the median step on this rank. */
static ls_status take_steps(const struct config *c, struct step *s, double *took, struct result *out)
{
    uint64_t warmup = (uint64_t)c->bench.warmup, steps = (uint64_t)c->bench.steps;
    size_t valid;
    double norm;

    for (uint64_t i = 0; i < warmup + steps; i++) {
        random_tokens(s, i, 0);
        if (i == warmup) begin_timed(s, &out->time);
        double began = base_now();
        LS_TRY(step_set(s, 1e-4, i + 1));
        LS_TRY(step_gradients(s, i, &out->loss, &valid));
        LS_TRY(step_update(s, i + 1, &norm));
        if (i < warmup) continue;
        out->time.wall += took[i - warmup] = base_now() - began;
        bench_time_step(s, &out->time);
    }
    bench_time_end(s, &out->time);
    out->exposed = out->time.exposed / (double)steps;
    out->seconds = base_median(took, steps);
    mem_read(&out->memory);
    return bench_time_sync(s, c->bench.steps, &out->time);
}

static ls_status time_steps(const struct config *c, struct step *s, struct result *out)
{
    double *took = mem_array(MEM_OTHER, (size_t)c->bench.steps, sizeof *took);
    ls_status st = took ? take_steps(c, s, took, out) : LS_ENOMEM;

    mem_free(took);
    return st;
}

/* Number of layers of each virtual stage. */
static void put_stages_json(const struct step *s, struct json_out *j)
{
    const int *begin = ls_pipeline_begin(s->pipeline);

    json_begin_array(j, "stages");
    for (int k = 0; k < s->schedule.stages * s->schedule.chunks; k++) json_put_int(j, NULL, begin[k + 1] - begin[k]);
    json_end_array(j);
}

static void put_pipeline_json(const struct step *s, const struct result *r, struct json_out *j)
{
    const struct bench_time *t = &r->time;

    put_stages_json(s, j);
    if (!r->enqueues) json_put_real(j, "bubble", t->bubble);
    if (!r->enqueues) json_put_real(j, "bubble_played", t->played);
    if (!isnan(t->equal)) json_put_real(j, "bubble_equal", t->equal);
}

/* This rank's machine, with the peak FLOP/s of each type that has been measured on it. */
static void put_machine_json(const ls_machine *m, struct json_out *j)
{
    json_begin_object(j, "machine");
    json_put_string(j, "name", m->name);
    json_put_int(j, "processors", m->processors);
    json_put_int(j, "memory_bytes", (int64_t)m->memory);
    json_begin_object(j, "peak_flops");
    for (int t = 0; t < LS_DTYPES; t++)
        if (m->flops[t] > 0) json_put_real(j, ls_dtype_name((ls_dtype)t), m->flops[t]);
    json_end_object(j);
    json_end_object(j);
}

static ls_status cmd_bench_put_json(const struct step *s, const struct result *r)
{
    struct json_out j = { 0 };
    double tokens = (double)(s->global * s->seq_len);

    json_begin_object(&j, NULL);
    json_put_int(&j, "parameters", (int64_t)step_parameters(s));
    json_put_int(&j, "tokens_per_step", (int64_t)tokens);
    json_put_int(&j, "threads", threads_count());
    json_put_string(&j, "isa", isa_name(isa_best()));
    json_put_string(&j, "compute", ls_dtype_name(ls_store_settings(s->store).type));
    json_put_real(&j, "tokens_per_second", tokens / r->seconds);
    json_put_real(&j, "step_seconds", r->seconds);
    json_put_int(&j, "ranks", s->ranks.size);
    if (!r->enqueues) json_put_real(&j, "exposed_seconds", r->exposed);
    if (!r->enqueues) json_put_real(&j, "overhead", bench_time_overhead(&r->time));
    if (s->pipeline) put_pipeline_json(s, r, &j);
    json_put_real(&j, "loss", r->loss);
    json_put_int(&j, "peak_rss_bytes", (int64_t)machine_peak_rss());
    json_put_real(&j, "mfu", step_model_flops(s) / r->seconds / r->peak_flops);
    json_put_real(&j, "hfu", step_executed_flops(s) / r->seconds / r->peak_flops);
    json_put_real(&j, "gemm_peak_flops", r->peak_flops);
    json_put_real(&j, "model_flops", step_model_flops(s));
    metrics_put_memory(&r->memory, &j);
    put_machine_json(&r->machine, &j);
    json_end_object(&j);
    return terminal_put_json(&j);
}

static void put_pipeline(const struct step *s, const struct result *r)
{
    const struct bench_time *t = &r->time;
    const int *begin = ls_pipeline_begin(s->pipeline);

    printf("pipeline    %s, %d micro-batches, layers", s->schedule.name, s->schedule.micro);
    for (int k = 0; k < s->schedule.stages * s->schedule.chunks; k++) printf("%s%d", k ? "," : " ", begin[k + 1] - begin[k]);
    if (!r->enqueues)
        printf("; idle %.1f%% of ranks x time, %.1f%% in a simulation with the stages' times", 100 * t->bubble, 100 * t->played);
    if (!isnan(t->equal)) printf("%s %.1f%% for equal stages", r->enqueues ? "; idle" : ",", 100 * t->equal);
    printf("\n");
}

static void cmd_bench_put_table(const struct step *s, const struct result *r)
{
    double tokens = (double)(s->global * s->seq_len);
    char text[32], size[16];

    printf("model       %s parameters, %s, %d ranks of %d threads, %s\n", text_count(text, (int64_t)step_parameters(s)),
           ls_dtype_name(ls_store_settings(s->store).type), s->ranks.size, threads_count(), isa_name(isa_best()));
    printf("machine     %s, %d processors, %s free\n", r->machine.name, r->machine.processors, text_bytes(size, r->machine.memory));
    printf("step        %zu %s in %.3f s", s->global * s->seq_len, s->model.task->units, r->seconds);
    if (s->ranks.size > 1 && !r->enqueues) printf(", of which %.3f s were spent waiting for other ranks", r->exposed);
    printf("%s\n", profile && r->enqueues ? ", each operation waited for" : "");
    if (!r->enqueues) printf("overhead    %.2f%% of a step is neither kernels nor communication\n", 100 * bench_time_overhead(&r->time));
    if (s->pipeline) put_pipeline(s, r);
    printf("speed       %s %s/s\n", text_count(text, (int64_t)(tokens / r->seconds)), s->model.task->units);
    if (!isnan(r->peak_flops))
        printf("mfu         %.1f%% of %.0f GFLOP/s (%s); hfu %.1f%%\n", 100 * step_model_flops(s) / r->seconds / r->peak_flops,
               r->peak_flops / 1e9, r->peak.measured ? "measured now" : "cached",
               100 * step_executed_flops(s) / r->seconds / r->peak_flops);
    printf("memory      %s allocated", text_bytes(size, r->memory.total_peak));
    if (r->memory.device_peak) printf(", on the GPU %s", text_bytes(size, r->memory.device_peak));
    printf(", %s resident\n", text_bytes(size, machine_peak_rss()));
    for (int i = 0; i < MEM_CATEGORIES; i++)
        printf("  %-14s%12s\n", mem_category_name((enum mem_category)i), text_bytes(size, r->memory.peak[i]));
}

static ls_status put_profile(const struct step *s)
{
    ls_program *p;

    for (int i = 0; (p = step_program(s, i)); i++) {
        char *text;

        LS_TRY(program_profile_text(p, &text));
        printf("\n%s", text);
        ls_free(text);
    }
    return LS_OK;
}

/* ---- the prediction ---- */

/* Seconds of a step, as means over ranks, and the bytes of rank 0. */
struct predicted {
    struct sim_step step;
    struct plan_bytes bytes;
};

static ls_status cmd_bench_predict(const struct config *c, const struct task_model *model, struct predicted *out)
{
    struct variation none = { .slower = 1 };
    struct step_sim *sim;
    struct plan_job job;
    ls_layout l;

    LS_TRY(plan_of_config(c, model, &job, &l));
    job.evaluates = job.traces = false;
    LS_TRY(plan_of_rank(&job, &l, 0, &out->bytes));
    LS_TRY(step_sim_open(&job, &l, &bench_cluster, &none, &sim));
    ls_status st = step_sim_play(sim, 0, NULL, NULL, &out->step);
    step_sim_close(&sim);
    return st;
}

static void put_pair(const char *name, double predicted, double measured)
{
    printf("  %-26s%10.4g s%10.4g s%+8.1f%%\n", name, predicted, measured, 100 * (predicted / measured - 1));
}

/* measured: seconds of a step, of its kernels and of everything else, means over ranks. The last two are not known of a device that
 * enqueues. */
static ls_status put_prediction(const struct config *c, const struct task_model *model, const struct result *r, const double measured[3])
{
    struct predicted p;
    char planned[32], held[32];
    size_t bytes = 0;

    LS_TRY(cmd_bench_predict(c, model, &p));
    for (int i = 0; i < MEM_CATEGORIES; i++) bytes += i == MEM_OTHER ? 0 : r->memory.peak[i];
    if (bench_json) {
        struct json_out j = { 0 };

        json_begin_object(&j, NULL);
        json_put_string(&j, "machine", bench_cluster.name);
        json_put_real(&j, "predicted_seconds", p.step.seconds);
        json_put_real(&j, "measured_seconds", measured[0]);
        json_put_real(&j, "predicted_kernels", p.step.kernels);
        if (!r->enqueues) json_put_real(&j, "measured_kernels", measured[1]);
        json_put_int(&j, "predicted_bytes", (int64_t)p.bytes.total);
        json_put_int(&j, "measured_bytes", (int64_t)bytes);
        json_end_object(&j);
        return terminal_put_json(&j);
    }
    printf("prediction  on %s\n  %-26s%12s%12s%9s\n", bench_cluster.name, "", "predicted", "measured", "error");
    put_pair("step", p.step.seconds, measured[0]);
    if (!r->enqueues) put_pair("kernels", p.step.kernels, measured[1]);
    if (!r->enqueues && measured[2] > 1e-3 * measured[0]) put_pair("communication and waits", p.step.exposed + p.step.bubble, measured[2]);
    printf("  %-26s%12s B%10s B\n", "memory of rank 0", text_count(planned, (int64_t)p.bytes.total), text_count(held, (int64_t)bytes));
    return LS_OK;
}

static ls_status compare_prediction(const struct config *c, const struct task_model *model, const struct ranks *ranks,
                                    const struct result *r)
{
    double steps = (double)c->bench.steps, mean[3] = { r->seconds, r->time.kernels / steps, 0 };

    LS_TRY(ranks_sum(ranks, mean, 2));
    mean[0] /= ranks->size;
    mean[1] /= ranks->size;
    mean[2] = mean[0] - mean[1];
    return ranks_settle(ranks, ranks->rank > 0 ? LS_OK : put_prediction(c, model, r, mean));
}

static ls_status put_result(const struct step *s, const struct result *r)
{
    if (s->ranks.rank > 0) return LS_OK;
    if (bench_json)
        LS_TRY(cmd_bench_put_json(s, r));
    else
        cmd_bench_put_table(s, r);
    return profile ? put_profile(s) : LS_OK;
}

/* Of a graph, and of a device that enqueues, times are not known by instruction. */
static void launch_singly(const struct step *s)
{
    ls_program *p;

    for (int i = 0; (p = step_program(s, i)); i++) program_launch_singly(p);
}

static ls_status bench_train(const struct config *c, const struct ranks *ranks)
{
    struct result r = { .enqueues = !config_device_row(c)->immediate };
    struct step s;
    struct task_model model;

    LS_TRY(task_model_of(c, 0, &model));
    LS_TRY(plan_check_memory(c, &model, &(struct dataset){ 0 }, ranks));
    LS_TRY(step_open_config(c, &model, ranks, STEP_INITIALIZED, &s));
    if (profile) launch_singly(&s);
    ls_status st = bench_time_open(&s, &r.time);
    if (st == LS_OK) st = time_steps(c, &s, &r);
    if (st == LS_OK) st = peak_of_ranks(c, ranks, &r.peak);
    r.peak_flops = r.peak.flops;
    if (st == LS_OK) st = ls_machine_this(&r.machine);
    if (st == LS_OK) st = put_result(&s, &r);
    step_close(&s);
    if (st == LS_OK && predict) st = compare_prediction(c, &model, ranks, &r);
    bench_time_close(&r.time);
    return st;
}

static ls_status run_train(struct invocation *in)
{
    struct ranks ranks;

    LS_TRY(ranks_open(&in->config, &ranks));
    ls_status st = bench_train(&in->config, &ranks);
    ranks_close(&ranks);
    return st;
}

static ls_status check_prediction(const struct config *c)
{
    ls_layout l;

    LS_TRY(cluster_read_own(predict, &bench_cluster));
    LS_TRY(config_layout(c, &l));
    return plan_check_seconds(&l, &bench_cluster);
}

static ls_status check_train(const struct invocation *in)
{
    if (predict) LS_TRY(check_prediction(&in->config));
    if (profile && in->config.run.cuda_graphs == CUDA_GRAPHS_ON)
        return ls_fail(LS_EINVAL, "--profile: it needs each instruction launched by itself; use run.cuda_graphs=auto or off");
    return LS_OK;
}

static ls_status launch_train(struct invocation *in) { return launching_run(in, NULL, NULL, NULL); }

const struct command command_bench_train = {
    .name = "bench train",
    .arguments = "",
    .summary = "time training steps on random tokens",
    .verb = VERB_BENCH,
    .flags = train_flags,
    .check = check_train,
    .run = run_train,
    .launch = launch_train,
    .examples = "  lockstep bench train --model.preset=gpt2-124m --data.seq_len=1024 --train.micro_batch=4\n"
                "  lockstep bench train --model.preset=gpt2-124m --precision.compute=fp32 --launch.threads=2 --json\n"
                "  lockstep bench train --model.preset=llama-demo --profile\n",
};
