/* cmd_bench_gemm.c - `lockstep bench gemm`. */
#include <stdio.h>
#include "base/base.h"
#include "base/json.h"
#include "base/threads.h"
#include "cli/launching.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "train/run/machine.h"

static bool bench_gemm_json;
static int64_t bench_gemm_rows = 0, columns = 0, inner = 0;

static const struct flag gemm_flags[] = {
    { "m", FLAG_INT, &bench_gemm_rows, 1, 1e6, "M", "rows of x; --m, --n and --k are given together [several usual sizes]" },
    { "n", FLAG_INT, &columns, 1, 1e6, "N", "rows of w, which are output channels" },
    { "k", FLAG_INT, &inner, 1, 1e6, "K", "columns of x and w, which are input channels" },
    { "json", FLAG_SWITCH, &bench_gemm_json, 0, 0, NULL, "print the figures as JSON" },
    { 0 },
};

struct shape {
    size_t m, n, k;
};

static ls_status check_gemm(const struct invocation *in)
{
    (void)in;
    if ((bench_gemm_rows > 0) == (columns > 0) && (columns > 0) == (inner > 0)) return LS_OK;
    return ls_fail(LS_EINVAL, "--m, --n and --k must be given together");
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

static const ls_dtype gemm_types[] = { LS_F32, LS_BF16 };

/* The kernels that multiply, of each type: the one that a program would choose (NULL), and another one if this build has it. Returns how
 * many. */
static size_t gemm_kernels(const struct device *d, const char *kernel[2])
{
    kernel[0] = NULL;
    kernel[1] = d->comparison;
    return d->comparison && kernels_exist(d->comparison) ? 2 : 1;
}

static ls_status time_shape(const struct device *d, const struct shape *s, struct json_out *j)
{
    const char *kernels[2];
    size_t n = gemm_kernels(d, kernels);

    if (!bench_gemm_json) printf("%7zu %7zu %7zu", s->m, s->n, s->k);
    for (size_t i = 0; i < COUNT_OF(gemm_types) * n; i++) {
        ls_dtype type = gemm_types[i / n];
        const char *kernel = kernels[i % n];
        double seconds;

        LS_TRY(machine_time_linear(d, type, s->m, s->n, s->k, &kernel, &seconds));
        if (bench_gemm_json && seconds > 0)
            put_gemm_json(j, s, type, kernel, seconds);
        else if (!bench_gemm_json && seconds > 0)
            printf("  %7.1f %-8s", 2e-9 * (double)s->m * (double)s->n * (double)s->k / seconds, kernel);
        else if (!bench_gemm_json)
            printf("  %7s %-8s", "-", kernel);
    }
    if (!bench_gemm_json) printf("\n");
    fflush(stdout);
    return LS_OK;
}

static void bench_gemm_put_head(const struct config *c, const struct device *d)
{
    const char *kernels[2];
    size_t n = gemm_kernels(d, kernels);

    printf("y[m,n] = x[m,k] w[n,k]^T, ");
    if (d->immediate)
        printf("%d threads", threads_count());
    else
        printf("device %s%s%s", d->name, c->run.device_facts.memory ? ": " : "", c->run.device_facts.name);
    printf("; GFLOP/s and kernel\n%7s %7s %7s", "m", "n", "k");
    for (size_t i = 0; i < COUNT_OF(gemm_types) * n; i++) printf("  %7s %-8s", ls_dtype_name(gemm_types[i / n]), "");
    printf("\n");
}

static ls_status run_gemm(struct invocation *in)
{
    static const struct shape usual[] = {
        { 1, 768, 768 },     { 128, 768, 768 },   { 1024, 1024, 1024 }, { 4096, 768, 768 },   { 4096, 2304, 768 },
        { 4096, 3072, 768 }, { 4096, 768, 3072 }, { 1024, 50257, 768 }, { 2048, 2048, 2048 },
    };
    struct shape one = { (size_t)bench_gemm_rows, (size_t)columns, (size_t)inner };
    const struct device *d = device_find(config_device(&in->config));
    struct json_out j = { 0 };
    ls_status st = LS_OK;

    if (!d) return LS_EUNSUPPORTED;
    LS_TRY(kernel_table_add(d));
    if (bench_gemm_json)
        json_begin_array(&j, NULL);
    else
        bench_gemm_put_head(&in->config, d);
    if (bench_gemm_rows) st = time_shape(d, &one, &j);
    for (size_t i = 0; !bench_gemm_rows && st == LS_OK && i < COUNT_OF(usual); i++) st = time_shape(d, &usual[i], &j);
    if (bench_gemm_json) json_end_array(&j);
    if (st == LS_OK && bench_gemm_json) st = json_out_status(&j);
    if (st == LS_OK && bench_gemm_json) puts(j.text);
    json_out_free(&j);
    return st;
}

const struct command command_bench_gemm = {
    .name = "bench gemm",
    .arguments = "",
    .summary = "time matmuls by shape and type",
    .verb = VERB_BENCH_GEMM,
    .flags = gemm_flags,
    .check = check_gemm,
    .run = run_gemm,
    .examples = "  lockstep bench gemm\n"
                "  lockstep bench gemm --m 4096 --n 768 --k 768 --launch.threads=1\n"
                "  lockstep bench gemm --run.isa=avx2 --json\n"
                "  lockstep bench gemm --run.device=cuda\n",
};
