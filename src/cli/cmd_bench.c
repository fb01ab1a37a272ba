/* cmd_bench.c - `lockstep bench train` and `lockstep bench gemm`. */
#include <stdio.h>
#include <stdlib.h>
#include "base/base.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/launching.h"
#include "program/program.h"
#include "train/machine.h"
#include "train/metrics.h"
#include "train/random_tokens.h"
#include "train/step.h"

/* ---- bench train ---- */

static bool json, profile;

static const struct flag train_flags[] = {
    { "json", FLAG_SWITCH, &json, 0, 0, NULL, "print the figures as JSON" },
    { "profile", FLAG_SWITCH, &profile, 0, 0, NULL, "print where the time goes, by operation" },
    { 0 },
};

static const char *const train_common[] = {
    "model.preset", "model.hf",          "model.layers",      "model.width",
    "model.vocab",  "data.seq_len",      "train.micro_batch", "train.accumulate",
    "optim.name",   "precision.compute", "recompute.mode",    "launch.threads",
    "run.isa",      "bench.steps",       "bench.warmup",      NULL,
};

struct result {
    double loss, seconds, peak_flops;
    double exposed;  /* seconds of the timed steps that this rank waited for others, per step */
    struct mem_stats memory;
};

static double exposed_so_far(void)
{
    double sum = 0;

    for (int op = 0; op < LS_COLLECTIVES; op++) sum += comm_counted((ls_collective)op).exposed;
    return sum;
}

static int by_length(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The figures are those of the median step, of this rank; all ranks take each step together. */
static ls_status take_steps(const struct config *c, struct step *s, double *took, struct result *out)
{
    uint64_t warmup = (uint64_t)c->bench.warmup, steps = (uint64_t)c->bench.steps;
    size_t valid;
    double norm;

    for (uint64_t i = 0; i < warmup + steps; i++) {
        random_tokens(s, i, 0);
        if (i == warmup) mem_reset_peak();
        if (i == warmup) out->exposed = exposed_so_far();
        double began = base_now();
        LS_TRY(step_gradients(s, i, &out->loss, &valid));
        LS_TRY(step_update(s, 1e-4, i + 1, &norm));
        if (i >= warmup) took[i - warmup] = base_now() - began;
    }
    out->exposed = (exposed_so_far() - out->exposed) / (double)steps;
    qsort(took, steps, sizeof *took, by_length);
    out->seconds = (took[(steps - 1) / 2] + took[steps / 2]) / 2;
    mem_read(&out->memory);
    return LS_OK;
}

static ls_status time_steps(const struct config *c, struct step *s, struct result *out)
{
    double *took = mem_array(MEM_OTHER, (size_t)c->bench.steps, sizeof *took);
    ls_status st = took ? take_steps(c, s, took, out) : LS_ENOMEM;

    mem_free(took);
    return st;
}

static ls_status put_json(const struct step *s, const struct result *r)
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
    json_put_real(&j, "exposed_seconds", r->exposed);
    json_put_real(&j, "loss", r->loss);
    json_put_int(&j, "peak_rss_bytes", (int64_t)machine_peak_rss());
    json_put_real(&j, "mfu", step_model_flops(s) / r->seconds / r->peak_flops);
    json_put_real(&j, "hfu", step_executed_flops(s) / r->seconds / r->peak_flops);
    json_put_real(&j, "gemm_peak_flops", r->peak_flops);
    json_put_real(&j, "model_flops", step_model_flops(s));
    metrics_put_memory(&r->memory, &j);
    json_end_object(&j);
    ls_status st = json_out_status(&j);
    if (st == LS_OK) puts(j.text);
    json_out_free(&j);
    return st;
}

static void put_table(const struct step *s, const struct result *r)
{
    double tokens = (double)(s->global * s->seq_len);
    char text[32], size[16];

    printf("model       %s parameters, %s, %d ranks of %d threads, %s\n",
           text_count(text, (int64_t)step_parameters(s)), ls_dtype_name(ls_store_settings(s->store).type),
           s->ranks.size, threads_count(), isa_name(isa_best()));
    printf("step        %zu %s in %.3f s", s->global * s->seq_len, step_unit(s), r->seconds);
    if (s->ranks.size > 1) printf(", of which %.3f s of waiting for other ranks", r->exposed);
    printf("\n");
    printf("speed       %s %s/s\n", text_count(text, (int64_t)(tokens / r->seconds)), step_unit(s));
    printf("mfu         %.1f%% of %.0f GFLOP/s; hfu %.1f%%\n", 100 * step_model_flops(s) / r->seconds / r->peak_flops,
           r->peak_flops / 1e9, 100 * step_executed_flops(s) / r->seconds / r->peak_flops);
    printf("memory      %s by the ledger", text_bytes(size, r->memory.total_peak));
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

static ls_status put_result(const struct step *s, const struct result *r)
{
    if (s->ranks.rank > 0) return LS_OK;
    if (json) LS_TRY(put_json(s, r));
    else put_table(s, r);
    return profile ? put_profile(s) : LS_OK;
}

static ls_status bench_train(const struct config *c, const struct ranks *ranks)
{
    struct result r = { 0 };
    struct step s;
    ls_image_model image;
    ls_model model;

    if (!config_image(c, &image)) LS_TRY(config_model(c, 0, &model));
    LS_TRY(step_open(c, &model, ranks, false, &s));
    ranks_be_patient(ranks, false);
    ls_status st = time_steps(c, &s, &r);
    ranks_be_patient(ranks, true);
    if (st == LS_OK) st = machine_peak_flops(config_type(c), &r.peak_flops);
    if (st == LS_OK) st = ranks_sum(ranks, &r.peak_flops, 1);
    if (st == LS_OK) st = put_result(&s, &r);
    step_close(&s);
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

static ls_status launch_train(struct invocation *in) { return launching_run(in, NULL, NULL); }

const struct command command_bench_train = {
    .name = "bench train", .arguments = "", .summary = "time training steps on random tokens",
    .verb = VERB_BENCH, .flags = train_flags, .common = train_common, .run = run_train, .launch = launch_train,
    .examples =
        "  lockstep bench train --model.preset=gpt2-124m --data.seq_len=1024 --train.micro_batch=4\n"
        "  lockstep bench train --model.preset=gpt2-124m --precision.compute=fp32 --launch.threads=2 --json\n"
        "  lockstep bench train --model.preset=llama-demo --profile\n",
};

/* ---- bench gemm ---- */

static int64_t rows = 0, columns = 0, inner = 0;

static const struct flag gemm_flags[] = {
    { "m", FLAG_INT, &rows, 1, 1e6, "M", "rows of x [a list of usual sizes]" },
    { "n", FLAG_INT, &columns, 1, 1e6, "N", "rows of w: channels out" },
    { "k", FLAG_INT, &inner, 1, 1e6, "K", "columns of both: channels in" },
    { "json", FLAG_SWITCH, &json, 0, 0, NULL, "print the figures as JSON" },
    { 0 },
};

static const char *const gemm_common[] = { "launch.threads", "run.isa", NULL };

struct shape { size_t m, n, k; };

static ls_status check_gemm(const struct invocation *in)
{
    (void)in;
    if ((rows > 0) == (columns > 0) && (columns > 0) == (inner > 0)) return LS_OK;
    return ls_fail(LS_EINVAL, "--m, --n and --k belong together");
}

static void put_gemm_json(struct json_out *j, const struct shape *s, ls_dtype type, const char *kernel, double seconds)
{
    json_begin_object(j, NULL);
    json_put_int(j, "m", (int64_t)s->m);
    json_put_int(j, "n", (int64_t)s->n);
    json_put_int(j, "k", (int64_t)s->k);
    json_put_string(j, "type", ls_dtype_name(type));
    json_put_string(j, "kernel", kernel);
    json_put_real(j, "seconds", seconds);
    json_put_real(j, "gflops", 2e-9 * (double)s->m * (double)s->n * (double)s->k / seconds);
    json_end_object(j);
}

static ls_status time_shape(const struct shape *s, struct json_out *j)
{
    static const ls_dtype types[] = { LS_F32, LS_BF16 };
    static const char *const others[] = { NULL, "onednn" };

    if (!json) printf("%7zu %7zu %7zu", s->m, s->n, s->k);
    for (size_t i = 0; i < COUNT_OF(types) * COUNT_OF(others); i++) {
        ls_dtype type = types[i / COUNT_OF(others)];
        const char *kernel = others[i % COUNT_OF(others)];
        double seconds;

        LS_TRY(machine_time_linear(type, s->m, s->n, s->k, &kernel, &seconds));
        if (json && seconds > 0) put_gemm_json(j, s, type, kernel, seconds);
        else if (!json && seconds > 0)
            printf("  %7.1f %-8s", 2e-9 * (double)s->m * (double)s->n * (double)s->k / seconds, kernel);
        else if (!json) printf("  %7s %-8s", "-", kernel);
    }
    if (!json) printf("\n");
    fflush(stdout);
    return LS_OK;
}

static ls_status run_gemm(struct invocation *in)
{
    static const struct shape usual[] = {
        { 1, 768, 768 },     { 128, 768, 768 },   { 1024, 1024, 1024 }, { 4096, 768, 768 },   { 4096, 2304, 768 },
        { 4096, 3072, 768 }, { 4096, 768, 3072 }, { 1024, 50257, 768 }, { 2048, 2048, 2048 },
    };
    struct shape one = { (size_t)rows, (size_t)columns, (size_t)inner };
    struct json_out j = { 0 };
    ls_status st = LS_OK;

    (void)in;
    if (json) json_begin_array(&j, NULL);
    else
        printf("y[m,n] = x[m,k] w[n,k]^T, %d threads; GFLOP/s and kernel\n%7s %7s %7s  %7s %-8s  %7s %-8s  %7s\n",
               threads_count(), "m", "n", "k", "f32", "", "f32", "", "bf16");
    if (rows) st = time_shape(&one, &j);
    for (size_t i = 0; !rows && st == LS_OK && i < COUNT_OF(usual); i++) st = time_shape(&usual[i], &j);
    if (json) json_end_array(&j);
    if (st == LS_OK && json) st = json_out_status(&j);
    if (st == LS_OK && json) puts(j.text);
    json_out_free(&j);
    return st;
}

const struct command command_bench_gemm = {
    .name = "bench gemm", .arguments = "", .summary = "time matrix products by shape and type",
    .verb = VERB_BENCH, .flags = gemm_flags, .common = gemm_common, .check = check_gemm, .run = run_gemm,
    .examples =
        "  lockstep bench gemm\n"
        "  lockstep bench gemm --m 4096 --n 768 --k 768 --launch.threads=1\n"
        "  lockstep bench gemm --run.isa=avx2 --json\n",
};
