/* C4 - all-reduce: full -> the same sum; reduce-scatter: full -> own shard of the sum; all-gather: shard -> the same full tensor.
 *
 * C5 - broadcast, all-to-all, send and receive complete the set. Start and end state of each, on two numbers per rank.
 *
 * A reduce-scatter leaves 1/n of the sum on a rank, which is why ZeRO-2 holds 1/n of the gradients: as its plan says. */
#include "lab.h"

enum { MOST = 16, PRINTED = 8, BLOCK = 2, ROOM = MOST * BLOCK, OPS = 6 };

struct state { int from, to; float start[ROOM], end[ROOM]; }; /* how many numbers, and which; NaN: none */
struct reduced { float sum, mean; }; /* sum and mean of what the ranks hold: 1, 2, 3, .. */
static const char *const c4_c5_names[OPS] = { "all_reduce", "reduce_scatter", "all_gather", "broadcast of rank 1", "all_to_all",
                                        "send to the next, receive from the one before" };
static struct state *states;  /* [OPS][MOST] */

static void states_run(ls_comm *comm, int rank, int n, void *shared)
{
    const int all = n * BLOCK, from[OPS] = { all, all, BLOCK, BLOCK, all, BLOCK }, to[OPS] = { all, BLOCK, all, BLOCK, all, BLOCK };
    struct state *s[OPS];
    ls_work *work;

    for (int op = 0; op < OPS; op++) {
        s[op] = (struct state *)shared + op * MOST + rank;
        s[op]->from = from[op];
        s[op]->to = to[op];
        for (int i = 0; i < ROOM; i++) s[op]->end[i] = NAN;
        for (int i = 0; i < from[op]; i++) s[op]->start[i] = (float)(10 * (rank + 1) + i);
        if (op == 3)
            for (int i = 0; i < BLOCK; i++) s[op]->end[i] = s[op]->start[i];
    }
    TRY(ls_all_reduce(comm, s[0]->start, s[0]->end, (size_t)all, LS_F32, LS_SUM, NULL));
    TRY(ls_reduce_scatter(comm, s[1]->start, s[1]->end, BLOCK, LS_F32, LS_SUM, NULL));
    TRY(ls_all_gather(comm, s[2]->start, s[2]->end, BLOCK, LS_F32, NULL));
    TRY(ls_broadcast(comm, s[3]->end, BLOCK, LS_F32, 1, NULL));
    TRY(ls_all_to_all(comm, s[4]->start, s[4]->end, BLOCK, LS_F32, NULL));
    TRY(ls_send(comm, s[5]->start, BLOCK, LS_F32, (rank + 1) % n, &work));
    TRY(ls_recv(comm, s[5]->end, BLOCK, LS_F32, (rank + n - 1) % n, NULL));
    TRY(ls_work_wait(&work));
}

/* Number i of rank r at the end, from the starts of all. */
static float c4_c5_expected(int op, int n, int r, int i)
{
    const struct state *s = states + op * MOST;
    float sum = 0;

    switch (op) {
    case 0:  for (int k = 0; k < n; k++) sum += s[k].start[i]; return sum;
    case 1:  for (int k = 0; k < n; k++) sum += s[k].start[r * BLOCK + i]; return sum;
    case 2:  return s[i / BLOCK].start[i % BLOCK];
    case 3:  return s[1].start[i];
    case 4:  return s[i / BLOCK].start[r * BLOCK + i % BLOCK];
    default: return s[(r + n - 1) % n].start[i];
    }
}

static void put_numbers(const float *x, int count, int most)
{
    lab_say("[");
    for (int i = 0; i < most; i++) {
        if (i < count) lab_say("%s%3g", i && i % BLOCK == 0 ? " | " : i ? " " : "", x[i]);
        else lab_say("%s   ", i % BLOCK == 0 ? "   " : " ");
    }
    lab_say(" ]");
}

static int wrong_numbers(int op, int n)
{
    int wrong = 0;

    for (int r = 0; r < n; r++) {
        const struct state *s = states + op * MOST + r;

        for (int i = 0; i < s->to; i++) wrong += s->end[i] != c4_c5_expected(op, n, r, i);
    }
    return wrong;
}

static void put_op(int op, int n)
{
    lab_say("%s\n", c4_c5_names[op]);
    for (int r = 0; r < n; r++) {
        const struct state *s = states + op * MOST + r;

        lab_say("  rank %d  ", r);
        put_numbers(s->start, s->from, n * BLOCK);
        lab_say("  ->  ");
        put_numbers(s->end, s->to, n * BLOCK);
        lab_say("\n");
    }
}

/* The share of a full tensor that rank 0 holds at the end. */
static void put_held(int op, int n, double share)
{
    char what[80];
    int held = 0;

    for (int i = 0; i < ROOM; i++) held += !isnan(states[op * MOST].end[i]);
    snprintf(what, sizeof what, "%d ranks: %s leaves on a rank, of a full tensor", n, c4_c5_names[op]);
    lab_equal(what, share, (double)held / (n * BLOCK), 1e-12);
}

static void reduce_one(ls_comm *comm, int rank, int n, void *shared)
{
    struct reduced *to = (struct reduced *)shared + rank;
    float own = (float)(rank + 1);

    (void)n;
    TRY(ls_all_reduce(comm, &own, &to->sum, 1, LS_F32, LS_SUM, NULL));
    TRY(ls_all_reduce(comm, &own, &to->mean, 1, LS_F32, LS_AVG, NULL));
}

static void put_reduced(int n)
{
    struct reduced *r = lab_shared(MOST * sizeof *r);
    double apart = 0;
    char what[80];

    lab_ranks(n, reduce_one, r);
    for (int k = 0; k < n; k++) apart += fabs(r[k].sum - r[0].sum) + fabs(r[k].mean - r[0].mean);
    snprintf(what, sizeof what, "%d ranks that hold 1 to %d: sum on rank 0", n, n);
    lab_equal(what, n * (n + 1) / 2.0, r[0].sum, 0);
    snprintf(what, sizeof what, "%d ranks that hold 1 to %d: mean on rank 0", n, n);
    lab_equal(what, (n + 1) / 2.0, r[0].mean, 1e-6);
    lab_equal("difference between ranks", 0, apart, 0);
    lab_unshare(r, MOST * sizeof *r);
}

static double planned_gradients(int n, int zero)
{
    return lab_plan("memory.gradients", "-n %d --model.preset=llama-demo --train.micro_batch=1 --parallel.zero=%d", n, zero);
}

LAB(c4_c5_states, "what collectives do", { "ranks", "ranks of every collective", 4, 2, MOST })
{
    int n = (int)lab_size("ranks");

    states = lab_shared(OPS * MOST * sizeof *states);
    lab_ranks(n, states_run, states);
    for (int op = 0; op < OPS; op++)
        if (n <= PRINTED) put_op(op, n);
    lab_say("\n");
    for (int op = 0; op < OPS; op++) {
        char what[80];

        if (op % 3 == 0) lab_open(op ? "C5" : "C4");
        snprintf(what, sizeof what, "%s: wrong numbers", c4_c5_names[op]);
        lab_equal(what, 0, wrong_numbers(op, n), 0);
        if (op != 2) continue;
        put_held(0, n, 1);
        put_held(1, n, 1.0 / n);
        put_held(2, n, 1);
        put_reduced(n);
        snprintf(what, sizeof what, "%d ranks, planned: gradients of DDP that ZeRO-2 does not hold [%%]", n);
        lab_check(what, 100.0 * (n - 1) / n, 100 * (1 - planned_gradients(n, 2) / planned_gradients(n, 0)), 1e-3);
    }
    return lab_close();
}
