/* C4 - all-reduce: full -> the same sum; reduce-scatter: full -> own shard of the sum; all-gather: shard -> the same full tensor.
 *
 * C5 - broadcast, all-to-all, send and receive complete the set. Start and end state of each, on eight numbers. */
#include "lab.h"

enum { RANKS = 4, BLOCK = 2, COUNT = RANKS * BLOCK, OPS = 6 };

struct state { int from, to; float start[COUNT], end[COUNT]; };  /* how many numbers, and which */
static const char *const names[OPS] = { "all_reduce", "reduce_scatter", "all_gather", "broadcast of rank 1", "all_to_all",
                                        "send to the next, receive from the one before" };
static struct state *states;  /* [OPS][RANKS] */

static void states_run(ls_comm *comm, int rank, int n, void *shared)
{
    static const int from[OPS] = { COUNT, COUNT, BLOCK, BLOCK, COUNT, BLOCK }, to[OPS] = { COUNT, BLOCK, COUNT, BLOCK, COUNT, BLOCK };
    struct state *s[OPS];
    ls_work *work;

    for (int op = 0; op < OPS; op++) {
        s[op] = (struct state *)shared + op * RANKS + rank;
        s[op]->from = from[op];
        s[op]->to = to[op];
        for (int i = 0; i < from[op]; i++) s[op]->start[i] = (float)(10 * (rank + 1) + i);
        if (op == 3)
            for (int i = 0; i < BLOCK; i++) s[op]->end[i] = s[op]->start[i];
    }
    TRY(ls_all_reduce(comm, s[0]->start, s[0]->end, COUNT, LS_F32, LS_SUM, NULL));
    TRY(ls_reduce_scatter(comm, s[1]->start, s[1]->end, BLOCK, LS_F32, LS_SUM, NULL));
    TRY(ls_all_gather(comm, s[2]->start, s[2]->end, BLOCK, LS_F32, NULL));
    TRY(ls_broadcast(comm, s[3]->end, BLOCK, LS_F32, 1, NULL));
    TRY(ls_all_to_all(comm, s[4]->start, s[4]->end, BLOCK, LS_F32, NULL));
    TRY(ls_send(comm, s[5]->start, BLOCK, LS_F32, (rank + 1) % n, &work));
    TRY(ls_recv(comm, s[5]->end, BLOCK, LS_F32, (rank + n - 1) % n, NULL));
    TRY(ls_work_wait(&work));
}

/* Number i of rank r at the end, from the starts of all. */
static float expected(int op, int r, int i)
{
    const struct state *s = states + op * RANKS;
    float sum = 0;

    switch (op) {
    case 0:  for (int k = 0; k < RANKS; k++) sum += s[k].start[i]; return sum;
    case 1:  for (int k = 0; k < RANKS; k++) sum += s[k].start[r * BLOCK + i]; return sum;
    case 2:  return s[i / BLOCK].start[i % BLOCK];
    case 3:  return s[1].start[i];
    case 4:  return s[i / BLOCK].start[r * BLOCK + i % BLOCK];
    default: return s[(r + RANKS - 1) % RANKS].start[i];
    }
}

static void put_numbers(const float *x, int count)
{
    lab_say("[");
    for (int i = 0; i < COUNT; i++) {
        if (i < count) lab_say("%s%3g", i && i % BLOCK == 0 ? " | " : i ? " " : "", x[i]);
        else lab_say("%s   ", i % BLOCK == 0 ? "   " : " ");
    }
    lab_say(" ]");
}

static int put_op(int op)
{
    int wrong = 0;

    lab_say("%s\n", names[op]);
    for (int r = 0; r < RANKS; r++) {
        const struct state *s = states + op * RANKS + r;

        lab_say("  rank %d  ", r);
        put_numbers(s->start, s->from);
        lab_say("  ->  ");
        put_numbers(s->end, s->to);
        lab_say("\n");
        for (int i = 0; i < s->to; i++) wrong += s->end[i] != expected(op, r, i);
    }
    return wrong;
}

LAB(c4_c5_states, "what collectives do")
{
    int wrong[OPS];

    states = lab_shared(OPS * RANKS * sizeof *states);
    lab_ranks(RANKS, states_run, states);
    for (int op = 0; op < OPS; op++) wrong[op] = put_op(op);
    lab_say("\n");
    for (int op = 0; op < OPS; op++) {
        char what[80];

        if (op % 3 == 0) lab_open(op ? "C5" : "C4");
        snprintf(what, sizeof what, "%s: wrong numbers", names[op]);
        lab_equal(what, 0, wrong[op], 0);
    }
    return lab_close();
}
