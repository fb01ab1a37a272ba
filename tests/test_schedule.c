/* test_schedule.c - pipeline schedules: lists compared with closed forms, and the validator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/base.h"
#include "helper_schedule.h"
#include "lockstep/pipeline.h"
#include "lockstep/program.h"

static void expect_lists(const char *name, int stages, int chunks, int micro, const char *want)
{
    ls_pipeline_schedule s;
    char have[2048];

    assert_int_equal(ls_pipeline_schedule_make(name, stages, chunks, micro, &s), LS_OK);
    schedule_text(&s, have, sizeof have);
    assert_string_equal(have, want);
    ls_pipeline_schedule_free(&s);
}

/* As their papers draw them. */
static void small_schedules_are_exact(void **state)
{
    (void)state;
    expect_lists("gpipe", 2, 1, 2, "F0.0 F0.1 B0.0 B0.1 | F0.0 F0.1 B0.0 B0.1");
    expect_lists("1f1b", 3, 1, 4,
                 "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3 | F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3 | "
                 "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3");
    expect_lists("interleaved", 2, 2, 2,
                 "F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1 | F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 B0.0 B0.1");
    expect_lists("zb-h1", 2, 1, 3,
                 "F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2 | F0.0 B0.0 F0.1 B0.1 W0.0 F0.2 B0.2 W0.1 W0.2");
    expect_lists("zb-v", 2, 2, 3,
                 "F0.0 F0.1 F0.2 F1.0 B1.0 W1.0 F1.1 B1.1 W1.1 B0.0 W0.0 F1.2 B1.2 W1.2 B0.1 W0.1 B0.2 W0.2 | "
                 "F0.0 F1.0 F0.1 F1.1 B1.0 W1.0 F0.2 B0.0 W0.0 F1.2 B1.1 W1.1 B0.1 B1.2 B0.2 W0.1 W1.2 W0.2");
    expect_lists("forward", 2, 2, 2, "F0.0 F0.1 F1.0 F1.1 | F0.0 F0.1 F1.0 F1.1");
    expect_lists("forward-v", 2, 2, 2, "F0.0 F0.1 F1.0 F1.1 | F0.0 F1.0 F0.1 F1.1");
}

/* ---- every schedule, many sizes ---- */

/* Micro-batches in flight on a rank, all chunks together, as documented. */
static int flying(const char *name, int P, int v, int M, int r)
{
    int rounds = MAX(1, M / P), round = (M + rounds - 1) / rounds;

    if (strcmp(name, "gpipe") == 0) return M;
    if (strcmp(name, "1f1b") == 0 || (strcmp(name, "interleaved") == 0 && v == 1)) return MIN(M, P - r);
    if (strcmp(name, "interleaved") == 0) return MIN(v * M, (v - 1) * round + 2 * (P - 1 - r) + 1);
    if (strcmp(name, "zb-h1") == 0) return MIN(M, P);
    if (strcmp(name, "zb-v") == 0) return MIN(2 * M, 2 * P);
    return 1;
}

static int peak(const ls_pipeline_schedule *s, int rank)
{
    ls_action_kind last = s->split ? LS_ACTION_WEIGHTS : s->backward ? LS_ACTION_BACKWARD : LS_ACTION_FORWARD;
    int now = 0, most = 0;

    for (int i = 0; i < s->count[rank]; i++) {
        now += s->list[rank][i].kind == LS_ACTION_FORWARD;
        most = MAX(most, now);
        now -= s->list[rank][i].kind == last;
    }
    return most;
}

static void check_one(const char *name, int P, int v, int M)
{
    ls_pipeline_schedule s;
    ls_pipeline_timeline p;

    assert_int_equal(ls_pipeline_schedule_make(name, P, v, M, &s), LS_OK);
    if (ls_pipeline_schedule_check(&s) < 0) fail_msg("%s", ls_errmsg());
    for (int r = 0; r < P; r++) {
        int sum = 0;

        assert_int_equal(s.count[r], M * v * (1 + s.backward + s.split));
        if (s.split && v == 2 ? peak(&s, r) > flying(name, P, v, M, r) : peak(&s, r) != flying(name, P, v, M, r))
            fail_msg("%s P %d v %d M %d: rank %d has %d in flight, not %d", name, P, v, M, r, peak(&s, r), flying(name, P, v, M, r));
        for (int c = 0; c < v; c++) {
            int chunk = -1, stage = ls_pipeline_stage(&s, r, c), slots = ls_pipeline_schedule_slots(&s, r, c);

            assert_int_equal(ls_pipeline_rank(&s, stage, &chunk), r);
            assert_int_equal(chunk, c);
            assert_in_range(slots, 1, peak(&s, r));
            sum += slots;
        }
        assert_true(sum >= peak(&s, r));
    }
    assert_int_equal(ls_pipeline_play(&s, NULL, &p), LS_OK);
    double ideal = (double)(s.backward ? 3 : 1) * v * M; /* time of a rank that never waits */
    double closed = ls_pipeline_bubble(&s);
    assert_true(p.bubble == (p.seconds - ideal) / p.seconds || fabs(p.bubble - (p.seconds - ideal) / p.seconds) < 1e-15);
    if (p.seconds != round(ideal / (1 - closed)) || fabs(p.bubble - closed) > 1e-15)
        fail_msg("%s P %d v %d M %d: played %g s, bubble %.17g; closed form %.17g", name, P, v, M, p.seconds, p.bubble, closed);
    ls_pipeline_played_free(&s, &p);
    ls_pipeline_schedule_free(&s);
}

static void every_schedule_is_valid(void **state)
{
    int named = 0;

    (void)state;
    for (; ls_pipeline_schedule_name(named); named++)
        for (int P = 1; P <= 8; P++)
            for (int M = 1; M <= 32; M++)
                for (int v = 1; v <= 4; v++) {
                    const char *name = ls_pipeline_schedule_name(named);
                    bool any = strcmp(name, "interleaved") == 0 || strcmp(name, "forward") == 0, two = strstr(name, "-v") != NULL;

                    if (any || v == 1 + two) check_one(name, P, v, M);
                }
    assert_int_equal(named, 7);
}

/* Figures that are often quoted. */
static void published_bubbles_are_reproduced(void **state)
{
    ls_pipeline_schedule s;

    (void)state;
    assert_int_equal(ls_pipeline_schedule_make("1f1b", 4, 1, 16, &s), LS_OK);
    assert_true(fabs(ls_pipeline_bubble(&s) - 3.0 / 19) < 1e-15);
    ls_pipeline_schedule_free(&s);
    assert_int_equal(ls_pipeline_schedule_make("zb-h1", 4, 1, 16, &s), LS_OK);
    assert_true(fabs(ls_pipeline_bubble(&s) - 3.0 / 51) < 1e-15);    /* 3 idle seconds; 1f1b: 9 of 57 */
    ls_pipeline_schedule_free(&s);
    assert_int_equal(ls_pipeline_schedule_make("interleaved", 4, 2, 16, &s), LS_OK);
    assert_true(fabs(ls_pipeline_bubble(&s) - 3.0 / 35) < 1e-15);
    snprintf(s.name, sizeof s.name, "mine");
    assert_true(isnan(ls_pipeline_bubble(&s)));
    ls_pipeline_schedule_free(&s);
}

static void impossible_sizes_are_refused(void **state)
{
    ls_pipeline_schedule s;

    (void)state;
    assert_int_equal(ls_pipeline_schedule_make("1f1b", 4, 2, 8, &s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "parallel.schedule=1f1b with parallel.vpp=2: this schedule has 1 chunk per rank; "
                                        "use parallel.vpp=1, or interleaved for several chunks"));
    assert_int_equal(ls_pipeline_schedule_make("zb-v", 4, 1, 8, &s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "parallel.schedule=zb-v with parallel.vpp=1: this schedule has 2 chunks per rank; use "
                                        "parallel.vpp=2"));
    assert_int_equal(ls_pipeline_schedule_make("zbv", 4, 2, 8, &s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "parallel.schedule=zbv does not exist; use gpipe, "));
    assert_int_equal(ls_pipeline_schedule_make("gpipe", 0, 1, 8, &s), LS_EINVAL);
    assert_int_equal(ls_pipeline_schedule_make("gpipe", 4, 1, 0, &s), LS_EINVAL);
    assert_int_equal(ls_pipeline_schedule_make("interleaved", 4, 0, 1, &s), LS_EINVAL);
    assert_int_equal(ls_pipeline_schedule_make("interleaved", 1 << 20, 1 << 10, 1 << 20, &s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "too many"));
}

/* ---- the validator ---- */

static void invalid_schedules_are_refused(void **state)
{
    (void)state;
    schedule_refused(SCHEDULE_TWO_RANKS "0: F0.0 F0.1 B0.0\n1: F0.0 B0.0 F0.1 B0.1\n", LS_EINVAL, "rank 0 never runs B0.1");
    schedule_refused(SCHEDULE_TWO_RANKS "0: F0.0 F0.0 B0.0 B0.1\n1: F0.0 B0.0 F0.1 B0.1\n", LS_EINVAL,
                     "rank 0, action 1 (F0.0): it has run before");
    schedule_refused(SCHEDULE_TWO_RANKS "0: F0.0 F0.1 B0.0 B0.1\n1: B0.0 F0.0 F0.1 B0.1\n", LS_EINVAL,
                     "rank 1, action 0 (B0.0): its forward has not run yet");
    schedule_refused(SCHEDULE_TWO_RANKS "0: F0.0 F0.1 B0.0 B0.1 W0.0 W0.1\n1: F0.0 W0.0 B0.0 F0.1 B0.1 W0.1\n", LS_EINVAL,
               "rank 1, action 1 (W0.0): its backward has not run yet");
    schedule_refused(SCHEDULE_TWO_RANKS "0: F0.0 F0.1 B0.0 W0.0 B0.1\n1: F0.0 B0.0 W0.0 F0.1 B0.1 W0.1\n", LS_EINVAL,
                     "rank 0 never runs W0.1");
    schedule_refused(SCHEDULE_TWO_RANKS "0: F0.0 F0.1 B0.0 B0.1\n1: F0.1 B0.1 F0.0 B0.0\n", LS_EINVAL,
               "rank 1, action 0 (F0.1) receives out of order: rank 0 sends the message for F0.0 first (its action 0)");
    schedule_refused(SCHEDULE_TWO_RANKS "0: F0.0 F0.1 B0.0 B0.1\n1: F0.0 F0.1 B0.1 B0.0\n", LS_EINVAL,
               "rank 0, action 2 (B0.0) receives out of order: rank 1 sends the message for B0.1 first (its action 2)");
    schedule_refused(SCHEDULE_TWO_RANKS "0: F0.0 B0.0 F0.1 B0.1\n1: F0.0 F0.1 B0.0 B0.1\n", LS_EINVAL,
               "deadlock: 2 of 2 ranks wait forever: rank 0 at its action 1 (B0.0) for rank 1, rank 1 at its action 1 (F0.1) for rank 0");
    schedule_refused("stages 1 chunks 2 micro 1 order loop\n0: F1.0 F0.0 B1.0 B0.0\n", LS_EINVAL, "deadlock: 1 of 1 ranks");
    schedule_refused("stages 2 chunks 3 micro 1 order v\n0: F0.0 F1.0 F2.0\n1: F0.0 F1.0 F2.0\n", LS_EINVAL, "2 chunks per rank, not 3");
}

/* Errors that a file cannot express: actions out of range, backwards in a schedule of forwards. */
static void out_of_range_actions_are_refused(void **state)
{
    ls_pipeline_schedule s;

    (void)state;
    assert_int_equal(ls_pipeline_schedule_make("1f1b", 2, 1, 2, &s), LS_OK);
    s.list[1][2].micro = 2;
    assert_int_equal(ls_pipeline_schedule_check(&s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "rank 1, action 2 (F0.2): micro-batch 2 of 2"));
    s.list[1][2] = (ls_action){ LS_ACTION_FORWARD, -1, 0 };
    assert_int_equal(ls_pipeline_schedule_check(&s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "chunk -1 of 1"));
    s.list[1][2] = (ls_action){ LS_ACTION_WEIGHTS, 0, 0 };
    assert_int_equal(ls_pipeline_schedule_check(&s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "this schedule does not split the backward"));
    s.list[1][2] = (ls_action){ (ls_action_kind)3, 0, 0 };
    assert_int_equal(ls_pipeline_schedule_check(&s), LS_EINVAL);
    s.list[1][2] = (ls_action){ LS_ACTION_FORWARD, 0, 1 };
    assert_int_equal(ls_pipeline_schedule_check(&s), LS_OK);
    s.backward = 0;
    assert_int_equal(ls_pipeline_schedule_check(&s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "a forward-only schedule has no backward"));
    ls_pipeline_schedule_free(&s);
}

/* Neighbors in a rank's list exchanged, at every place: lists that the validator accepts can be simulated, and it refuses some. */
static void swapped_actions_are_detected(void **state)
{
    int passed = 0, refused = 0;
    ls_pipeline_schedule s;
    ls_pipeline_timeline p;

    (void)state;
    assert_int_equal(ls_pipeline_schedule_make("zb-v", 3, 2, 6, &s), LS_OK);
    for (int r = 0; r < s.stages; r++)
        for (int i = 0; i + 1 < s.count[r]; i++) {
            ls_action a = s.list[r][i], b = s.list[r][i + 1];

            s.list[r][i] = b;
            s.list[r][i + 1] = a;
            if (a.kind == b.kind && a.chunk == b.chunk && a.kind != LS_ACTION_WEIGHTS &&
                !(a.kind == LS_ACTION_BACKWARD && r + a.chunk == 0) && ls_pipeline_schedule_check(&s) == LS_OK &&
                !(a.chunk == 1 && r == 0 && a.kind == LS_ACTION_FORWARD))
                fail_msg("rank %d: %d exchanged with the next, and nobody minds", r, i);
            if (ls_pipeline_play(&s, NULL, &p) == LS_OK) {
                passed++;
                ls_pipeline_played_free(&s, &p);
            } else refused++;
            s.list[r][i] = a;
            s.list[r][i + 1] = b;
        }
    assert_true(passed > 20 && refused > 20);
    ls_pipeline_schedule_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_schedules_are_exact),
        cmocka_unit_test(every_schedule_is_valid),
        cmocka_unit_test(published_bubbles_are_reproduced),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(invalid_schedules_are_refused),
        cmocka_unit_test(out_of_range_actions_are_refused),
        cmocka_unit_test(swapped_actions_are_detected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
