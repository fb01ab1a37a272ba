/* Z6 - with the optimizer state in CPU memory or in a file, more fits and a step is slower: each step loads the state and stores it
 * again. (An accelerator has a memory of its own; here CPU memory is the device's memory, counted separately, and only the file
 * makes room.) The weights have the same bits. The lab counts what makes it slower: the bytes that this process reads and writes in a
 * step (/proc/self/io). Seconds are printed but not compared: so small a state stays in the page cache. */
#include "lab_train.h"

enum { STEPS = 5 };

struct found { ls_cost cost; double seconds, read, written; uint64_t hash; size_t elements; };  /* read, written: bytes of a step */

/* Bytes that this process has read from files and written to them. */
static void offload_moved(double *in, double *out)
{
    FILE *f = fopen("/proc/self/io", "r");

    *in = *out = NAN;
    if (f && fscanf(f, "rchar: %lf wchar: %lf", in, out) != 2) *in = *out = NAN;
    if (f) fclose(f);
}

static void offload_run(ls_comm *comm, int rank, int n, void *shared)
{
    static const ls_offload where[] = { LS_OFFLOAD_NONE, LS_OFFLOAD_CPU, LS_OFFLOAD_FILE };
    struct found *f = (struct found *)shared + 3 * rank;
    struct job j = job_of(4, 64);

    j.samples = 24 / n * n;
    j.type = LS_BF16;
    j.data.zero = 1;
    j.data.bucket_bytes = j.data.first_bucket_bytes = 100000;
    for (int k = 0; k < 3; k++) {
        double before[2], after[2];
        struct training t;

        j.data.offload = where[k];
        j.data.offload_path = k == 2 ? "/tmp" : NULL;
        training_open(&j, comm, 0, &t);
        training_step(&t, 0);
        offload_moved(&before[0], &before[1]);
        f[k].seconds = -seconds_now();
        for (int s = 1; s < STEPS; s++) training_step(&t, s);
        f[k].seconds += seconds_now();
        offload_moved(&after[0], &after[1]);
        f[k].read = (after[0] - before[0]) / (STEPS - 1);
        f[k].written = (after[1] - before[1]) / (STEPS - 1);
        f[k].cost = ls_program_cost(t.program);
        f[k].hash = training_hash(&t);
        f[k].elements = ls_store_elements(t.store);
        training_close(&t);
    }
}

static size_t within(const ls_cost *c) { return c->parameters + c->gradients + c->optimizer + c->communication; }

LAB(z6_offload, "offload", { "ranks", "data-parallel ranks, which shard the state", 2, 1, 8 })
{
    int ranks = (int)lab_size("ranks");
    static const char *const name[] = { "in place", "processor", "file" };
    struct found *f = lab_shared(3 * (size_t)ranks * sizeof *f);
    double state, all = 0;
    char what[80];

    lab_ranks(ranks, offload_run, f);
    lab_say("rank 0 of %d, bf16, ZeRO-1, bytes\n%12s %12s %12s %12s %14s %12s %12s\n", ranks, "states", "parameters", "gradients",
           "optimizer", "communication", "other memory", "seconds");
    for (int k = 0; k < 3; k++)
        lab_say("%12s %12zu %12zu %12zu %14zu %12zu %12.4f\n", name[k], f[k].cost.parameters, f[k].cost.gradients,
               f[k].cost.optimizer, f[k].cost.communication, f[k].cost.offload, f[k].seconds);
    lab_say("\n");
    state = (double)f[0].cost.optimizer;
    lab_open("Z6");
    for (int r = 0; r < ranks; r++) all += (double)f[3 * r].cost.optimizer;
    lab_check("in place: master, momentum, variance, all ranks: 12 N [bytes]", 12 * (double)f[0].elements, all, 0);
    for (int k = 1; k < 3; k++) {
        snprintf(what, sizeof what, "%s: optimizer state on the device [bytes]", name[k]);
        lab_equal(what, 0, (double)f[k].cost.optimizer, 0);
        lab_check("       in other memory [bytes]", k == 1 ? state : 0, (double)f[k].cost.offload, 0);
        lab_below("       more fits: bytes on the device / in place", 1, (double)within(&f[k].cost) / (double)within(&f[0].cost));
        lab_check("       weights that differ from in place", 0, f[k].hash != f[0].hash, 0);
    }
    if (isfinite(f[2].read)) {
        lab_above("slower: read from the file in a step [bytes]", 0, f[2].read - f[0].read);
        lab_equal("       all the state, once [bytes]", state, f[2].read - f[0].read, 0.01);
        lab_equal("       written back in a step, all the state once [bytes]", state, f[2].written - f[0].written, 0.01);
        snprintf(what, sizeof what, "%d ranks: each reads in a step, 12/K [bytes per parameter]", ranks);
        lab_check(what, 12.0 / ranks, (f[2].read - f[0].read) / (double)f[0].elements, 0.01);
    } else {
        lab_not_measurable("bytes that a step reads and writes", "why: /proc/self/io cannot be read here");
    }
    lab_not_measurable("slower: seconds per step",
                       "why: the file stays in the page cache, and the CPU's memory is the device's here; needs an accelerator on a bus, "
                       "or a state larger than memory. The bytes per step are fixed, so they matter less in a large batch");
    return lab_close();
}
