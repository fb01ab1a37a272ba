/* C1 - no server is needed: ranks form a ring, and an all-reduce is a reduce-scatter followed by an all-gather.
 *
 * The lab writes the ring with send and receive only, and prints what rank 0 does. Its result, the library's all-reduce, and the
 * library's reduce-scatter followed by its all-gather are the same numbers. */
#include "lab.h"

enum { RANKS = 4, BLOCK = 2, COUNT = RANKS * BLOCK };

struct found { double hand, pair, to_next, to_others; };

static float *ring_block(float *x, int i) { return x + BLOCK * ((i + 2 * RANKS) % RANKS); }

/* Sends block `out` to the next rank while block `in` comes from the one before. */
static void hop(ls_comm *comm, float *x, int out, int in, int add)
{
    int rank = ls_comm_rank(comm), next = (rank + 1) % RANKS, prev = (rank + RANKS - 1) % RANKS;
    float came[BLOCK];
    ls_work *work;

    TRY(ls_send(comm, ring_block(x, out), BLOCK, LS_F32, next, &work));
    TRY(ls_recv(comm, came, BLOCK, LS_F32, prev, NULL));
    TRY(ls_work_wait(&work));
    for (int i = 0; i < BLOCK; i++) ring_block(x, in)[i] = add ? ring_block(x, in)[i] + came[i] : came[i];
    if (rank == 0)
        lab_say("rank 0 sends block %d to %d, %s block %d of %d   [%g %g | %g %g | %g %g | %g %g]\n", (out + 2 * RANKS) % RANKS,
               next, add ? "adds " : "keeps", (in + 2 * RANKS) % RANKS, prev, x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]);
}

static void ring_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;
    float hand[COUNT], whole[COUNT], pair[COUNT], own[BLOCK];

    for (int i = 0; i < COUNT; i++) hand[i] = whole[i] = pair[i] = (float)((rank + 1) * (i + 1));
    for (int i = 0; i < n - 1; i++) hop(comm, hand, rank - 1 - i, rank - 2 - i, 1);  /* reduce-scatter */
    for (int i = 0; i < n - 1; i++) hop(comm, hand, rank - i, rank - 1 - i, 0);      /* all-gather */
    for (int r = 0; r < n; r++) {
        if (r == (rank + 1) % n) f->to_next = (double)ls_comm_bytes_to(comm, r);
        else f->to_others += (double)ls_comm_bytes_to(comm, r);
    }
    TRY(ls_all_reduce(comm, whole, whole, COUNT, LS_F32, LS_SUM, NULL));
    TRY(ls_reduce_scatter(comm, pair, own, BLOCK, LS_F32, LS_SUM, NULL));
    TRY(ls_all_gather(comm, own, pair, BLOCK, LS_F32, NULL));
    for (int i = 0; i < COUNT; i++) {
        f->hand += fabs(hand[i] - whole[i]);
        f->pair += fabs(pair[i] - whole[i]);
    }
}

LAB(c1_ring, "the ring")
{
    struct found *f = lab_shared(RANKS * sizeof *f), sum = { 0 };

    lab_ranks(RANKS, ring_run, f);
    for (int r = 0; r < RANKS; r++) {
        sum.hand += f[r].hand;
        sum.pair += f[r].pair;
        sum.to_others += f[r].to_others;
    }
    lab_say("\n");
    lab_open("C1");
    lab_equal("ring by hand against all-reduce, all ranks: difference", 0, sum.hand, 0);
    lab_equal("reduce-scatter + all-gather against all-reduce: difference", 0, sum.pair, 0);
    lab_equal("what rank 0 sent to its next: 2 D (n-1)/n [bytes]", 2.0 * COUNT * 4 * (RANKS - 1) / RANKS, f[0].to_next, 0);
    lab_equal("what any rank sent to another than its next [bytes]", 0, sum.to_others, 0);
    return lab_close();
}
