/* fewest.c - a bisection that ends at the number with the fewest bytes. */
#include "base/fewest.h"

static ls_status fewest_low_point(fewest_fn *fn, void *ctx, int *high, size_t *least)
{
    size_t bytes;

    LS_TRY(fn(ctx, *high, least));
    while (*high > 0) {
        LS_TRY(fn(ctx, *high - 1, &bytes));
        if (bytes >= *least) return LS_OK;
        *least = bytes;
        --*high;
    }
    return LS_OK;
}

ls_status fewest_within(fewest_fn *fn, void *ctx, int most, size_t limit, int *n, size_t *least)
{
    int low = 0, high = most;

    LS_TRY(fewest_low_point(fn, ctx, &high, least));
    if (*least > limit) {
        *n = -1;
        return LS_OK;
    }
    while (low < high) { /* high fits, everything below low does not */
        int middle = low + (high - low) / 2;
        size_t bytes;

        LS_TRY(fn(ctx, middle, &bytes));
        if (bytes <= limit)
            high = middle;
        else
            low = middle + 1;
    }
    *n = high;
    return LS_OK;
}
