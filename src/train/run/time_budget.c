/* time_budget.c - computes how many steps a run has time for. */
#include "train/run/time_budget.h"

#include <stdio.h>
#include "base/base.h"

uint64_t time_budget_times(uint64_t every, uint64_t steps)
{
    if (steps == 0) return 0;
    return every == 0 ? 1 : (steps - 1) / every + 1;
}

static double seconds_of(const struct time_budget *b, uint64_t steps)
{
    return (double)steps * b->step + (double)time_budget_times(b->eval_every, steps) * b->evaluation +
           (double)time_budget_times(b->save_every, steps) * b->save;
}

/* seconds_of() does not decrease with the number of steps, so a binary search finds the largest number that fits: `low` steps fit,
 * `high` steps do not. */
uint64_t time_budget_steps(const struct time_budget *b)
{
    double left = (b->seconds - b->spent) * (1 - TIME_BUDGET_RESERVE);
    uint64_t low = 0, high = b->most + 1;

    if (!(left > 0)) return 0;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        if (seconds_of(b, middle) <= left)
            low = middle;
        else
            high = middle;
    }
    return low;
}

double time_budget_least(const struct time_budget *b) { return b->spent + seconds_of(b, 1) / (1 - TIME_BUDGET_RESERVE); }

char *time_budget_text(char out[24], double seconds)
{
    if (seconds < 1)
        snprintf(out, 24, "%.3g ms", 1000 * seconds);
    else if (seconds < 100)
        snprintf(out, 24, "%.3g s", seconds);
    else
        snprintf(out, 24, "%.0f s", seconds);
    return out;
}
