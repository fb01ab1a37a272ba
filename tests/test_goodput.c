/* test_goodput.c - days of a job compared with a second simulation that advances one step at a time, with closed forms, and with the
 * published figures of a run of 54 days. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "helper_check.h"
#include "plan/goodput.h"

enum { STOPS_MOST = 4096 };

struct stops {
    double at[STOPS_MOST];
    enum failure_kind kind[STOPS_MOST];
    int count;
};

static void note_stop(void *ctx, enum goodput_event e, enum failure_kind kind, double at, int64_t steps)
{
    struct stops *s = ctx;

    (void)steps;
    if (e != EVENT_STOP) return;
    assert_true(s->count < STOPS_MOST);
    s->at[s->count] = at;
    s->kind[s->count++] = kind;
}

static struct goodput_job small_job(void)
{
    return (struct goodput_job){ .seconds = 40000,
                                 .step = 7,
                                 .every = 30,
                                 .stall = 11,
                                 .write = 60,
                                 .read = 13,
                                 .detect = 20,
                                 .restart = 50,
                                 .repair = 4000,
                                 .spares = -1,
                                 .rate[FAILURE_PROCESSOR] = 1.0 / 900,
                                 .rate[FAILURE_SOFTWARE] = 1.0 / 2000 };
}

static double goodput_total(const struct goodput *g) { return g->trained + g->again + g->saved + g->down + g->waited; }

/* ---- one step at a time ---- */

struct naive {
    const struct goodput_job *j;
    const struct stops *stops;
    int next;
    double now, written;
    int64_t done, complete, writing;
    double trained, again, saved, down;
};

static double next_stop(const struct naive *n) { return n->next < n->stops->count ? n->stops->at[n->next] : INFINITY; }

/* Time until `until`, cut at the next failure and the end of the job. */
static bool naive_pass(struct naive *n, double until, double *account)
{
    double to = fmin(fmin(until, next_stop(n)), n->j->seconds);

    *account += to - n->now;
    n->now = to;
    return to == until;
}

static void naive_complete(struct naive *n)
{
    if (n->written <= n->now) n->complete = n->writing;
}

static void naive_fail(struct naive *n)
{
    double restart = n->j->detect + n->j->restart;

    naive_complete(n);
    n->trained -= (double)(n->done - n->complete) * n->j->step;
    n->again += (double)(n->done - n->complete) * n->j->step;
    n->done = n->writing = n->complete;
    n->written = n->now; /* the checkpoint being written is incomplete, and nothing waits for it */
    if (n->complete > 0) restart += n->j->read;
    do n->next++;
    while (!naive_pass(n, n->now + restart, &n->down) && n->now < n->j->seconds);
}

static void naive_play(struct naive *n)
{
    while (n->now < n->j->seconds) {
        double part = 0;

        if (!naive_pass(n, n->now + n->j->step, &part)) {
            *(n->now < n->j->seconds ? &n->again : &n->trained) += part;
            if (n->now < n->j->seconds) naive_fail(n);
            continue;
        }
        n->trained += part;
        n->done++;
        if (n->done % n->j->every) continue;
        if (n->written > n->now && !naive_pass(n, n->written, &n->saved)) {
            if (n->now < n->j->seconds) naive_fail(n);
            continue;
        }
        naive_complete(n);
        if (!naive_pass(n, n->now + n->j->stall, &n->saved)) {
            if (n->now < n->j->seconds) naive_fail(n);
            continue;
        }
        n->writing = n->done;
        n->written = n->now + n->j->write;
    }
}

static void equals_one_step_at_a_time(void **state)
{
    (void)state;
    for (int i = 0; i < 300; i++) {
        struct goodput_job j = small_job();
        struct stops stops = { 0 };
        struct goodput g;

        j.seed = (uint64_t)i;
        j.write = i % 3 == 0 ? 0 : i % 3 == 1 ? 60 : 400; /* the last longer than the interval */
        j.every = 1 + i % 50;
        OK(goodput_play(&j, note_stop, &stops, &g));
        struct naive n = { .j = &j, .stops = &stops };
        naive_play(&n);
        assert_true(fabs(goodput_total(&g) - j.seconds) < 1e-6);
        if (fabs(g.trained - n.trained) > 1e-6 || fabs(g.again - n.again) > 1e-6 || fabs(g.saved - n.saved) > 1e-6 ||
            fabs(g.down - n.down) > 1e-6 || g.steps != n.done)
            fail_msg("seed %d: trained %.6f, again %.6f, saved %.6f, down %.6f, %lld steps; one at a time %.6f %.6f %.6f %.6f %lld", i,
                     g.trained, g.again, g.saved, g.down, (long long)g.steps, n.trained, n.again, n.saved, n.down, (long long)n.done);
    }
}

/* ---- closed forms ---- */

static void without_failures_only_checkpoints_cost(void **state)
{
    struct goodput_job j = { .seconds = 10 * 100 + 9 * 5 + 33, .step = 1, .every = 100, .stall = 5 };
    struct goodput g;
    int64_t best;

    (void)state;
    OK(goodput_play(&j, NULL, NULL, &g));
    assert_int_equal(g.checkpoints, 10);
    assert_true(g.saved == 50 && g.trained == 1000 + 28 && g.steps == 1028 && goodput_total(&g) == j.seconds);
    OK(goodput_best_every(&j, 3, &best));
    assert_int_equal(best, 1078); /* none */
    assert_true(isinf(goodput_daly(5, INFINITY)));
}

static void daly_is_near_the_best(void **state)
{
    struct goodput_job j = { .seconds = 30 * 86400, .step = 5, .stall = 40, .restart = 300, .spares = -1, .seed = 7 };
    double between = 3 * 3600, daly = goodput_daly(j.stall, between), mean[2] = { 0 };
    int64_t best, every[2];

    (void)state;
    /* Young's first-order formula and the terms after it. */
    assert_true(fabs(daly - (sqrt(2 * 40 * between) * (1 + sqrt(40 / (2 * between)) / 3 + 40 / (2 * between) / 9) - 40)) < 1e-9);
    j.rate[FAILURE_SOFTWARE] = 1 / between;
    OK(goodput_best_every(&j, 20, &best));
    every[0] = best, every[1] = (int64_t)(daly / j.step);
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < 20; r++) {
            struct goodput g;

            j.every = every[k];
            j.seed = 7 + (uint64_t)r;
            OK(goodput_play(&j, NULL, NULL, &g));
            mean[k] += g.trained / j.seconds / 20;
        }
    if (mean[0] < mean[1] - 1e-12 || mean[0] > mean[1] + 0.002)
        fail_msg("every %lld steps %.4f, by Daly's formula every %lld: %.4f", (long long)best, mean[0], (long long)every[1], mean[1]);
}

static void spares_end_the_waiting(void **state)
{
    struct goodput_job j = small_job();
    struct goodput none, few, enough;

    (void)state;
    j.seed = 3;
    j.spares = 0;
    OK(goodput_play(&j, NULL, NULL, &none));
    j.spares = 2;
    OK(goodput_play(&j, NULL, NULL, &few));
    j.spares = -1;
    OK(goodput_play(&j, NULL, NULL, &enough));
    assert_true(none.waited > few.waited && few.waited > 0 && enough.waited == 0);
    assert_true(enough.out > 2 && enough.trained > none.trained);
    j.spares = enough.out;
    OK(goodput_play(&j, NULL, NULL, &few));
    assert_true(few.waited == 0 && few.trained == enough.trained);
}

/* A planned stop loses no step. */
static void planned_stops_lose_nothing(void **state)
{
    struct goodput_job j = { .seconds = 50000, .step = 7, .every = 1000000, .stall = 10, .restart = 100, .spares = -1, .seed = 2 };
    struct goodput g;

    (void)state;
    j.rate[FAILURE_PLANNED] = 1.0 / 5000;
    OK(goodput_play(&j, NULL, NULL, &g));
    assert_true(g.stops[FAILURE_PLANNED] > 3 && g.again == 0);
    assert_true(fabs(goodput_total(&g) - j.seconds) < 1e-6);
}

/* Llama 3 (arXiv:2407.21783, table 5 and 3.3.4): 419 unexpected stops in 54 days on 16,384 GPUs; more than 90% effective training time. */
static void reproduces_54_days(void **state)
{
    enum { RUNS = 400 };
    struct goodput_job j = { .seconds = 54 * 86400, .step = 12, .every = 20, .stall = 2.4, .read = 2.4, .spares = -1 };
    double sum = 0, squares = 0, trained = 0;
    struct cluster c;

    (void)state;
    OK(cluster_read("h100-meta", &c));
    for (int k = 0; k < FAILURES; k++) j.rate[k] = 16384 * c.failures[k] / 3600;
    j.detect = c.detect;
    j.restart = c.restart;
    j.repair = c.repair;
    for (int r = 0; r < RUNS; r++) {
        struct goodput g;
        double stops = 0;

        j.seed = (uint64_t)r;
        OK(goodput_play(&j, NULL, NULL, &g));
        for (int k = 0; k < FAILURE_PLANNED; k++) stops += g.stops[k];
        sum += stops;
        squares += stops * stops;
        trained += g.trained / j.seconds / RUNS;
    }
    double mean = sum / RUNS, deviation = sqrt(squares / RUNS - mean * mean);
    printf("%.1f +- %.1f unexpected stops, %.1f%% effective training time\n", mean, deviation, 100 * trained);
    assert_true(fabs(mean - 419) < 4 && fabs(deviation - 20.5) < 2.5);
    assert_true(trained > 0.9 && trained < 0.95);
}

static void impossible_values_are_refused(void **state)
{
    struct goodput_job j = small_job();
    struct goodput g;

    (void)state;
    j.step = 0;
    REFUSED(LS_EINVAL, "a step's time is 0 s", goodput_play(&j, NULL, NULL, &g));
    j = small_job();
    j.every = 0;
    REFUSED(LS_EINVAL, "every 0 steps", goodput_play(&j, NULL, NULL, &g));
    j = small_job();
    j.stall = NAN;
    REFUSED(LS_EINVAL, "stall is nan", goodput_play(&j, NULL, NULL, &g));
    j = small_job();
    j.rate[FAILURE_HOST] = -1;
    REFUSED(LS_EINVAL, "kind host", goodput_play(&j, NULL, NULL, &g));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_one_step_at_a_time), cmocka_unit_test(without_failures_only_checkpoints_cost),
        cmocka_unit_test(daly_is_near_the_best),     cmocka_unit_test(spares_end_the_waiting),
        cmocka_unit_test(planned_stops_lose_nothing), cmocka_unit_test(reproduces_54_days),
        cmocka_unit_test(impossible_values_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
