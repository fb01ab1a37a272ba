/* test_time_budget.c - the number of steps that fit into a time budget. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

#include "base/base.h"
#include "train/run/time_budget.h"

/* Cost of a run of so many steps, counted step by step like the step loop. */
static double time_budget_count(const struct time_budget *b, uint64_t steps)
{
    double sum = 0;

    for (uint64_t s = 1; s <= steps; s++) {
        bool last = s == steps;

        sum += b->step;
        if (last || (b->eval_every && s % b->eval_every == 0)) sum += b->evaluation;
        if (last || (b->save_every && s % b->save_every == 0)) sum += b->save;
    }
    return sum;
}

static void steps_follow_from_seconds(void **state)
{
    /* Powers of two: sums are exact. 0.95 of 160 are 152 s. */
    const struct { struct time_budget b; uint64_t steps; } cases[] = {
        { { .seconds = 160, .step = 1, .most = 1000 }, 152 },
        { { .seconds = 160, .step = 1, .most = 100 }, 100 },
        { { .seconds = 180, .spent = 20, .step = 1, .most = 1000 }, 152 },
        { { .seconds = 160, .step = 1, .save = 2, .most = 1000 }, 150 },
        { { .seconds = 160, .step = 1, .evaluation = 4, .save = 2, .most = 1000 }, 146 },
        { { .seconds = 160, .step = 1, .evaluation = 2, .eval_every = 50, .most = 1000 }, 146 },
        { { .seconds = 160, .step = 1, .save = 1, .save_every = 1, .most = 1000 }, 76 },
        { { .seconds = 160, .step = 0.5, .most = UINT64_C(1000000000000000) }, 304 },
        { { .seconds = 160, .step = 0.0078125, .most = UINT64_C(1000000000000000) }, 19456 },
        { { .seconds = 160, .step = 152, .most = 1000 }, 1 },
        { { .seconds = 160, .step = 152.5, .most = 1000 }, 0 },
        { { .seconds = 160, .step = 100, .evaluation = 50, .save = 4, .most = 1000 }, 0 },
        { { .seconds = 160, .spent = 160, .step = 1, .most = 1000 }, 0 },
        { { .seconds = 160, .spent = 1000, .step = 1, .most = 1000 }, 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (time_budget_steps(&cases[i].b) != cases[i].steps)
            fail_msg("case %zu: %llu steps, not %llu", i, (unsigned long long)time_budget_steps(&cases[i].b),
                     (unsigned long long)cases[i].steps);
}

/* The most steps that fit: one more would not. Over costs, intervals and budgets. */
static void steps_are_the_most_that_fit(void **state)
{
    const uint64_t every[] = { 0, 1, 2, 3, 7, 50, 1000 };

    (void)state;
    for (size_t e = 0; e < COUNT_OF(every); e++)
        for (size_t s = 0; s < COUNT_OF(every); s++)
            for (int k = 0; k < 40; k++) {
                struct time_budget b = { .seconds = 3 * k, .spent = k % 4, .step = 0.25 * (1 + k % 3), .evaluation = k % 5,
                                         .save = 0.5 * (k % 7), .eval_every = every[e], .save_every = every[s], .most = 1000000 };
                uint64_t steps = time_budget_steps(&b);
                double left = (b.seconds - b.spent) * (1 - TIME_BUDGET_RESERVE);

                assert_true(steps == 0 || time_budget_count(&b, steps) <= left);
                assert_true(left <= 0 || time_budget_count(&b, steps + 1) > left);
                if (steps) assert_true(time_budget_least(&b) <= b.seconds);
                else assert_true(time_budget_least(&b) > b.seconds || left <= 0);
            }
}

static void times_are_those_of_the_step_loop(void **state)
{
    (void)state;
    for (uint64_t every = 0; every < 12; every++)
        for (uint64_t steps = 0; steps < 40; steps++) {
            struct time_budget one = { .evaluation = 1, .eval_every = every };

            assert_int_equal(time_budget_times(every, steps), (uint64_t)time_budget_count(&one, steps));
        }
}

static void median_ignores_the_slowest(void **state)
{
    double one[] = { 4 }, odd[] = { 3, 1000, 2 }, even[] = { 8, 2, 4, 100 };

    (void)state;
    assert_true(base_median(one, 1) == 4);
    assert_true(base_median(odd, 3) == 3);
    assert_true(base_median(even, 4) == 6);
}

static void seconds_are_formatted(void **state)
{
    const struct { double seconds; const char *text; } cases[] = {
        { 0.0783, "78.3 ms" }, { 0.000841, "0.841 ms" }, { 1, "1 s" }, { 5.213, "5.21 s" }, { 99.4, "99.4 s" }, { 1234.4, "1234 s" },
    };
    char text[24];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) assert_string_equal(time_budget_text(text, cases[i].seconds), cases[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_follow_from_seconds),
        cmocka_unit_test(steps_are_the_most_that_fit),
        cmocka_unit_test(times_are_those_of_the_step_loop),
        cmocka_unit_test(median_ignores_the_slowest),
        cmocka_unit_test(seconds_are_formatted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
