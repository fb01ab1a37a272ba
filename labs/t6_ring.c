/* T6 - context parallelism shards the sequence everywhere. Ring attention (Liu et al. 2023) passes keys and values around while each
 * rank keeps its queries with the running maximum and sum of their softmax. Causal attention needs balanced shards: with n shards in
 * order the last rank has 2n-1 times the work of the first; with zigzag, rank r of n gets the chunks r and 2n-1-r of 2n instead.
 *
 * The training is that of one rank, on real ranks. FLOPs of each rank are those of the ring's program, and for shards in order those of
 * attention of a shard's queries over all keys up to them. Seconds are printed, one rank at a time. Memory: what one more layer keeps,
 * and the total of a rank, planned for 8192 tokens; and what a rank holds of one tensor [1, tokens, width] of a million tokens in bf16. */
#include "lab_program.h"
#include "lab_mesh.h"

enum { MOST = 4, TOKENS = 1024, HEADS = 4, SIZE = 32 };

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

struct range { size_t begin, end; };
struct work { double flops, seconds; };

/* Attention of the queries of these ranges over all keys up to them. */
static struct work attend(int n, const struct range *own)
{
    struct work w = { 0, 1e9 };
    ls_program *p;
    ls_store *s;
    char name[3][16];

    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < 3; i++) snprintf(name[i], sizeof name[i], "%c%d", "qkv"[i], k);
        ls_value q = ls_input(p, name[0], LS_F32, SIZES(1, own[k].end - own[k].begin, HEADS, SIZE));
        ls_value key = ls_input(p, name[1], LS_F32, SIZES(1, own[k].end, HEADS, SIZE));
        ls_value value = ls_input(p, name[2], LS_F32, SIZES(1, own[k].end, HEADS, SIZE));
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

static void balance(size_t ranks)
{
    size_t shard = TOKENS / ranks, chunk = shard / 2;
    double sum[2] = { 0 }, most[2] = { 0 }, first = 0;

    lab_say("%d tokens over %d ranks, one head group's attention: operations and ms of a rank\n%6s %14s %10s %14s %10s\n", TOKENS,
            (int)ranks, "rank", "in order", "ms", "zigzag", "ms");
    for (size_t r = 0; r < ranks; r++) {
        struct work order = attend(1, (struct range[]){ { r * shard, (r + 1) * shard } });
        struct work zigzag = attend(2, (struct range[]){ { r * chunk, (r + 1) * chunk },
                                                         { (2 * ranks - 1 - r) * chunk, (2 * ranks - r) * chunk } });

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
    lab_equal("in order: operations of the last rank / the first's, 2n-1", 2 * (double)ranks - 1, most[0] / first, 0.01 * (double)ranks);
    lab_equal("        the last rank / the mean: 2 - 1/n", 2 - 1.0 / (double)ranks, most[0] / (sum[0] / (double)ranks), 0.01);
    lab_equal("zigzag: the rank with most work / the mean", 1, most[1] / (sum[1] / (double)ranks), 1e-12);
}

/* ---- priced ---- */

static ls_cost ring_price(size_t layers, int cp, int rank)
{
    struct net n = net_gpt2(layers, 8, 8192);
    struct distributed s;

    n.samples = 1;
    n.shape.dp = 1;
    n.shape.cp = cp;
    distributed_plan(&n, rank, cp, &s);
    ls_cost c = ls_program_cost(s.program);
    distributed_close(&s);
    return c;
}

/* Bytes that rank 0 holds of the residual stream, [1, tokens, width], by the program of one layer. */
static double tensor_of(int cp, size_t tokens, size_t width)
{
    struct net n = net_gpt2(1, width / 128, tokens);
    double bytes = 0;
    struct distributed s;

    n.model.width = width;
    n.model.ffn = width;
    n.type = LS_BF16;
    n.samples = 1;
    n.shape.dp = 1;
    n.shape.cp = cp;
    distributed_plan(&n, 0, cp, &s);
    struct instructions l = instructions_of(s.program);
    for (int k = 0; k < l.n; k++)
        if (l.at[k].segment == LS_FORWARD && is_op(&l.at[k], "layer_norm") && bytes == 0) bytes = (double)l.at[k].out[0].bytes;
    free(l.at);
    distributed_close(&s);
    return bytes;
}

static void long_tensor(void)
{
    int cp = (int)lab_size("ranks");
    size_t tokens = (size_t)lab_size("seq-len"), width = (size_t)lab_size("width");
    double whole = 2.0 * (double)tokens * (double)width;
    char what[80];

    snprintf(what, sizeof what, "one tensor [1,%zu,%zu] in bf16, one rank [GB]", tokens, width);
    lab_check(what, whole / 1e9, tensor_of(1, tokens, width) / 1e9, 1e-9);
    snprintf(what, sizeof what, "one tensor [1,%zu,%zu] in bf16, cp %d [GB]", tokens, width, cp);
    lab_check(what, whole / cp / 1e9, tensor_of(cp, tokens, width) / 1e9, 1e-4);
}

LAB(t6_ring, "ring attention", { "ranks", "ranks of context parallelism", 4, 2, 32 },
    { "seq-len", "tokens of the long tensor", 1000000, 1024, 1 << 24 },
    { "width", "width of the long tensor, a multiple of 128", 8192, 128, 65536 })
{
    int ranks = (int)lab_size("ranks");
    struct found *f = lab_shared(MOST * sizeof *f);
    char what[80];
    double apart[MOST + 1], extra[2];

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
    balance((size_t)ranks);
    double flops = ring_price(2, ranks, 0).forward_flops;
    for (int r = 1; r < ranks; r++) {
        snprintf(what, sizeof what, "the ring's program: operations of rank %d / rank 0's", r);
        lab_equal(what, 1, ring_price(2, ranks, r).forward_flops / flops, 8192 % (2 * ranks) ? 0.01 : 1e-12);
    }
    double one = (double)ring_price(4, 1, 0).activations;
    double layer = (double)ring_price(8, 1, 0).activations - one;
    for (int cp = 2; cp <= 8; cp *= 2) {
        double part = (double)ring_price(4, cp, 0).activations;

        snprintf(what, sizeof what, "8192 tokens, cp %d: held by a layer / one rank's, 1/cp", cp);
        lab_equal(what, 1.0 / cp, ((double)ring_price(8, cp, 0).activations - part) / layer, 0.01);
        extra[0] = part - one / cp;
        extra[1] = (double)ring_price(8, cp, 0).activations - (one + layer) / cp;
        lab_check("        keys and values on their way, the same with twice the layers [MB]", extra[0] / 1e6, extra[1] / 1e6, 1e-6);
    }
    long_tensor();
    lab_unshare(f, MOST * sizeof *f);
    return lab_close();
}
