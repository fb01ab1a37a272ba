/* T6 - context parallelism shards the sequence everywhere. Ring attention (Liu et al. 2023) passes keys and values around while each
 * rank keeps its queries with the running maximum and sum of their softmax. Causal attention needs balanced slices: with n slices in
 * order the last rank has 2n-1 times the work of the first; with zigzag, rank r of n gets the pieces r and 2n-1-r of 2n instead.
 *
 * The training is that of one rank, on real ranks. FLOPs of each rank are those of the ring's program, and for slices in order those of
 * attention of a slice's queries over all keys up to them. Seconds are printed, one rank at a time. Memory: what one more layer keeps,
 * and the total of a rank, planned for 8192 tokens. */
#include "lab_mesh.h"

enum { MOST = 4, RANKS = 4, TOKENS = 1024, HEADS = 4, SIZE = 32 };

struct found { double apart; };

static void ring_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;
    struct net net = net_gpt2(2, 4, 26), alone = net;
    struct distributed s, one;

    alone.sharded = 0;
    net.shape.cp = n;
    distributed_open(&net, comm, 0, &s);
    distributed_open(&alone, NULL, 0, &one);
    for (int step = 0; step < 3; step++) {
        double loss = distributed_step(&s, step), whole = distributed_step(&one, step);

        f->apart = fmax(f->apart, fabs(loss / whole - 1));
        f->apart = fmax(f->apart, distributed_apart(&s, &one, "gradient"));
    }
    distributed_close(&s);
    distributed_close(&one);
}

/* ---- balance ---- */

struct slice { size_t begin, end; };
struct work { double flops, seconds; };

/* Attention of the queries of these slices over all keys up to them. */
static struct work attend(int n, const struct slice *own)
{
    struct work w = { 0, 1e9 };
    ls_program *p;
    ls_store *s;
    char name[3][16];

    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    for (int k = 0; k < n; k++) {
        ls_value q, key, value;

        for (int i = 0; i < 3; i++) snprintf(name[i], sizeof name[i], "%c%d", "qkv"[i], k);
        q = ls_input(p, name[0], LS_F32, SIZES(1, own[k].end - own[k].begin, HEADS, SIZE));
        key = ls_input(p, name[1], LS_F32, SIZES(1, own[k].end, HEADS, SIZE));
        value = ls_input(p, name[2], LS_F32, SIZES(1, own[k].end, HEADS, SIZE));
        snprintf(name[0], sizeof name[0], "o%d", k);
        ls_output(p, name[0], ls_attention(p, q, key, value, 1, LS_NONE));
    }
    TRY(ls_program_compile(p, NULL));
    w.flops = ls_program_cost(p).forward_flops;
    for (int k = 0; k < 5; k++) {
        double from = seconds_now();

        TRY(ls_program_run(p, LS_FORWARD));
        w.seconds = fmin(w.seconds, seconds_now() - from);
    }
    ls_program_release(&p);
    ls_store_release(&s);
    return w;
}

static void balance(void)
{
    size_t part = TOKENS / RANKS, piece = part / 2;
    double sum[2] = { 0 }, most[2] = { 0 }, first = 0;

    lab_say("%d tokens over %d ranks, one head group's attention: operations and ms of a rank\n%6s %14s %10s %14s %10s\n", TOKENS, RANKS,
           "rank", "in order", "ms", "zigzag", "ms");
    for (size_t r = 0; r < RANKS; r++) {
        struct work order = attend(1, (struct slice[]){ { r * part, (r + 1) * part } });
        struct work zigzag = attend(2, (struct slice[]){ { r * piece, (r + 1) * piece },
                                                         { (2 * RANKS - 1 - r) * piece, (2 * RANKS - r) * piece } });

        lab_say("%6zu %14.0f %10.2f %14.0f %10.2f\n", r, order.flops, 1e3 * order.seconds, zigzag.flops, 1e3 * zigzag.seconds);
        first = r ? first : order.flops;
        for (int k = 0; k < 2; k++) {
            struct work w = k ? zigzag : order;

            sum[k] += w.flops;
            most[k] = fmax(most[k], w.flops);
        }
    }
    lab_say("\n");
    lab_not_measurable("time of each rank with and without balance",
                       "why: ranks share cores (the milliseconds printed are of one rank at a time); needs a core for each rank");
    lab_equal("in order: operations of the last rank / the first's, 2n-1", 2 * RANKS - 1, most[0] / first, 0.01);
    lab_equal("        the last rank / the mean: 2 - 1/n", 2 - 1.0 / RANKS, most[0] / (sum[0] / RANKS), 0.01);
    lab_equal("zigzag: the rank with most work / the mean", 1, most[1] / (sum[1] / RANKS), 1e-12);
}

/* ---- priced ---- */

static ls_cost ring_price(size_t layers, int cp, int rank)
{
    struct net n = net_gpt2(layers, 8, 8192);
    struct distributed s;
    ls_cost c;

    n.samples = 1;
    n.shape.dp = 1;
    n.shape.cp = cp;
    distributed_plan(&n, rank, cp, &s);
    c = ls_program_cost(s.program);
    distributed_close(&s);
    return c;
}

LAB(t6_ring, "ring attention")
{
    struct found *f = lab_shared(MOST * sizeof *f);
    char what[80];
    double apart[MOST + 1], one, layer, flops, extra[2];

    for (int n = 2; n <= MOST; n++) {
        memset(f, 0, MOST * sizeof *f);
        lab_ranks(n, ring_run, f);
        for (int r = 0; r < n; r++) f[0].apart = fmax(f[0].apart, f[r].apart);
        apart[n] = f[0].apart;
    }
    lab_open("T6");
    for (int n = 2; n <= MOST; n++) {
        snprintf(what, sizeof what, "cp %d, 26 tokens, 3 steps: apart from one rank, relative", n);
        lab_check_below(what, 1e-5, apart[n]);
    }
    balance();
    flops = ring_price(2, RANKS, 0).forward_flops;
    for (int r = 1; r < RANKS; r++) {
        snprintf(what, sizeof what, "the ring's program: operations of rank %d / rank 0's", r);
        lab_equal(what, 1, ring_price(2, RANKS, r).forward_flops / flops, 1e-12);
    }
    one = (double)ring_price(4, 1, 0).activations;
    layer = (double)ring_price(8, 1, 0).activations - one;
    for (int cp = 2; cp <= 8; cp *= 2) {
        double part = (double)ring_price(4, cp, 0).activations;

        snprintf(what, sizeof what, "8192 tokens, cp %d: held by a layer / one rank's, 1/cp", cp);
        lab_equal(what, 1.0 / cp, ((double)ring_price(8, cp, 0).activations - part) / layer, 0.01);
        extra[0] = part - one / cp;
        extra[1] = (double)ring_price(8, cp, 0).activations - (one + layer) / cp;
        lab_check("        keys and values on their way, the same with twice the layers [MB]", extra[0] / 1e6, extra[1] / 1e6, 1e-6);
    }
    lab_unshare(f, MOST * sizeof *f);
    return lab_close();
}
