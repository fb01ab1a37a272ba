/* Z4 - FSDP's peak is N/K and the largest gathered units, not the model. Weights are gathered twice, in forward and in
 * backward; keeping them after forward (reshard_after_forward=false) saves a third of the traffic and holds the complete model.
 *
 * W2 - it is said that FSDP's extra gather is in forward and that its backward only reduce-scatters. Backward gathers every layer, too.
 *
 * Llama with 16 layers on 8 ranks (--layers, --ranks), f32, planned. The units are the layers, the embedding, and the output
 * projection. While one unit computes, the next is gathered; without overlap only one is gathered at a time. */
#include "lab_program.h"
#include "lab_train.h"

struct priced {
    ls_cost cost;
    double gathered, reduced, whole, elements, largest;
    size_t gathers, reductions;
    int forward, backward, scattered; /* gathers and reduce-scatters of layers */
};

static struct priced fsdp_price(int zero, int overlap, int keep)
{
    struct job j = job_of((size_t)lab_size("layers"), 64);
    struct priced out = { 0 };
    struct training t;
    ls_comm *comm;
    int ranks = (int)lab_size("ranks");

    j.samples = 3 * ranks;
    j.data.zero = zero;
    j.data.overlap = overlap;
    j.data.reshard_after_forward = !keep;
    TRY(ls_comm_open("plan:", 0, ranks, &comm));
    training_open(&j, comm, 1, &t);
    out.cost = ls_program_cost(t.program);
    out.elements = (double)ls_store_elements(t.store);
    out.whole = 4 * out.elements;
    out.gathered = (double)ls_program_comm_bytes(t.program, WHOLE_STEP, LS_COLLECTIVE_ALL_GATHER, &out.gathers);
    out.reduced = (double)ls_program_comm_bytes(t.program, WHOLE_STEP, LS_COLLECTIVE_REDUCE_SCATTER, &out.reductions);
    struct instructions l = instructions_of(t.program);
    for (int k = 0; k < l.n; k++)
        if (is_op(&l.at[k], "all_gather")) out.largest = fmax(out.largest, 4 * (double)l.at[k].elements);
    for (int k = 0; k < l.n; k++) {
        const ls_instruction *i = &l.at[k];

        if (i->exchange == LS_EXCHANGE_WAIT || 4 * (double)i->elements < out.largest / 2) continue; /* embedding, output: small */
        if (is_op(i, "all_gather")) *(i->segment == LS_FORWARD ? &out.forward : &out.backward) += 1;
        out.scattered += is_op(i, "reduce_scatter");
    }
    free(l.at);
    training_close(&t);
    ls_comm_close(&comm);
    return out;
}

static void print(const char *what, const struct priced *p)
{
    lab_say("%-28s %14zu %16zu %9zu %14.0f %18.0f\n", what, p->cost.parameters, p->cost.communication, p->gathers, p->gathered,
           p->reduced);
}

/* The collectives of all layers in a step, and what keeping gathered weights saves of their bytes. */
static void layers_print(int layers, const struct priced *p, const struct priced *keep)
{
    const int claimed[] = { layers, layers, layers, 2 * layers, 3 * layers };
    const int counted[] = { p->forward, p->backward, p->scattered, p->backward + p->scattered, p->forward + p->backward + p->scattered };
    static const char *const name[] = { "gathers in forward", "gathers in backward", "reduce-scatters in backward",
                                        "collectives in backward", "collectives in a step" };
    char what[80];

    for (int k = 0; k < 5; k++) {
        snprintf(what, sizeof what, "%d layers: %s", layers, name[k]);
        lab_equal(what, claimed[k], counted[k], 0);
    }
    snprintf(what, sizeof what, "%d layers: traffic saved by keeping gathered weights [%%]", layers);
    lab_check(what, 100.0 / 3, 100 * (1 - (keep->gathered + keep->reduced) / (p->gathered + p->reduced)), 0.02);
}

static void said_of_gathers(int layers, int ranks, const struct priced *fsdp, const struct priced *keep)
{
    double all_reduced = 2 * fsdp->whole * (ranks - 1) / ranks;
    char what[80];

    lab_open("W2");
    snprintf(what, sizeof what, "%d layers: gathers in backward", layers);
    lab_corrected(what, '=', 0, layers, fsdp->backward, 0, "why: weights are freed after forward, and the input gradient needs them");
    lab_check("without them (weights are kept after forward): sent by a rank / by DDP's all-reduces", 1,
              (keep->gathered + keep->reduced) / all_reduced, 1e-2);
}

LAB(z4_fsdp, "the peak of FSDP", { "layers", "layers of the model", 16, 8, 128 }, { "ranks", "data-parallel ranks", 8, 2, 64 })
{
    int ranks = (int)lab_size("ranks"), layers = (int)lab_size("layers");
    struct priced ddp = fsdp_price(0, 1, 0), two = fsdp_price(3, 1, 0), one = fsdp_price(3, 0, 0), keep = fsdp_price(3, 1, 1);
    double embedding = 4.0 * VOCAB * 64 * (ranks - 1) / ranks, share = (double)(ranks - 1) / ranks;
    double off = 64 % ranks ? 1e-3 : 1e-9; /* shards of one unit may differ by an element */

    lab_say("bytes of rank 0; whole model %.0f, largest unit %.0f\n%-28s %14s %16s %9s %14s %18s\n", two.whole, two.largest, "",
           "parameters", "communication", "gathers", "gathered", "reduce-scattered");
    print("DDP", &ddp);
    print("FSDP", &two);
    print("FSDP, one unit at a time", &one);
    print("FSDP, no resharding", &keep);
    lab_say("\n");
    lab_open("Z4");
    lab_equal("FSDP: weights held between steps, N/K [bytes]", two.whole / ranks, (double)two.cost.parameters,
              64 % ranks ? 4.0 * (layers + 2) / (two.whole / ranks) : 0);
    lab_corrected("without prefetch: communication buffers [units]", '=', 1, 2, (double)one.cost.communication / one.largest, 0.01,
                  "why: backward also holds the unit's unsharded gradient");
    lab_corrected("with prefetch of the next unit: communication buffers [units]", '=', 1, 4,
                  (double)two.cost.communication / two.largest, 0.01, "why: weights and gradients of two units");
    lab_below("       communication buffers / model", 1, (double)two.cost.communication / two.whole);
    lab_corrected("gathers per step, each unit twice", '=', 2 * (layers + 2), 2 * (layers + 2) - 1, (double)two.gathers, 0,
                  "why: backward does not read the embedding, so it is gathered once");
    lab_check("gathered, and the embedding once more: 2 N (K-1)/K [bytes]", 2 * two.whole * share, two.gathered + embedding, off);
    lab_equal("kept after forward: gathered, N (K-1)/K [bytes]", two.whole * share, keep.gathered, off);
    lab_corrected("       share of the traffic saved", '=', 1.0 / 3,
                  (two.whole * share - embedding) / (3 * two.whole * share - embedding),
                  1 - (keep.gathered + keep.reduced) / (two.gathered + two.reduced), off, "why: the embedding again; otherwise a third");
    lab_above("       communication buffers / model", 1, (double)keep.cost.communication / keep.whole);
    layers_print(layers, &two, &keep);
    said_of_gathers(layers, ranks, &two, &keep);
    return lab_close();
}
