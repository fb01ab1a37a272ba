/* profile.c - the seconds of a program's runs, added up by op, phase and kernel. */
#include "ir/program.h"

#include <stdlib.h>
#include "base/mem.h"
#include "base/text.h"

struct profile_row {
    const char *op;
    ls_phase phase;
    const char *kernel;
    double seconds, flops, bytes;
    uint64_t runs;
};

static int slower_first(const void *a, const void *b)
{
    double x = ((const struct profile_row *)a)->seconds, y = ((const struct profile_row *)b)->seconds;

    return (x < y) - (x > y);
}

static void profile_add(struct profile_row *rows, int *n, const ls_program *p, const struct instruction *i,
                        const struct instruction_run *run)
{
    const char *op = instruction_name(i),
               *kernel = i->kernel && run->call ? kernel_that_runs(i->kernel, run->call) : instruction_kernel_name(i);
    int k = 0;

    while (k < *n && (rows[k].op != op || rows[k].phase != i->phase || rows[k].kernel != kernel)) k++;
    if (k == *n) rows[(*n)++] = (struct profile_row){ .op = op, .phase = i->phase, .kernel = kernel };
    rows[k].seconds += run->seconds;
    rows[k].flops += i->flops * (double)run->runs;
    rows[k].bytes += (double)instruction_bytes(p, i) * (double)run->runs;
    rows[k].runs += run->runs;
}

void program_profile_clear(ls_program *p)
{
    struct instruction_run *run = p->run.instruction;

    for (int s = 0; run && s < SEGMENTS; s++)
        for (int k = 0; k < p->list[s].n; k++, run++) run->seconds = 0, run->runs = 0;
}

ls_status program_profile_text(const ls_program *p, char **text)
{
    enum { MOST = PROGRAM_OPS * 6 };
    const struct instruction_run *run = p->run.instruction;
    struct profile_row *rows = mem_array(MEM_OTHER, MOST, sizeof *rows);
    struct text t = { 0 };
    double total = 0;
    int n = 0;

    if (!rows) return LS_ENOMEM;
    for (int s = 0; run && s < SEGMENTS; s++)
        for (int k = 0; k < p->list[s].n; k++, run++)
            if (run->runs && n < MOST) profile_add(rows, &n, p, &p->list[s].at[k], run);
    qsort(rows, (size_t)n, sizeof *rows, slower_first);
    for (int k = 0; k < n; k++) total += rows[k].seconds;
    text_put(&t, "%-19s  %-11s  %-14s  %8s  %10s  %6s  %8s  %7s\n", "op", "phase", "kernel", "calls", "seconds", "share", "GFLOP/s",
             "GB/s");
    for (int k = 0; k < n; k++)
        text_put(&t, "%-19s  %-11s  %-14s  %8llu  %10.4f  %5.1f%%  %8.1f  %7.1f\n", rows[k].op, phase_name(rows[k].phase), rows[k].kernel,
                 (unsigned long long)rows[k].runs, rows[k].seconds, 100 * rows[k].seconds / MAX(total, 1e-12),
                 rows[k].flops / MAX(rows[k].seconds, 1e-12) / 1e9, rows[k].bytes / MAX(rows[k].seconds, 1e-12) / 1e9);
    text_put(&t, "%-19s  %-11s  %-14s  %8s  %10.4f\n", "all", "", "", "", total);
    mem_free(rows);
    ls_status st = text_status(&t);
    if (st == LS_OK)
        *text = t.data;
    else
        text_free(&t);
    return st;
}
