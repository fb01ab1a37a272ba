/* Z7 - hybrid sharding (HSDP): shards inside a node, replicas across nodes. Gathers and reduce-scatters stay inside a node; between
 * nodes each rank sends only its own shard's gradient, once. The cost: K / replicas ranks share a copy, so each holds more of it.
 *
 * Two nodes of --ranks ranks are planned: the program's text says over how many ranks each collective runs. Then two nodes of two ranks
 * train, flat and hybrid, with the same result; bytes to each peer are counted in the flat run, and in the hybrid one by repeating
 * its collectives on the lab's own groups. */
#include "lab_program.h"
#include "lab_train.h"

enum { RANKS = 4, NODE = 2, STEPS = 3, N_MOST = 1 << 17 };

/* ---- planned: 2 nodes of 4 or more ---- */

struct priced { double inside, across, all, parameters, elements; };

/* Bytes that rank 0 sends in a step, by the group of each collective. */
static struct priced hybrid_price(int replicate)
{
    struct job j = job_of(4, 64);
    int node = (int)lab_size("ranks");
    struct priced out = { 0 };
    struct training t;
    ls_comm *comm;

    j.data.zero = 3;
    j.data.replicate = replicate;
    j.samples = 2 * node;
    TRY(ls_comm_open("plan:", 0, 2 * node, &comm));
    training_open(&j, comm, 1, &t);
    struct instructions l = instructions_of(t.program);
    for (int k = 0; k < l.n; k++) {
        int sum = is_op(&l.at[k], "all_reduce"), n = l.at[k].ranks;

        if (!sum && !is_op(&l.at[k], "all_gather") && !is_op(&l.at[k], "reduce_scatter")) continue;
        double bytes = l.at[k].elements == 1 && sum ? 0 : (sum ? 2 : 1) * 4 * (double)l.at[k].elements * (n - 1) / n;
        *(n == 2 ? &out.across : &out.inside) += bytes;
    }
    out.all = (double)(ls_program_comm_bytes(t.program, WHOLE_STEP, LS_COLLECTIVE_ALL_GATHER, NULL)
                       + ls_program_comm_bytes(t.program, WHOLE_STEP, LS_COLLECTIVE_REDUCE_SCATTER, NULL)
                       + ls_program_comm_bytes(t.program, WHOLE_STEP, LS_COLLECTIVE_ALL_REDUCE, NULL));
    out.parameters = (double)ls_program_cost(t.program).parameters;
    out.elements = (double)ls_store_elements(t.store);
    if (replicate == 1) {  /* each peer gets as much; with 4 ranks a node, 4 of 7 are on the other node */
        out.across = out.inside * node / (2 * node - 1);
        out.inside -= out.across;
    }
    free(l.at);
    training_close(&t);
    ls_comm_close(&comm);
    return out;
}

/* ---- run: 2 nodes of 2 ---- */

struct found { double inside, across, by_hand_inside, by_hand_across, loss[2]; size_t elements; };

static double hybrid_train(ls_comm *comm, int replicate, struct found *f)
{
    struct job j = job_of(2, 64);
    struct training t;
    double loss = 0;

    j.data.zero = 3;
    j.data.replicate = replicate;
    training_open(&j, comm, 0, &t);
    for (int s = 0; s < STEPS; s++) loss = training_step(&t, s);
    f->elements = ls_store_elements(t.store);
    training_close(&t);
    return loss;
}

/* What a step of ZeRO-3 does with a model of one unit: twice gathered, reduced and scattered, the shard's sum over the nodes. */
static void by_hand(ls_comm *comm, int rank, struct found *f)
{
    static float whole[N_MOST], shard[N_MOST];
    ls_comm *node, *across;
    size_t own = f->elements / NODE;

    if (f->elements > N_MOST) exit(1);
    TRY(ls_comm_split(comm, rank / NODE, rank, &node));
    TRY(ls_comm_split(comm, rank % NODE, rank, &across));
    for (int twice = 0; twice < 2; twice++) TRY(ls_all_gather(node, shard, whole, own, LS_F32, NULL));
    TRY(ls_reduce_scatter(node, whole, shard, own, LS_F32, LS_SUM, NULL));
    TRY(ls_all_reduce(across, shard, shard, own, LS_F32, LS_SUM, NULL));
    f->by_hand_inside = (double)ls_comm_bytes_to(node, 1 - rank % NODE);
    f->by_hand_across = (double)ls_comm_bytes_to(across, 1 - rank / NODE);
    ls_comm_close(&across);
    ls_comm_close(&node);
}

static void hybrid_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;

    f->loss[0] = hybrid_train(comm, 1, f);
    for (int r = 0; r < n; r++) *(r / NODE == rank / NODE ? &f->inside : &f->across) += (double)ls_comm_bytes_to(comm, r) / STEPS;
    f->loss[1] = hybrid_train(comm, 2, f);
    by_hand(comm, rank, f);
}

LAB(z7_hybrid, "hybrid sharding", { "ranks", "ranks of each of the two nodes that are planned", 4, 3, 32 })
{
    struct found *f = lab_shared(RANKS * sizeof *f);
    double loss[2] = { 0 };
    int node = (int)lab_size("ranks");
    double padding = node & (node - 1) ? 1e-3 : 1e-9; /* shards are padded where the ranks do not divide a tensor */
    char what[2][80];

    lab_ranks(RANKS, hybrid_run, f);
    struct priced flat = hybrid_price(1);
    struct priced hybrid = hybrid_price(2);
    for (int r = 0; r < RANKS; r++)
        for (int k = 0; k < 2; k++) loss[k] += f[r].loss[k];
    lab_say("a rank sends in a step, models of N floats\n%34s %12s %12s\n", "", "in the node", "across");
    double model = 4 * flat.elements;
    lab_say("2 nodes of %2d, ZeRO-3 over all     %12.4f %12.4f\n", node, flat.inside / model, flat.across / model);
    lab_say("%34s %12.4f %12.4f\n", "hybrid", hybrid.inside / model, hybrid.across / model);
    model = 4 * (double)f[0].elements;
    lab_say("%34s %12.4f %12.4f\n", "2 nodes of 2, over all, counted", f[0].inside / model, f[0].across / model);
    lab_say("%34s %12.4f %12.4f\n\n", "hybrid, by hand, counted", f[0].by_hand_inside / model, f[0].by_hand_across / model);
    lab_open("Z7");
    model = 4 * flat.elements;
    snprintf(what[0], sizeof what[0], "2 x %d: across, hybrid: N/%d of gradients, summed over 2", node, node);
    snprintf(what[1], sizeof what[1], "       weights held: N/%d, not N/%d", node, 2 * node);
    lab_equal(what[0], 1.0 / node, hybrid.across / model, padding);
    lab_check("       all of it and the norm (24 bytes) is what was planned", hybrid.inside + hybrid.across, hybrid.all,
              fmax(24 / hybrid.all, padding));
    lab_above("       across, flat / hybrid", 1, flat.across / hybrid.across);
    lab_equal(what[1], 2, hybrid.parameters / flat.parameters, padding);
    model = 4 * (double)f[0].elements;
    lab_equal("2 x 2: hybrid by hand, inside: 3 N / 2", 1.5, f[0].by_hand_inside / model, 1e-3);
    lab_equal("       across: N / 2", 0.5, f[0].by_hand_across / model, 1e-3);
    lab_above("       over all: counted across / hybrid's", 1, f[0].across / f[0].by_hand_across);
    lab_check("       the same training: loss of the last step", loss[0], loss[1], 1e-5);
    return lab_close();
}
