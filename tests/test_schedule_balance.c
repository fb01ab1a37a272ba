/* test_schedule_balance.c - simulated times of pipeline schedules, and the balance of stages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "lockstep/pipeline.h"
#include "parallel/pipeline/sequence.h"

/* ---- times ---- */

/* Two stages, F 1 and 2, B 3 and 4, a message 0.5, two micro-batches of gpipe, by hand. */
static void simulated_times_equal_hand_computed(void **state)
{
    static const double want[2][4] = { { 0, 1, 9.5, 13.5 }, { 1.5, 3.5, 5.5, 9.5 } };
    ls_pipeline_times t = { .forward = (double[]){ 1, 2 }, .backward = (double[]){ 3, 4 }, .message = 0.5 };
    ls_pipeline_schedule s;
    ls_pipeline_timeline p;

    (void)state;
    assert_int_equal(ls_pipeline_schedule_make("gpipe", 2, 1, 2, &s), LS_OK);
    /* rank 0's second backward waits for rank 1's, which ends at 13.5, and the message */
    assert_int_equal(ls_pipeline_play(&s, &t, &p), LS_OK);
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < 4; i++)
            if (r || i < 2) assert_true(p.begin[r][i] == want[r][i]);
    assert_true(p.begin[0][2] == 10 && p.begin[0][3] == 14);
    assert_true(p.seconds == 17);
    assert_true(fabs(p.bubble - (34.0 - 8 - 12) / 34) < 1e-15);
    ls_pipeline_played_free(&s, &p);
    t.message = -1;
    assert_int_equal(ls_pipeline_play(&s, &t, &p), LS_EINVAL);
    t = (ls_pipeline_times){ .forward = (double[]){ 1, NAN }, .backward = (double[]){ 3, 4 } };
    assert_int_equal(ls_pipeline_play(&s, &t, &p), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "seconds of F on stage 1"));
    ls_pipeline_schedule_free(&s);
    assert_int_equal(ls_pipeline_schedule_make("zb-h1", 2, 1, 2, &s), LS_OK);
    t.forward = t.backward;
    assert_int_equal(ls_pipeline_play(&s, &t, &p), LS_EINVAL);       /* no weights */
    assert_non_null(strstr(ls_errmsg(), "seconds of W on stage 0"));
    ls_pipeline_schedule_free(&s);
}

/* Every named schedule with uneven times: its sequence takes as long, bit for bit. */
static void sequences_take_as_long(void **state)
{
    static const int size[][3] = { { 2, 1, 2 }, { 4, 1, 7 }, { 3, 2, 6 }, { 4, 4, 8 }, { 5, 2, 10 }, { 1, 1, 3 }, { 4, 2, 1 } };
    enum { MOST = 16 };
    uint32_t seed = 1;
    int played = 0;

    (void)state;
    for (int k = 0; ls_pipeline_schedule_name(k); k++)
        for (size_t i = 0; i < sizeof size / sizeof size[0]; i++) {
            double seconds[2][3 * MOST];
            int stages = size[i][0] * size[i][1];
            ls_pipeline_schedule s;
            ls_pipeline_timeline p;
            struct sequence q;

            if (ls_pipeline_schedule_make(ls_pipeline_schedule_name(k), size[i][0], size[i][1], size[i][2], &s) < 0) continue;
            for (int n = 0; n < 6 * MOST; n++) seconds[n / (3 * MOST)][n % (3 * MOST)] = (double)(seed = seed * 1664525 + 1013904223) / 7e8;
            ls_pipeline_times t = { seconds[0], seconds[0] + stages, seconds[0] + 2 * stages, 0.3,
                                    { seconds[1], seconds[1] + stages, seconds[1] + 2 * stages } };
            assert_int_equal(ls_pipeline_play(&s, &t, &p), LS_OK);
            assert_int_equal(sequence_make(&s, &q), LS_OK);
            for (int again = 0; again < 2; again++) {
                double got = sequence_play(&q, (const double *const[]){ seconds[0], seconds[1] }, 0.3);
                if (got != p.seconds) fail_msg("%s of %d stages: %.17g, not %.17g", s.name, stages, got, p.seconds);
            }
            played++;
            sequence_free(&q);
            ls_pipeline_played_free(&s, &p);
            ls_pipeline_schedule_free(&s);
        }
    assert_in_range(played, 20, 100);
}

/* One expensive stage determines the time: M times its work, and the way there and back. */
static void slowest_stage_sets_the_pace(void **state)
{
    double f[4] = { 1, 1, 3, 1 }, b[4] = { 2, 2, 6, 2 };
    ls_pipeline_times t = { .forward = f, .backward = b };
    ls_pipeline_schedule s;
    ls_pipeline_timeline p;

    (void)state;
    assert_int_equal(ls_pipeline_schedule_make("1f1b", 4, 1, 64, &s), LS_OK);
    assert_int_equal(ls_pipeline_play(&s, &t, &p), LS_OK);
    assert_true(p.seconds >= 64 * 9 + 2 + 2 * 2 && p.seconds <= 64 * 9 + 9);
    ls_pipeline_played_free(&s, &p);
    ls_pipeline_schedule_free(&s);
}

/* ---- balance ---- */

static double dearest(int blocks, const double *cost, double before, double after, int stages, const int *begin)
{
    double most = 0;

    for (int k = 0; k < stages; k++) {
        double sum = (k == 0 ? before : 0) + (k == stages - 1 ? after : 0);

        for (int i = begin[k]; i < begin[k + 1]; i++) sum += cost[i];
        most = fmax(most, sum);
    }
    assert_int_equal(begin[stages], blocks);
    return most;
}

/* The best of all possible stages. */
static double brute(int blocks, const double *cost, double before, double after, int stages, int *begin, int k)
{
    double best = INFINITY;

    if (k == stages) {
        begin[k] = blocks;
        return begin[k - 1] < blocks ? dearest(blocks, cost, before, after, stages, begin) : INFINITY;
    }
    for (begin[k] = k ? begin[k - 1] + 1 : 0; begin[k] < blocks; begin[k]++) {
        best = fmin(best, brute(blocks, cost, before, after, stages, begin, k + 1));
        if (k == 0) break;
    }
    return best;
}

static void balance_is_optimal(void **state)
{
    unsigned seed = 1;
    int begin[16], other[16];

    (void)state;
    for (int trial = 0; trial < 300; trial++) {
        double cost[10], before = 0, after = 0;
        int blocks = 1 + trial % 10, stages = 1 + (trial / 10) % blocks;

        for (int i = 0; i < blocks; i++) cost[i] = (double)((seed = seed * 1103515245u + 12345u) >> 16 & 15);
        if (trial % 3) before = cost[0] / 2, after = 3 * cost[blocks - 1];
        assert_int_equal(ls_pipeline_balance(blocks, cost, before, after, stages, begin), LS_OK);
        assert_int_equal(begin[0], 0);
        for (int k = 0; k < stages; k++) assert_true(begin[k] < begin[k + 1]);
        double have = dearest(blocks, cost, before, after, stages, begin), best = brute(blocks, cost, before, after, stages, other, 0);
        if (have != best) fail_msg("%d blocks, %d stages: %g, the best is %g", blocks, stages, have, best);
    }
}

/* Equal blocks: as even as possible, also among the stages that do not limit the time; a stage with the output layer has fewer blocks. */
static void balance_of_usual_models(void **state)
{
    double one[12];
    int b[8];

    (void)state;
    for (int i = 0; i < 12; i++) one[i] = 1;
    assert_int_equal(ls_pipeline_balance(12, one, 0, 0, 4, b), LS_OK);
    for (int k = 0; k <= 4; k++) assert_int_equal(b[k], 3 * k);
    assert_int_equal(ls_pipeline_balance(9, one, 0, 0, 4, b), LS_OK);
    int twos = 0;
    for (int k = 0; k < 4; k++) twos += b[k + 1] - b[k] == 2;
    assert_int_equal(twos, 3);
    assert_int_equal(ls_pipeline_balance(12, one, 0.5, 3, 4, b), LS_OK);
    assert_int_equal(b[4] - b[3], 1);
    assert_int_equal(ls_pipeline_balance(3, one, 0, 0, 4, b), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "3 blocks cannot be divided into 4 stages: every stage needs a block; use at most 3 stages"));
    one[1] = -1;
    assert_int_equal(ls_pipeline_balance(3, one, 0, 0, 2, b), LS_EINVAL);
    one[1] = 1e300;
    assert_int_equal(ls_pipeline_balance(3, one, 0, 0, 2, b), LS_OK);
    assert_int_equal(ls_pipeline_balance(3, (double[]){ 0, 0, 0 }, 0, 0, 3, b), LS_OK);
    assert_true(b[1] == 1 && b[2] == 2 && b[3] == 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simulated_times_equal_hand_computed),
        cmocka_unit_test(sequences_take_as_long),
        cmocka_unit_test(slowest_stage_sets_the_pace),
        cmocka_unit_test(balance_is_optimal),
        cmocka_unit_test(balance_of_usual_models),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
