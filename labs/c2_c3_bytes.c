/* C2 - an all-reduce moves 2 D (n-1)/n bytes per rank for any n, a reduce-scatter or an all-gather half of that.
 *
 * C3 - with a central node, that node moves O(n D) bytes. Counted for n = 2 .. 16. */
#include "lab.h"

enum { LEAST = 2, MOST = 16, BLOCK = 250 };  /* D = n blocks of 250 floats */

/* Bytes that left this rank. unit: all that FSDP does with a unit's weights, which are gathered twice, and its gradients */
struct found { double all_reduce, reduce_scatter, all_gather, unit, central; };

static struct found c2_c3_chosen[2]; /* with the chosen number of ranks, in D: rank 0's bytes, and those of all other ranks together */

static double bytes_sent(ls_comm *comm, ls_collective c) { return (double)ls_comm_counters(comm, c).bytes; }

/* Sends all ranks' buffers to rank 0, and the sum back. */
static void through_rank_0(ls_comm *comm, int rank, int n, float *x, float *came)
{
    size_t count = (size_t)n * BLOCK;

    if (rank > 0) {
        TRY(ls_send(comm, x, count, LS_F32, 0, NULL));
        TRY(ls_recv(comm, x, count, LS_F32, 0, NULL));
        return;
    }
    for (int r = 1; r < n; r++) {
        TRY(ls_recv(comm, came, count, LS_F32, r, NULL));
        for (size_t i = 0; i < count; i++) x[i] += came[i];
    }
    for (int r = 1; r < n; r++) TRY(ls_send(comm, x, count, LS_F32, r, NULL));
}

static void bytes_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;
    static float x[MOST * BLOCK], y[MOST * BLOCK];

    TRY(ls_all_reduce(comm, x, y, (size_t)n * BLOCK, LS_F32, LS_SUM, NULL));
    TRY(ls_reduce_scatter(comm, x, y, BLOCK, LS_F32, LS_SUM, NULL));
    TRY(ls_all_gather(comm, y, x, BLOCK, LS_F32, NULL));
    f->all_reduce = bytes_sent(comm, LS_COLLECTIVE_ALL_REDUCE);
    f->reduce_scatter = bytes_sent(comm, LS_COLLECTIVE_REDUCE_SCATTER);
    f->all_gather = bytes_sent(comm, LS_COLLECTIVE_ALL_GATHER);
    TRY(ls_all_gather(comm, y, x, BLOCK, LS_F32, NULL));
    f->unit = bytes_sent(comm, LS_COLLECTIVE_ALL_GATHER) + bytes_sent(comm, LS_COLLECTIVE_REDUCE_SCATTER);
    through_rank_0(comm, rank, n, x, y);
    f->central = bytes_sent(comm, LS_COLLECTIVE_SEND);
}

/* Adds what the ranks of a world differ from the formula, in D, and prints its row. */
static void one_world(int n, double *off)
{
    struct found *f = lab_shared(MOST * sizeof *f);
    double d = 4.0 * BLOCK * n, share = (double)(n - 1) / n;

    lab_ranks(n, bytes_run, f);
    for (int r = 0; r < n; r++) {
        off[0] += fabs(f[r].all_reduce / d - 2 * share);
        off[1] += fabs(f[r].reduce_scatter / d - share);
        off[2] += fabs(f[r].all_gather / d - share);
    }
    off[3] += fabs(f[0].central / d - (n - 1));
    for (int r = 0; r < n && n == lab_size("ranks"); r++) {
        struct found *to = &c2_c3_chosen[r > 0];

        to->all_reduce += f[r].all_reduce / d;
        to->reduce_scatter += f[r].reduce_scatter / d;
        to->all_gather += f[r].all_gather / d;
        to->unit += f[r].unit / d;
        to->central += f[r].central / d;
    }
    lab_say("%5d %12.4f %15.4f %15.4f %15.4f %18.4f\n", n, 2 * share, f[0].all_reduce / d, f[0].reduce_scatter / d,
           f[0].all_gather / d, f[0].central / d);
    lab_unshare(f, MOST * sizeof *f);
}

/* "8 ranks: all_reduce, rank 0 sends [D]" */
static void put_sent(const char *text, int n, double claimed, double measured)
{
    char what[96];

    snprintf(what, sizeof what, "%d ranks: %s", n, text);
    lab_equal(what, claimed, measured, 1e-9);
}

LAB(c2_c3_bytes, "bytes of a ring and of a central node", { "ranks", "ranks of the rows on their own", 8, LEAST, MOST })
{
    double off[4] = { 0 };
    int ranks = (int)lab_size("ranks");
    char what[96];

    lab_say("sent by rank 0, in units of D\n%5s %12s %15s %15s %15s %18s\n", "n", "2(n-1)/n", "all_reduce", "reduce_scatter",
           "all_gather", "central, rank 0");
    for (int n = LEAST; n <= MOST; n++) one_world(n, off);
    lab_say("\n");
    lab_open("C2");
    double share = (double)(ranks - 1) / ranks;
    put_sent("all_reduce, rank 0 sends [D]", ranks, 2 * share, c2_c3_chosen[0].all_reduce);
    put_sent("reduce_scatter, rank 0 sends [D]", ranks, share, c2_c3_chosen[0].reduce_scatter);
    put_sent("all_gather, rank 0 sends [D]", ranks, share, c2_c3_chosen[0].all_gather);
    put_sent("bytes of a reduce_scatter, of an all_gather's", ranks, 1, c2_c3_chosen[0].reduce_scatter / c2_c3_chosen[0].all_gather);
    snprintf(what, sizeof what, "%d ranks: all_gather twice and reduce_scatter, of an all_reduce", ranks);
    lab_check(what, 1.5, c2_c3_chosen[0].unit / c2_c3_chosen[0].all_reduce, 1e-9);
    lab_equal("n = 2 .. 16, all ranks: all_reduce, off from 2 (n-1)/n by [D]", 0, off[0], 1e-9);
    lab_equal("         reduce_scatter, off from (n-1)/n by [D]", 0, off[1], 1e-9);
    lab_equal("         all_gather, off from (n-1)/n by [D]", 0, off[2], 1e-9);
    lab_open("C3");
    put_sent("the central rank sends, n-1 [D]", ranks, ranks - 1, c2_c3_chosen[0].central);
    put_sent("the central rank receives [D]", ranks, ranks - 1, c2_c3_chosen[1].central);
    lab_equal("n = 2 .. 16: the central rank sends, off from n-1 by [D]", 0, off[3], 1e-9);
    return lab_close();
}
