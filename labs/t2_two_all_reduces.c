/* T2 - heads are independent: q, k and v are column-parallel, the output projection row-parallel, the MLP column then row. Two all-
 * reduces per layer in forward and two in backward.
 *
 * Counted on the tp communicator while a step runs, for 1 to 3 layers; in addition the embedding's forward and the output projection's
 * backward have one each (the vocabulary is sharded too; the loss exchanges statistics of the logits by all-gather). The step is that
 * of one rank: loss, gradients, weights. */
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
        uint64_t before;
        ls_comm *tp;
        double loss;

        alone.sharded = 0;
        net.shape.tp = n;
        distributed_open(&net, comm, 0, &s);
        distributed_open(&alone, NULL, 0, &one);
        ls_program_comm_bytes(s.program, LS_FORWARD, LS_COLLECTIVE_ALL_REDUCE, &forward);
        ls_program_comm_bytes(s.program, LS_FORWARD | LS_BACKWARD, LS_COLLECTIVE_ALL_REDUCE, &both);
        tp = ls_mesh_comm(s.mesh, LS_GROUP_TP);
        before = ls_comm_counters(tp, LS_COLLECTIVE_ALL_REDUCE).calls;
        loss = distributed_step(&s, 0);
        f->forward[layers] = (double)forward;
        f->backward[layers] = (double)(both - forward);
        f->counted[layers] = (double)(ls_comm_counters(tp, LS_COLLECTIVE_ALL_REDUCE).calls - before);
        f->apart = fmax(f->apart, fabs(loss / distributed_step(&one, 0) - 1));
        f->apart = fmax(f->apart, distributed_apart(&s, &one, "gradient"));
        distributed_close(&s);
        distributed_close(&one);
    }
}

LAB(t2_two_all_reduces, "all-reduces of tensor parallelism")
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
        lab_equal("        a layer more: forward", 2, f[0].forward[LAYERS] - f[0].forward[LAYERS - 1], 0);
        lab_equal("        a layer more: backward", 2, f[0].backward[LAYERS] - f[0].backward[LAYERS - 1], 0);
        lab_equal("        a layer more: counted in a step that ran", 4, f[n - 1].counted[LAYERS] - f[n - 1].counted[LAYERS - 1], 0);
        lab_check_below("        loss and gradients apart from one rank's, relative", 1e-5, f[n - 1].apart);
        lab_unshare(f, MOST * sizeof *f);
    }
    return lab_close();
}
