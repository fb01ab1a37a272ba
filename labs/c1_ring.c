/* C1 - no server is needed: ranks form a ring, and an all-reduce is a reduce-scatter followed by an all-gather.
 *
 * The lab writes the ring with send and receive only, and prints what rank 0 does. Its result, the library's all-reduce, and the
 * library's reduce-scatter followed by its all-gather are the same numbers.
 *
 * A ring is one algorithm of several. Beside it: recursive halving and doubling (ranks in pairs, for powers of two) sends the same bytes
 * in 2 log2 n steps instead of 2 (n-1), and a binomial tree takes 2 log2 n steps as well, but its root sends the tensor log2 n times. */
#include "lab.h"

enum { MOST = 16, PRINTED = 8, BLOCK = 2 };
enum algorithm { RING, HALVING, TREE, ALGORITHMS };

/* Results of a rank: sums of differences to the library's all-reduce, bytes, steps, and how much of the sum it holds between the halves. */
struct found { double off[ALGORITHMS], bytes[ALGORITHMS], steps[ALGORITHMS], pair, to_next, to_others, between; };

/* One rank's part of an all-reduce that is written by hand. */
struct ring_rank { ls_comm *comm; int rank, n, steps; float x[MOST * BLOCK]; };

/* One step: sends `out` and receives `in` (in blocks; -1: neither is sent or received). What is received is added or kept. */
static void ring_exchange(struct ring_rank *r, int out, int to, int in, int from, int blocks, int add)
{
    size_t count = (size_t)(blocks * BLOCK);
    float came[MOST * BLOCK];
    ls_work *work = NULL;

    if (out >= 0) TRY(ls_send(r->comm, r->x + out * BLOCK, count, LS_F32, to, &work));
    if (in >= 0) TRY(ls_recv(r->comm, came, count, LS_F32, from, NULL));
    TRY(ls_work_wait(&work));
    for (size_t i = 0; in >= 0 && i < count; i++) {
        float *x = &r->x[(size_t)(in * BLOCK) + i];

        *x = add ? *x + came[i] : came[i];
    }
    r->steps++;
}

/* ---- ring ---- */

/* Sends block `out` to the next rank while block `in` comes from the one before. */
static void ring_hop(struct ring_rank *r, int out, int in, int add)
{
    int next = (r->rank + 1) % r->n, prev = (r->rank + r->n - 1) % r->n;

    out = (out + 2 * r->n) % r->n;
    in = (in + 2 * r->n) % r->n;
    ring_exchange(r, out, next, in, prev, 1, add);
    if (r->rank > 0 || r->n > PRINTED) return;
    lab_say("rank 0 sends block %d to %d, %s block %d of %d   [", out, next, add ? "adds " : "keeps", in, prev);
    for (int i = 0; i < r->n * BLOCK; i++) lab_say("%s%g", i == 0 ? "" : i % BLOCK == 0 ? " | " : " ", r->x[i]);
    lab_say("]\n");
}

static void ring_reduce_scatter(struct ring_rank *r)
{
    for (int i = 0; i < r->n - 1; i++) ring_hop(r, r->rank - 1 - i, r->rank - 2 - i, 1);
}

static void ring_all_gather(struct ring_rank *r)
{
    for (int i = 0; i < r->n - 1; i++) ring_hop(r, r->rank - i, r->rank - 1 - i, 0);
}

/* ---- the others ---- */

/* For n a power of two: pairs at a distance of n/2, n/4, .. exchange halves of what they still sum, and then gather in reverse. */
static void halving_all_reduce(struct ring_rank *r)
{
    int own = 0;

    for (int d = r->n / 2; d >= 1; d /= 2) {
        int peer = r->rank ^ d, keep = own + (r->rank & d ? d : 0), give = own + (r->rank & d ? 0 : d);

        ring_exchange(r, give, peer, keep, peer, d, 1);
        own = keep;
    }
    for (int d = 1; d < r->n; d *= 2) {
        ring_exchange(r, own, r->rank ^ d, own ^ d, r->rank ^ d, d, 0);
        own &= ~d;
    }
}

/* Binomial tree with rank 0 as its root: sums go up, the result comes down. */
static void tree_all_reduce(struct ring_rank *r)
{
    int top = 1;

    while (top < r->n) top *= 2;
    for (int d = 1; d < top; d *= 2) {
        if (r->rank % (2 * d) == d) ring_exchange(r, 0, r->rank - d, -1, 0, r->n, 0);
        if (r->rank % (2 * d) == 0 && r->rank + d < r->n) ring_exchange(r, -1, 0, 0, r->rank + d, r->n, 1);
    }
    for (int d = top / 2; d >= 1; d /= 2) {
        if (r->rank % (2 * d) == d) ring_exchange(r, -1, 0, 0, r->rank - d, r->n, 0);
        if (r->rank % (2 * d) == 0 && r->rank + d < r->n) ring_exchange(r, 0, r->rank + d, -1, 0, r->n, 0);
    }
}

/* ---- all of them, on each rank ---- */

static float ring_start(int rank, int i) { return (float)((rank + 1) * (i + 1)); }

/* The share of the sum `whole` that it holds by now. */
static double ring_share(const struct ring_rank *r, const float *whole)
{
    int equal = 0;

    for (int i = 0; i < r->n * BLOCK; i++) equal += r->x[i] == whole[i];
    return (double)equal / (r->n * BLOCK);
}

static void ring_by_hand(struct ring_rank *r, enum algorithm a, const float *whole, struct found *f)
{
    double before = (double)ls_comm_counters(r->comm, LS_COLLECTIVE_SEND).bytes;

    r->steps = 0;
    for (int i = 0; i < r->n * BLOCK; i++) r->x[i] = ring_start(r->rank, i);
    if (a == RING) {
        ring_reduce_scatter(r);
        f->between = ring_share(r, whole);
        ring_all_gather(r);
    }
    if (a == HALVING) halving_all_reduce(r);
    if (a == TREE) tree_all_reduce(r);
    f->bytes[a] = (double)ls_comm_counters(r->comm, LS_COLLECTIVE_SEND).bytes - before;
    f->steps[a] = r->steps;
    for (int i = 0; i < r->n * BLOCK; i++) f->off[a] += fabs(r->x[i] - whole[i]);
}

static void ring_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;
    struct ring_rank r = { .comm = comm, .rank = rank, .n = n };
    float whole[MOST * BLOCK], pair[MOST * BLOCK], own[BLOCK], sum[MOST * BLOCK] = { 0 };

    for (int i = 0; i < n * BLOCK; i++) {
        whole[i] = pair[i] = ring_start(rank, i);
        for (int k = 0; k < n; k++) sum[i] += ring_start(k, i);
    }
    ring_by_hand(&r, RING, sum, f);
    for (int k = 0; k < n; k++) {
        if (k == (rank + 1) % n) f->to_next = (double)ls_comm_bytes_to(comm, k);
        else f->to_others += (double)ls_comm_bytes_to(comm, k);
    }
    TRY(ls_all_reduce(comm, whole, whole, (size_t)(n * BLOCK), LS_F32, LS_SUM, NULL));
    TRY(ls_reduce_scatter(comm, pair, own, BLOCK, LS_F32, LS_SUM, NULL));
    TRY(ls_all_gather(comm, own, pair, BLOCK, LS_F32, NULL));
    for (int i = 0; i < n * BLOCK; i++) {
        f->pair += fabs(pair[i] - whole[i]);
        f->off[RING] += fabs(sum[i] - whole[i]);
    }
    if ((n & (n - 1)) == 0) ring_by_hand(&r, HALVING, whole, f);
    ring_by_hand(&r, TREE, whole, f);
}

/* Adds up differences and takes the largest of counts. */
static struct found ring_world(int n)
{
    struct found *f = lab_shared(MOST * sizeof *f), all = { 0 };

    lab_ranks(n, ring_run, f);
    all.to_next = f[0].to_next;
    for (int r = 0; r < n; r++) {
        for (int a = 0; a < ALGORITHMS; a++) {
            all.off[a] += f[r].off[a];
            all.bytes[a] = fmax(all.bytes[a], f[r].bytes[a]);
            all.steps[a] = fmax(all.steps[a], f[r].steps[a]);
        }
        all.pair += f[r].pair;
        all.to_others += f[r].to_others;
        all.between = fmax(all.between, f[r].between);
    }
    lab_unshare(f, MOST * sizeof *f);
    return all;
}

static void put_algorithm(const char *name, int n, double off, double steps, double bytes, const double expected[2])
{
    char what[96];

    snprintf(what, sizeof what, "%d ranks, %s: difference to the library's all-reduce", n, name);
    lab_check(what, 0, off, 0);
    snprintf(what, sizeof what, "%d ranks, %s: steps", n, name);
    lab_check(what, expected[0], steps, 0);
    snprintf(what, sizeof what, "%d ranks, %s: sent by the busiest rank [D]", n, name);
    lab_check(what, expected[1], bytes / (4.0 * n * BLOCK), 1e-12);
}

/* What the counted steps and bytes would take on a link of 4 us a step and 50 GB/s: latency governs small tensors, bytes large ones. */
static void put_times(const struct found *f, int n)
{
    static const char *const names[ALGORITHMS] = { "ring", "halving, doubling", "tree" };

    lab_say("\nmicroseconds at 4 us a step and 50 GB/s, not measured\n%18s %12s %12s %12s\n", "", "4 kB", "1 MB", "256 MB");
    for (int a = 0; a < ALGORITHMS; a++) {
        if (f->steps[a] == 0) continue;
        lab_say("%18s", names[a]);
        for (double d = 4e3; d < 1e9; d *= d < 1e6 ? 250 : 256) {
            double share = f->bytes[a] / (4.0 * n * BLOCK);

            lab_say(" %12.1f", 4 * f->steps[a] + 1e6 * d * share / 50e9);
        }
        lab_say("\n");
    }
}

LAB(c1_ring, "the ring", { "ranks", "ranks of the ring", 4, 2, MOST })
{
    int n = (int)lab_size("ranks");
    double d = 4.0 * n * BLOCK, depth = ceil(log2(n)), least = 2.0 * (n - 1) / n;
    struct found f = ring_world(n);
    char what[96];

    put_times(&f, n);
    lab_say("\n");
    lab_open("C1");
    lab_equal("ring by hand against all-reduce, all ranks: difference", 0, f.off[RING], 0);
    lab_equal("reduce-scatter + all-gather against all-reduce: difference", 0, f.pair, 0);
    lab_equal("what rank 0 sent to its next: 2 D (n-1)/n [bytes]", d * least, f.to_next, 0);
    lab_equal("what any rank sent to another than its next [bytes]", 0, f.to_others, 0);
    snprintf(what, sizeof what, "%d ranks: what a rank holds of the sum between the two halves [D]", n);
    lab_check(what, 1.0 / n, f.between, 1e-12);
    put_algorithm("ring", n, f.off[RING], f.steps[RING], f.bytes[RING], (double[]){ 2.0 * (n - 1), least });
    if ((n & (n - 1)) == 0)
        put_algorithm("halving and doubling", n, f.off[HALVING], f.steps[HALVING], f.bytes[HALVING], (double[]){ 2 * depth, least });
    put_algorithm("tree", n, f.off[TREE], f.steps[TREE], f.bytes[TREE], (double[]){ 2 * depth, depth });
    return lab_close();
}
