/* T2 - heads are independent: q, k and v are column-parallel, the output projection row-parallel, the MLP column then row. Two all-
 * reduces per layer in forward and two in backward.
 *
 * Counted on the tp communicator while a step runs, for 1 to 3 layers; in addition the embedding's forward and the output projection's
 * backward have one each (the vocabulary is sharded too; the loss exchanges statistics of the logits by all-gather). The step is that
 * of one rank: loss, gradients, weights.
 *
 * Heads of a rank are read from the attention of a planned program. With grouped-query attention (a Llama) there are fewer heads of keys
 * and values than of queries. They are sharded with the heads that use them; a rank has one at least, so with more ranks than these they
 * are replicated. */
#include "lab_program.h"
#include "lab_mesh.h"

enum { LAYERS = 3, MOST = 4 };

struct found { double forward[LAYERS + 1], backward[LAYERS + 1], counted[LAYERS + 1], apart; };

static void two_all_reduces_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;

    for (int layers = 1; layers <= LAYERS; layers++) {
        struct net net = net_gpt2((size_t)layers, 4, 16), alone = net;
        size_t forward, both;
        struct distributed s, one;

        alone.sharded = 0;
        net.shape.tp = n;
        distributed_open(&net, comm, 0, &s);
        distributed_open(&alone, NULL, 0, &one);
        ls_program_comm_bytes(s.program, LS_FORWARD, LS_COLLECTIVE_ALL_REDUCE, &forward);
        ls_program_comm_bytes(s.program, LS_FORWARD | LS_BACKWARD, LS_COLLECTIVE_ALL_REDUCE, &both);
        ls_comm *tp = ls_mesh_comm(s.mesh, LS_GROUP_TP);
        uint64_t before = ls_comm_counters(tp, LS_COLLECTIVE_ALL_REDUCE).calls;
        double loss = distributed_step(&s, 0);
        f->forward[layers] = (double)forward;
        f->backward[layers] = (double)(both - forward);
        f->counted[layers] = (double)(ls_comm_counters(tp, LS_COLLECTIVE_ALL_REDUCE).calls - before);
        f->apart = fmax(f->apart, fabs(loss / distributed_step(&one, 0) - 1));
        f->apart = fmax(f->apart, distributed_apart(&s, &one, "gradient"));
        distributed_close(&s);
        distributed_close(&one);
    }
}

/* Heads of queries, and of keys and values, that rank 0 of tp `n` has. */
static void two_all_reduces_heads(int n, size_t heads, size_t kv_heads)
{
    struct net net = net_gpt2(1, heads, 16);
    size_t queries = 0, keys = 0;
    struct distributed s;
    char what[80];

    net.model.architecture = LS_LLAMA;
    net.model.kv_heads = kv_heads;
    net.model.vocab = 256;
    net.model.rope = (ls_rope)LS_ROPE_DEFAULTS;
    net.shape.tp = n;
    distributed_plan(&net, 0, n, &s);
    struct instructions l = instructions_of(s.program);
    for (int k = 0; k < l.n; k++)
        if (is_op(&l.at[k], "attention")) queries = l.at[k].in[0].size[2], keys = l.at[k].in[1].size[2];
    free(l.at);
    distributed_close(&s);
    snprintf(what, sizeof what, "%zu heads over tp %d: heads of rank 0", heads, n);
    lab_check(what, (double)((size_t)n < kv_heads ? kv_heads / (size_t)n * (heads / kv_heads) : heads / (size_t)n), (double)queries, 0);
    snprintf(what, sizeof what, "%zu heads with %zu K/V heads over tp %d: K/V heads of rank 0", heads, kv_heads, n);
    lab_check(what, fmax(1, (double)(kv_heads / (size_t)n)), (double)keys, 0);
}

LAB(t2_two_all_reduces, "all-reduces of tensor parallelism", { "ranks", "ranks that the heads are divided over", 8, 2, 64 },
    { "heads", "attention heads", 64, 64, 256 }, { "kv-heads", "heads of keys and values", 8, 1, 64 })
{
    char what[80];

    lab_open("T2");
    for (int n = 2; n <= MOST; n += 2) {
        struct found *f = lab_shared(MOST * sizeof *f);

        lab_ranks(n, two_all_reduces_run, f);
        for (int layers = 1; layers <= LAYERS; layers++) {
            snprintf(what, sizeof what, "tp %d, %d layers: forward, 2 L and the embedding's", n, layers);
            lab_check(what, 2 * layers + 1, f[0].forward[layers], 0);
            lab_check("        backward, 2 L and the output projection's", 2 * layers + 1, f[0].backward[layers], 0);
        }
        snprintf(what, sizeof what, "tp %d, a layer more: forward", n);
        lab_equal(what, 2, f[0].forward[LAYERS] - f[0].forward[LAYERS - 1], 0);
        lab_equal("        backward", 2, f[0].backward[LAYERS] - f[0].backward[LAYERS - 1], 0);
        snprintf(what, sizeof what, "tp %d, a layer more: counted in a step that ran", n);
        lab_equal(what, 4, f[n - 1].counted[LAYERS] - f[n - 1].counted[LAYERS - 1], 0);
        lab_check_below("        loss and gradients apart from one rank's, relative", 1e-5, f[n - 1].apart);
        lab_unshare(f, MOST * sizeof *f);
    }
    two_all_reduces_heads((int)lab_size("ranks"), (size_t)lab_size("heads"), (size_t)lab_size("kv-heads"));
    return lab_close();
}
