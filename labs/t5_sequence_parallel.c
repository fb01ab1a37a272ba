/* T5 - sequence parallelism shards norms, dropout and residual by sequence over the ranks of tp. An all-reduce becomes a reduce-scatter
 * where the sum is computed and an all-gather where it is read: the same bytes, and what lies in between takes 1/T of the memory.
 *
 * Counted in a step on real ranks, on the tp communicator, with and without. The loss gathers statistics of the logits in both.
 * Parameters used on sequence shards (norms, biases added after a sum) have gradients that are partial sums: they are summed over tp
 * once per step, whatever the sequence length; the claim leaves that out.
 *
 * Memory is that of plans: what one more layer keeps for its backward. With sp it is 1/T of one rank's, except for gathered tensors:
 * the two inputs of column-parallel matmuls are kept gathered, for their weight gradients. Selective recomputation frees them and
 * gathers them again, which is a quarter more bytes for a layer: two of eight halves of an all-reduce. */
#include "lab_mesh.h"

enum { MOST = 4 };

struct found { double all_reduce[2], gather[2], scatter[2], apart[2]; };

static void sequence_parallel_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;

    for (int sp = 0; sp < 2; sp++) {
        struct net net = net_gpt2(2, 4, 16), alone = net;
        struct distributed s, one;

        alone.sharded = 0;
        net.shape.tp = n;
        net.options.sp = sp;
        distributed_open(&net, comm, 0, &s);
        distributed_open(&alone, NULL, 0, &one);
        double loss = distributed_step(&s, 0);
        ls_comm *tp = ls_mesh_comm(s.mesh, LS_GROUP_TP);
        f->all_reduce[sp] = (double)sent(tp, LS_COLLECTIVE_ALL_REDUCE);
        f->gather[sp] = (double)sent(tp, LS_COLLECTIVE_ALL_GATHER);
        f->scatter[sp] = (double)sent(tp, LS_COLLECTIVE_REDUCE_SCATTER);
        f->apart[sp] = fabs(loss / distributed_step(&one, 0) - 1);
        f->apart[sp] = fmax(f->apart[sp], distributed_apart(&s, &one, "gradient"));
        distributed_close(&s);
        distributed_close(&one);
    }
}

/* Gradients that are partial sums over tp with sp: norms, and biases after a sum; the embedding of positions. */
static double partial_sums(const struct net *n)
{
    double c = (double)n->model.width, l = (double)n->model.layers;

    return l * (4 * c + 2 * c) + 2 * c + (double)n->time * c;
}

static void counted(int n)
{
    struct found *f = lab_shared(MOST * sizeof *f);
    struct net net = net_gpt2(2, 4, 16);
    double sum[2] = { 0 }, once = 0, apart = 0;
    char what[80];

    lab_ranks(n, sequence_parallel_run, f);
    for (int r = 0; r < n; r++) {
        sum[0] += f[r].all_reduce[0];
        sum[1] += f[r].gather[1] - f[r].gather[0] + f[r].scatter[1];
        once += f[r].all_reduce[1];
        apart = fmax(apart, fmax(f[r].apart[0], f[r].apart[1]));
    }
    snprintf(what, sizeof what, "tp %d: all ranks, reduce-scatter + all-gather as all-reduce [bytes]", n);
    lab_equal(what, sum[0], sum[1], 0);
    snprintf(what, sizeof what, "tp %d: bytes of the layers with sequence parallelism / without", n);
    lab_check(what, 1, sum[1] / sum[0], 0);
    lab_check("        besides, once a step: gradients of norms and biases [bytes]", 2 * (n - 1) * 4 * partial_sums(&net), once, 0);
    lab_check_below("        loss and gradients apart from one rank's, relative", 1e-5, apart);
    lab_unshare(f, MOST * sizeof *f);
}

/* The cost of one more layer: bytes of activations, and bytes that a rank sends for it in a micro-batch. */
static double sequence_parallel_layer(int tp, int sp, ls_recompute recompute, double *wire)
{
    static const int collectives[] = { LS_COLLECTIVE_ALL_REDUCE, LS_COLLECTIVE_ALL_GATHER, LS_COLLECTIVE_REDUCE_SCATTER };
    double bytes[2], moved[2] = { 0 };

    for (int k = 0; k < 2; k++) {
        struct net n = net_gpt2((size_t)(4 + 4 * k), 32, 1024);
        struct distributed s;

        n.shape.tp = tp;
        n.options.sp = sp;
        n.recompute = recompute;
        distributed_plan(&n, 0, tp, &s);
        bytes[k] = (double)ls_program_cost(s.program).activations;
        for (int c = 0; c < 3; c++)
            moved[k] += (double)ls_program_comm_bytes(s.program, LS_FORWARD | LS_BACKWARD, collectives[c], NULL);
        distributed_close(&s);
    }
    *wire = (moved[1] - moved[0]) / 4;
    return (bytes[1] - bytes[0]) / 4;
}

LAB(t5_sequence_parallel, "sequence parallelism", { "ranks", "ranks of tensor parallelism, of the plans", 4, 2, 32 })
{
    int T = (int)lab_size("ranks");
    double one[2], tensor[2], sequence[2], wire[2][2], bsd = 4.0 * 4 * 1024 * 256, even = 1024 % T ? 0.05 : 0.01;
    char what[80];

    lab_open("T5");
    for (int n = 2; n <= MOST; n++) counted(n);
    for (int k = 0; k < 2; k++) {
        ls_recompute r = k ? LS_RECOMPUTE_SELECTIVE : LS_RECOMPUTE_NONE;

        one[k] = sequence_parallel_layer(1, 0, r, &wire[0][k]) / bsd;
        tensor[k] = sequence_parallel_layer(T, 0, r, &wire[0][k]) / bsd;
        sequence[k] = sequence_parallel_layer(T, 1, r, &wire[1][k]) / bsd;
    }
    lab_say("\nheld by a layer of GPT-2 (b 4, s 1024, d 256, f32) for its backward, in b s d, tp %d\n%-32s %10s %10s %14s\n", T, "",
            "one rank", "tp", "tp with sp");
    lab_say("%-32s %10.3f %10.3f %14.3f\n", "everything kept", one[0], tensor[0], sequence[0]);
    lab_say("%-32s %10.3f %10.3f %14.3f\n\n", "selective recomputation", one[1], tensor[1], sequence[1]);
    snprintf(what, sizeof what, "less memory: tp %d with sp / tp %d", T, T);
    lab_below(what, 1, sequence[0] / tensor[0]);
    snprintf(what, sizeof what, "tp %d, what a layer keeps: with sp / without, selective recomputation", T);
    lab_check_below(what, 1, sequence[1] / tensor[1]);
    snprintf(what, sizeof what, "tp %d, bytes sent for a layer: with sp / without", T);
    lab_check(what, 1, wire[1][0] / wire[0][0], 0.02);
    lab_check("        with selective recomputation, which gathers two inputs again: 10/8", 1.25, wire[1][1] / wire[0][1], 0.02);
    lab_check("tp with sp / one rank's: 1/T and the inputs that stay gathered", 1.0 / T + 2.0 * (T - 1) / T / one[0],
              sequence[0] / one[0], even);
    lab_equal("        with selective recomputation, which gathers them again: 1/T", 1.0 / T, sequence[1] / one[1], even);
    return lab_close();
}
