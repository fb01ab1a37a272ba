/* prices.c - how long a search takes to price a layout once the patterns that it is made of are compiled.
 *
 *     ninja -C build bench_prices && build/bench_prices MACHINE RANKS SAMPLES OPTIONS
 *
 * prices the layouts that ls_layout_check() accepts of: tp 1 to 8 with and without sequence parallelism, every pp, dp as what is left,
 * ZeRO 0 to 3, micro-batches of 1, 2 and 4, recomputation none, selective and full, all schedules of a search. The first pass compiles; of
 * the later ones the medians are printed, of the process's seconds on the processor. Then a search over all its layouts is run three times
 * with the same patterns. OPTIONS: of the model, as "section.key=value ...".
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/base.h"
#include "helper_plan.h"
#include "parallel/layout.h"
#include "train/plan/prices.h"
#include "train/plan/search.h"

enum { LAYOUTS_MOST = 1 << 18, PASSES = 9, CHUNKS_MOST = 8 };

static ls_layout layout[LAYOUTS_MOST];
static int layouts;

static double processor_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void add_layout(const struct plan_setup *s, const ls_layout *l)
{
    if (layouts < LAYOUTS_MOST && ls_layout_check(task_transformer(s->job.model), l) == LS_OK) layout[layouts++] = *l;
}

static void add_schedules(const struct plan_setup *s, ls_layout l)
{
    static const struct {
        const char *name;
        int least, most;
    } schedule[] = { { "1f1b", 1, 1 }, { "interleaved", 2, CHUNKS_MOST }, { "zb-h1", 1, 1 }, { "zb-v", 2, 2 } };

    l.vpp = 1;
    l.schedule = NULL;
    if (l.pp == 1) add_layout(s, &l);
    for (size_t i = 0; l.pp > 1 && i < COUNT_OF(schedule); i++) {
        l.schedule = schedule[i].name;
        for (l.vpp = schedule[i].least; l.vpp <= schedule[i].most; l.vpp++) add_layout(s, &l);
    }
}

static void add_choices(const struct plan_setup *s, ls_layout l, int samples)
{
    static const ls_recompute mode[] = { LS_RECOMPUTE_NONE, LS_RECOMPUTE_SELECTIVE, LS_RECOMPUTE_FULL };

    for (l.sp = 0; l.sp <= (l.tp > 1); l.sp++)
        for (size_t k = 0; k < COUNT_OF(mode); k++)
            for (l.micro_batch = 1; l.micro_batch <= 4; l.micro_batch *= 2)
                for (l.zero = 0; l.zero <= (l.dp > 1 ? 3 : 0); l.zero++) {
                    if (samples % l.micro_batch) continue;
                    l.micro_batches = samples / l.micro_batch;
                    l.recompute = mode[k];
                    add_schedules(s, l);
                }
}

static void add_all(const struct plan_setup *s, int ranks, int samples)
{
    ls_layout l = s->layout;

    for (l.tp = 1; l.tp <= 8; l.tp *= 2)
        for (l.pp = 1; l.pp * l.tp <= ranks; l.pp++) {
            if (ranks % (l.tp * l.pp)) continue;
            l.dp = ranks / l.tp / l.pp;
            if (samples % l.dp == 0) add_choices(s, l, samples / l.dp);
        }
}

/* *timed: layouts that fit into `room` bytes. Returns the seconds of all; < 0: one failed. */
static double price_all(struct prices *p, double room, int *timed)
{
    double began = processor_seconds(), shortest = INFINITY;
    struct price x;

    *timed = 0;
    for (int i = 0; i < layouts; i++) {
        if (prices_price(p, &layout[i], room, room < INFINITY ? shortest : INFINITY, &x) < 0) return -1;
        if (!(x.seconds < INFINITY)) continue;
        ++*timed;
        if (!x.bounded && x.seconds < shortest) shortest = x.seconds;
    }
    return processor_seconds() - began;
}

static int compare_seconds(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static int print_passes(struct prices *p, const char *name, double room)
{
    double seconds[PASSES];
    int timed = 0;

    for (int k = 0; k < PASSES; k++)
        if ((seconds[k] = price_all(p, room, &timed)) < 0) return 1;
    qsort(seconds, PASSES, sizeof *seconds, compare_seconds);
    printf("%-40s %6d timed  %6.2f us per layout (%.2f to %.2f)\n", name, timed, 1e6 * seconds[PASSES / 2] / layouts,
           1e6 * seconds[0] / layouts, 1e6 * seconds[PASSES - 1] / layouts);
    return 0;
}

/* Searches with the patterns that the searches before have compiled. */
static int print_searches(struct prices *p, const struct plan_setup *s, const struct cluster *c, int ranks, int samples)
{
    struct search_space space = { .ranks = ranks, .global = (size_t)samples, .room = c->memory, .base = s->layout, .prices = p };
    struct search_result *r = malloc(sizeof *r);

    for (int k = 0; r && k < 3; k++) {
        double began = processor_seconds();

        if (search_layouts(&s->job, c, &space, r) < 0) break;
        printf("a search of %" PRId64 " layouts: %.2f s, %d programs of patterns compiled; the best %d completely\n", r->checked,
               processor_seconds() - began, r->compiled, r->exact);
        if (k == 2) return free(r), 0;
    }
    free(r);
    return 1;
}

int main(int n, char **word)
{
    struct plan_setup s = { 0 };
    struct cluster c;
    struct prices *p;
    int timed;

    if (n != 5) return fprintf(stderr, "usage: bench_prices MACHINE RANKS SAMPLES OPTIONS\n"), 2;
    plan_setup_open(&s, word[4]);
    s.job.step.global = (size_t)atoi(word[3]);
    s.job.cluster = &c;
    if (cluster_read(word[1], &c) < 0) return fprintf(stderr, "%s\n", ls_errmsg()), 2;
    add_all(&s, atoi(word[2]), atoi(word[3]));
    if (layouts == 0) return fprintf(stderr, "ls_layout_check() accepts no layout of %s ranks and %s samples\n", word[2], word[3]), 2;
    if (prices_open(&s.job, &c, s.layout.seq_len, &p) < 0) return fprintf(stderr, "%s\n", ls_errmsg()), 1;
    double first = price_all(p, INFINITY, &timed);
    printf("%d layouts, %d programs compiled in %.1f s\n", layouts, prices_compiled(p), first);
    int failed = first < 0 || print_passes(p, "every layout to the end", INFINITY) ||
             print_passes(p, "as a search does, with the GPU's memory", c.memory) ||
             print_searches(p, &s, &c, atoi(word[2]), atoi(word[3]));
    prices_close(&p);
    options_close(&s.options);
    if (failed) fprintf(stderr, "%s\n", ls_errmsg());
    return failed;
}
