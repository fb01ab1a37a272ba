/* Z4 - FSDP's peak is N/K and the largest gathered units, not the model. Weights are gathered twice, in forward and in
 * backward; keeping them after forward (reshard_after_forward=false) saves a third of the traffic and holds the complete model.
 *
 * Llama with 16 layers on 8 ranks, f32, planned. The units are the layers, the embedding, and the output projection. While
 * one unit computes, the next is gathered; without overlap only one is gathered at a time. */
#include "lab_program.h"
#include "lab_train.h"

enum { LAYERS = 16, K = 8 };

struct priced { ls_cost cost; double gathered, reduced, whole, elements; size_t gathers, reductions; double largest; };

static struct priced fsdp_price(int zero, int overlap, int keep)
{
    struct job j = job_of(LAYERS, 64);
    struct priced out = { 0 };
    struct training t;
    struct instructions l;
    ls_comm *comm;

    j.data.zero = zero;
    j.data.overlap = overlap;
    j.data.reshard_after_forward = !keep;
    TRY(ls_comm_open("plan:", 0, K, &comm));
    training_open(&j, comm, 1, &t);
    out.cost = ls_program_cost(t.program);
    out.elements = (double)ls_store_elements(t.store);
    out.whole = 4 * out.elements;
    out.gathered = (double)ls_program_comm_bytes(t.program, WHOLE_STEP, LS_COLLECTIVE_ALL_GATHER, &out.gathers);
    out.reduced = (double)ls_program_comm_bytes(t.program, WHOLE_STEP, LS_COLLECTIVE_REDUCE_SCATTER, &out.reductions);
    l = instructions_of(t.program);
    for (int k = 0; k < l.n; k++)
        if (is_op(&l.at[k], "all_gather")) out.largest = fmax(out.largest, 4 * (double)l.at[k].elements);
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

LAB(z4_fsdp, "the peak of FSDP")
{
    struct priced ddp = fsdp_price(0, 1, 0), two = fsdp_price(3, 1, 0), one = fsdp_price(3, 0, 0), keep = fsdp_price(3, 1, 1);
    double embedding = 4.0 * VOCAB * 64 * (K - 1) / K, share = (double)(K - 1) / K;

    lab_say("bytes of rank 0; whole model %.0f, largest unit %.0f\n%-28s %14s %16s %9s %14s %18s\n", two.whole, two.largest, "",
           "parameters", "communication", "gathers", "gathered", "reduce-scattered");
    print("DDP", &ddp);
    print("FSDP", &two);
    print("FSDP, one unit at a time", &one);
    print("FSDP, no resharding", &keep);
    lab_say("\n");
    lab_open("Z4");
    lab_equal("FSDP: weights held between steps, N/K [bytes]", two.whole / K, (double)two.cost.parameters, 0);
    lab_corrected("without prefetch: communication buffers [units]", '=', 1, 2, (double)one.cost.communication / one.largest, 0.01,
                  "why: backward also holds the unit's unsharded gradient");
    lab_corrected("with prefetch of the next unit: communication buffers [units]", '=', 1, 4,
                  (double)two.cost.communication / two.largest, 0.01, "why: weights and gradients of two units");
    lab_below("       communication buffers / model", 1, (double)two.cost.communication / two.whole);
    lab_corrected("gathers per step, each unit twice", '=', 2 * (LAYERS + 2), 2 * (LAYERS + 2) - 1, (double)two.gathers, 0,
                  "why: backward does not read the embedding, so it is gathered once");
    lab_check("gathered, and the embedding once more: 2 N (K-1)/K [bytes]", 2 * two.whole * share, two.gathered + embedding, 1e-9);
    lab_equal("kept after forward: gathered, N (K-1)/K [bytes]", two.whole * share, keep.gathered, 1e-9);
    lab_corrected("       share of the traffic saved", '=', 1.0 / 3,
                  (two.whole * share - embedding) / (3 * two.whole * share - embedding),
                  1 - (keep.gathered + keep.reduced) / (two.gathered + two.reduced), 1e-9, "why: the embedding again; otherwise a third");
    lab_above("       communication buffers / model", 1, (double)keep.cost.communication / keep.whole);
    return lab_close();
}
