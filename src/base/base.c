/* base.c - the clock, the median, and the end of a program after a failed assertion. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double clock_seconds(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double (*base_test_clock)(void);

double base_now(void) { return base_test_clock ? base_test_clock() : clock_seconds(CLOCK_MONOTONIC); }

double base_now_coarse(void) { return base_test_clock ? base_test_clock() : clock_seconds(CLOCK_MONOTONIC_COARSE); }

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double base_median(double *x, size_t count)
{
    ASSERT(count > 0);
    qsort(x, count, sizeof *x, ascending);
    return (x[(count - 1) / 2] + x[count / 2]) / 2;
}

_Noreturn void base_assert_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "lockstep: internal error: %s:%d: %s does not hold\n", file, line, cond);
    abort();
}
