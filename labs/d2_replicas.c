/* D2 - gradients are synchronized, not parameters: every rank makes the same update from the same sum, so the weights stay bitwise
 * equal on all ranks although they are never sent. */
#include "lab_train.h"

enum { STEPS = 5, RANKS = 4 };

struct found { uint64_t hash[STEPS], reduced, others, elements; };

static void replicas_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;
    struct job j = job_of(2, 32);
    struct training t;

    (void)n;
    training_open(&j, comm, 0, &t);
    for (int s = 0; s < STEPS; s++) {
        training_step(&t, s);
        f->hash[s] = training_hash(&t);
    }
    for (int c = 0; c < LS_COLLECTIVES; c++)
        *(c == LS_COLLECTIVE_ALL_REDUCE ? &f->reduced : &f->others) += sent(comm, (ls_collective)c);
    f->elements = ls_store_elements(t.store);
    training_close(&t);
}

LAB(d2_replicas, "replicas stay identical")
{
    struct found *f = lab_shared(RANKS * sizeof *f);
    int differ = 0, same = 0;
    uint64_t reduced = 0, others = 0;

    lab_ranks(RANKS, replicas_run, f);
    lab_say("hash of all weights\n%6s", "step");
    for (int r = 0; r < RANKS; r++) lab_say("            rank %d", r);
    for (int s = 0; s < STEPS; s++) {
        lab_say("\n%6d", s + 1);
        for (int r = 0; r < RANKS; r++) {
            lab_say("  %016llx", (unsigned long long)f[r].hash[s]);
            differ += f[r].hash[s] != f[0].hash[s];
        }
        same += s > 0 && f[0].hash[s] == f[0].hash[s - 1];
    }
    for (int r = 0; r < RANKS; r++) {
        reduced += f[r].reduced;
        others += f[r].others;
    }
    lab_say("\n\n");
    lab_open("D2");
    lab_equal("ranks whose weights differ from rank 0's, over 5 steps", 0, differ, 0);
    lab_check("steps that left the weights as they were", 0, same, 0);
    lab_equal("gradients sent in a step, all ranks: 2 (K-1) 4 N [bytes]", 2.0 * (RANKS - 1) * 4 * (double)f->elements,
              (double)reduced / STEPS, 0);
    lab_equal("anything else, weights say [bytes]", 0, (double)others, 0);
    return lab_close();
}
