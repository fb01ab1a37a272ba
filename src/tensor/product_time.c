/* product_time.c - how fast products are on this machine, measured. */
#include <stdlib.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/threads.h"
#include "tensor/kernel.h"
#include "tensor/onednn.h"

enum { MOST_RUNS = 101 };

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorted times of the runs within about `budget` seconds, after one that warms up; their number, at least 1. */
static size_t time_runs(const struct kernel *kernel, const struct call *c, double budget, double *times)
{
    double total = 0;
    size_t n = 0;

    kernel->run(c);
    while (n < MOST_RUNS && (n == 0 || total < budget)) {
        double began = base_now();

        kernel->run(c);
        times[n] = base_now() - began;
        total += times[n++];
    }
    qsort(times, n, sizeof *times, by_size);
    return n;
}

/* A linear layer's forward; the share-th quantile of its times (0: least). Negative: failed. */
static double linear_time(size_t m, size_t n, size_t k, ls_dtype type, double budget, double share)
{
    size_t x[2] = { m, k }, w[2] = { n, k }, y[2] = { m, n };
    struct call c = { .op = OP_LINEAR, .nin = 2, .nout = 1 };
    const struct kernel *kernel;
    double times[MOST_RUNS], result = -1;

    c.in[0] = view_of(mem_zalloc(MEM_OTHER, m * k * ls_dtype_bytes(type)), type, 2, x);
    c.in[1] = view_of(mem_zalloc(MEM_OTHER, n * k * ls_dtype_bytes(type)), type, 2, w);
    c.out[0] = view_of(mem_zalloc(MEM_OTHER, m * n * ls_dtype_bytes(type)), type, 2, y);
    kernel = kernel_choose(&c);
    c.scratch = mem_alloc(MEM_OTHER, kernel->scratch ? kernel->scratch(&c) : 0);
    if (c.in[0].data && c.in[1].data && c.out[0].data && c.scratch
        && (!kernel->prepare || kernel->prepare(&c) == LS_OK)) {
        size_t count = time_runs(kernel, &c, budget, times);

        result = times[(size_t)(share * (double)(count - 1))];
        if (kernel->release)
            kernel->release(&c);
    }
    mem_free(c.scratch);
    mem_free(c.out[0].data);
    mem_free(c.in[1].data);
    mem_free(c.in[0].data);
    return result;
}

double product_time(size_t m, size_t n, size_t k, ls_dtype type, int threads)
{
    int before = threads_count();
    double seconds;

    threads_set(threads);
    seconds = linear_time(m, n, k, type, 0.3, 0.5);
    threads_set(before);
    return seconds;
}

double product_peak_flops(ls_dtype type, int threads)
{
    enum { SIDE = 2048 };
    ls_dtype arithmetic = type == LS_BF16 ? LS_BF16 : LS_F32;
    double flops = 2.0 * SIDE * SIDE * SIDE, ours, theirs;
    int before = threads_count();

    threads_set(threads);
    ours = linear_time(SIDE, SIDE, SIDE, arithmetic, 0.3, 0);
    if (onednn_product_time(arithmetic, SIDE, SIDE, SIDE, 0.3, &theirs) != LS_OK)
        theirs = ours;
    threads_set(before);
    return ours <= 0 ? -1 : flops / MIN(ours, theirs);
}
