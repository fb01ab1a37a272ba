/* comm_tune.c - times every algorithm at every size. All ranks know the slowest rank's times, so all choose the same algorithm. */
#include "cli/comm_tune.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "comm/algorithms/steps.h"
#include "comm/comm.h"

#define NATIVE_MARGIN \
    0.95 /* a list of steps replaces the transport's native collective only if its time is below this share of the native one's */

/* Times algorithm `name` and replaces *best by it if it is faster; all ranks decide the same. */
static ls_status try_one(const struct comm_times *t, size_t bytes, const char *name, const char **best, double *least)
{
    struct comm_time time;

    LS_TRY(algorithm_force(t->op, name));
    ls_status st = comm_times_take(t, comm_times_count(t, bytes), true, &time);
    algorithm_force(t->op, NULL);
    if (st != LS_OK) return st;
    LS_TRY(comm_times_verdict(t, time.wrong));
    if (t->rank == 0) printf("  %s %.2f", name, time.seconds * 1e6);
    if (*best && time.seconds >= *least * (strcmp(*best, ALGORITHM_NATIVE) == 0 ? NATIVE_MARGIN : 1)) return LS_OK;
    *best = name;
    *least = time.seconds;
    return LS_OK;
}

static ls_status tune_size(const struct comm_times *t, size_t bytes, const char **best)
{
    bool sums = t->op == LS_COLLECTIVE_ALL_REDUCE || t->op == LS_COLLECTIVE_REDUCE_SCATTER;
    bool half = sums && (t->type == LS_BF16 || t->type == LS_F16);
    double least = 0;

    *best = NULL;
    if (t->rank == 0) printf("%-14s %12zu ", ls_collective_name(t->op), bytes);
    if (comm_has_collectives(t->comm)) LS_TRY(try_one(t, bytes, ALGORITHM_NATIVE, best, &least));
    for (int i = 0; algorithm_at(i); i++) {
        const struct algorithm *a = algorithm_at(i);

        if (a->op != t->op || (half && !a->half) || strcmp(a->name, "central") == 0) continue;
        LS_TRY(try_one(t, bytes, a->name, best, &least));
    }
    if (t->rank == 0) printf("  -> %s\n", *best);
    fflush(stdout);
    return LS_OK;
}

static void comm_tune_put_choice(const struct comm_times *t, size_t bytes, const char *name, struct text *out)
{
    if (bytes)
        text_put(out, "%s %zu %d %s\n", ls_collective_name(t->op), bytes, t->n, name);
    else
        text_put(out, "%s - %d %s\n", ls_collective_name(t->op), t->n, name);
}

/* Writes the rows of an operation. A row ends at the geometric mean of the last size that it is best for and the next timed size; the last
 * row has no end. */
static ls_status tune_op(const struct comm_times *t, size_t min, size_t max, size_t factor, struct text *out)
{
    const char *best, *before = NULL;
    size_t end = 0;

    for (size_t bytes = min; bytes <= max; bytes *= factor) {
        LS_TRY(tune_size(t, bytes, &best));
        if (before && strcmp(best, before) != 0) comm_tune_put_choice(t, end, before, out);
        before = best;
        end = (size_t)((double)bytes * sqrt((double)factor));
        if (bytes > SIZE_MAX / factor) break;
    }
    comm_tune_put_choice(t, 0, before, out);
    return LS_OK;
}

ls_status comm_tune(struct comm_times *t, size_t min, size_t max, size_t factor, struct text *out)
{
    text_put(out, COMM_TABLE_HEADER "\n# %d ranks over %s, %s, in place\n# operation, bytes up to, ranks up to, algorithm\n", t->n,
             ls_comm_transport(t->comm), ls_dtype_name(t->type));
    if (t->rank == 0) puts("# microseconds per call, in place, the median of the slowest rank's times");
    for (int op = 0; op < LS_COLLECTIVES; op++) {
        t->op = (ls_collective)op;
        if (comm_times_has(t->op) && t->op != LS_COLLECTIVE_SEND) LS_TRY(tune_op(t, min, max, factor, out));
    }
    return text_status(out);
}
