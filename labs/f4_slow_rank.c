/* F4 - one slow rank slows all, and is found although their step times are equal: it is the one that does not wait.
 *
 * Ranks compute nothing and all-reduce in every step; the last one comes only after all others have arrived, and 20 ms later. Every
 * rank leaves a step together with the slow one. What differs is the exposed time of its collectives, which the counters of the library
 * keep, and `lockstep train` writes for each rank with log.per_rank. No seconds are asserted: steps are counted in which one rank waits
 * longer than another, and most of them decide, so a step in which the machine stood still does not.
 *
 * Then `lockstep train` trains a model of the user's, in which debug.slow lets the last rank compute 200 ms longer in each step: the
 * steps of all ranks take equally long, and the slow one is found in the same way. */
#include <time.h>
#include "lab_runs.h"

enum { STEPS = 12, RANKS_MOST = 16, DELAY_MS = 20, TRAIN_STEPS = 6, TRAIN_MS = 200 };

struct slow {
    int arrived[STEPS];
    double exposed[RANKS_MOST][STEPS], seconds[RANKS_MOST];
    int last[RANKS_MOST]; /* steps in which all others had arrived before this rank */
};

/* In most of these steps `a` is longer than `b`. */
static int mostly_longer(const double *a, const double *b, int steps)
{
    int longer = 0;

    for (int k = 0; k < steps; k++) longer += a[k] > b[k];
    return 2 * longer > steps;
}

static double f4_sum_of(const double *a, int steps)
{
    double sum = 0;

    for (int k = 0; k < steps; k++) sum += a[k];
    return sum;
}

static double slow_clock(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void slow_rank(ls_comm *comm, int rank, int n, void *shared)
{
    struct slow *s = shared;
    double before = 0;
    float g = 1;

    TRY(ls_barrier(comm));
    double start = slow_clock();
    for (int k = 0; k < STEPS; k++) {
        if (rank == n - 1) {
            while (__atomic_load_n(&s->arrived[k], __ATOMIC_ACQUIRE) < n - 1) nanosleep(&(struct timespec){ 0, 500000 }, NULL);
            nanosleep(&(struct timespec){ 0, DELAY_MS * 1000000 }, NULL);
        }
        s->last[rank] += __atomic_add_fetch(&s->arrived[k], 1, __ATOMIC_ACQ_REL) == n;
        TRY(ls_all_reduce(comm, &g, &g, 1, LS_F32, LS_AVG, NULL));
        double exposed = ls_comm_counters(comm, LS_COLLECTIVE_ALL_REDUCE).exposed;
        s->exposed[rank][k] = exposed - before;
        before = exposed;
    }
    s->seconds[rank] = slow_clock() - start;
}

/* ---- in training ---- */

/* Of a rank, in the steps after the first, which warms up. */
enum { TRAIN_COUNTED = TRAIN_STEPS - 1 };
struct trained { double waited[TRAIN_COUNTED], computed[TRAIN_COUNTED], seconds[TRAIN_COUNTED]; };

static struct trained trained_read(const char *folder, int rank)
{
    struct trained t = { 0 };
    char file[64];

    snprintf(file, sizeof file, "metrics.rank_%04d.jsonl", rank);
    char *metrics = run_file(folder, "slow", file);
    for (int s = 0; s < TRAIN_COUNTED; s++) {
        t.waited[s] = run_number(metrics, s + 1, "time.exposed");
        t.computed[s] = run_number(metrics, s + 1, "time.compute");
        t.seconds[s] = run_number(metrics, s + 1, "step_seconds");
    }
    free(metrics);
    return t;
}

/* Steps of which the ranks' seconds differ by less than the slow rank computes in it. */
static int equal_steps(const struct trained *t, int n)
{
    int equal = 0;

    for (int s = 0; s < TRAIN_COUNTED; s++) {
        double longest = 0, shortest = INFINITY;

        for (int r = 0; r < n; r++) {
            longest = fmax(longest, t[r].seconds[s]);
            shortest = fmin(shortest, t[r].seconds[s]);
        }
        equal += longest - shortest < t[n - 1].computed[s];
    }
    return equal;
}

static void trained_rows(int n)
{
    struct trained t[RANKS_MOST];
    char folder[COMMAND_PATH], text[COMMAND_PATH + 16], what[100];
    int wait = 0, busy = 0;

    folder_new(folder);
    snprintf(text, sizeof text, "%s/text.txt", folder);
    folder_write_text(text);
    RUN_TRAIN(folder, "slow", "-n %d --train.micro_batch=1 --train.steps=%d --log.per_rank=true --debug.slow=compute:%d:%d", n, TRAIN_STEPS,
              n - 1, TRAIN_MS);
    lab_say("train, rank %d computes %d ms longer in each step\n  rank   computed [s]   waited [s]     all steps [s]\n", n - 1, TRAIN_MS);
    for (int r = 0; r < n; r++) {
        t[r] = trained_read(folder, r);
        lab_say("  %4d %14.3f %12.3f %19.3f\n", r, f4_sum_of(t[r].computed, TRAIN_COUNTED), f4_sum_of(t[r].waited, TRAIN_COUNTED),
                f4_sum_of(t[r].seconds, TRAIN_COUNTED));
    }
    for (int r = 0; r < n - 1; r++) {
        wait += mostly_longer(t[r].waited, t[n - 1].waited, TRAIN_COUNTED);
        busy += !mostly_longer(t[n - 1].computed, t[r].computed, TRAIN_COUNTED);
    }
    folder_remove(folder);
    lab_say("\n");
    snprintf(what, sizeof what, "train, %d ms on one of %d ranks: the rank that waits least is the slow one", TRAIN_MS, n);
    lab_equal(what, 1, wait == n - 1, 0);
    lab_equal("       ranks that wait longer than it", n - 1, wait, 0);
    lab_check("       ranks that compute as long as it", 0, busy, 0);
    lab_check_above("       steps are equally long, to what it computes: steps of which that is so / half of all", 1,
                    2.0 * equal_steps(t, n) / TRAIN_COUNTED);
}

LAB_TRAINS(f4_slow_rank, "model data optim", "one slow rank", { "ranks", "ranks, of which the last is slow", 8, 2, RANKS_MOST })
{
    struct slow *s = lab_shared(sizeof *s);
    int n = (int)lab_size("ranks"), wait = 0, late = 0;

    lab_ranks(n, slow_rank, s);
    lab_say("%d steps, rank %d is %d ms late in each\n  rank   seconds   of which it waited\n", STEPS, n - 1, DELAY_MS);
    for (int r = 0; r < n; r++) {
        lab_say("  %4d %9.3f %9.3f\n", r, s->seconds[r], f4_sum_of(s->exposed[r], STEPS));
        wait += mostly_longer(s->exposed[r], s->exposed[n - 1], STEPS);
        late += r < n - 1 ? s->last[r] : 0;
    }
    lab_say("\n");
    lab_open("F4");
    lab_check("steps in which the slow rank comes last", STEPS, s->last[n - 1], 0);
    lab_check("steps in which another one comes last", 0, late, 0);
    lab_equal("the rank that waits least is the slow one", 1, wait == n - 1, 0);
    lab_equal("ranks that wait longer than the slow one", n - 1, wait, 0);
    lab_unshare(s, sizeof *s);
    trained_rows(n);
    return lab_close();
}
