/* Z5 - the gather of the next unit overlaps the compute of this one.
 *
 * In the program, the wait for a unit is followed by the start of the next unit's gather, then by this unit's instructions. Only the
 * first gather of forward and of backward has nothing to overlap with. A gradient's reduce-scatter continues while the previous unit
 * computes. Seconds are printed but not compared with a claim: in shared memory the cores that compute also copy the bytes
 * (bench/overlap.py measures it on a slow link). */
#include "lab_program.h"
#include "lab_train.h"

enum { RANKS = 2, STEPS = 4 };

struct order { int gathers, alone, reductions, reductions_alone; };

static int computes_between(const struct instructions *l, int from, int to)
{
    int n = 0;

    for (int k = from + 1; k < to; k++) n += l->at[k].ranks == 0 && !is_op(&l->at[k], "view");
    return n;
}

static void print_line(const struct instructions *l, int k, int wait)
{
    lab_say("   %-9s %-15s %-34s instructions until its wait: %d\n", l->at[k].segment == LS_FORWARD ? "forward" : "backward", l->at[k].op,
           l->at[k].out[0].name, computes_between(l, k, wait));
}

static struct order order_of(int overlap, int shown)
{
    struct job j = job_of((size_t)lab_size("layers"), 64);
    struct order o = { 0 };
    struct training t;
    struct instructions l;
    ls_comm *comm;

    j.data.zero = 3;
    j.data.overlap = overlap;
    TRY(ls_comm_open("plan:", 0, 4, &comm));
    training_open(&j, comm, 1, &t);
    l = instructions_of(t.program);
    for (int k = 0; k < l.n; k++) {
        int gather = is_op(&l.at[k], "all_gather"), wait = wait_of(&l, k);

        if (!gather && !is_op(&l.at[k], "reduce_scatter")) continue;
        if (wait < 0) exit(1);
        *(gather ? &o.gathers : &o.reductions) += 1;
        *(gather ? &o.alone : &o.reductions_alone) += !computes_between(&l, k, wait);
        if (gather && shown) print_line(&l, k, wait);
    }
    free(l.at);
    training_close(&t);
    ls_comm_close(&comm);
    return o;
}

struct found { double seconds[2], exposed[2]; uint64_t hash[2]; };

static void prefetch_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;
    struct job j = job_of((size_t)lab_size("layers"), 64);

    (void)n;
    j.data.zero = 3;
    for (int overlap = 0; overlap < 2; overlap++) {
        double before = exposed(comm);
        struct training t;

        j.data.overlap = overlap;
        training_open(&j, comm, 0, &t);
        f->seconds[overlap] = -seconds_now();
        for (int s = 0; s < STEPS; s++) training_step(&t, s);
        f->seconds[overlap] += seconds_now();
        f->exposed[overlap] = exposed(comm) - before;
        f->hash[overlap] = training_hash(&t);
        training_close(&t);
    }
}

LAB(z5_prefetch, "prefetch", { "layers", "layers of the model", 6, 1, 24 })
{
    int layers = (int)lab_size("layers");
    struct found *f = lab_shared(RANKS * sizeof *f);
    struct order with, without;

    lab_ranks(RANKS, prefetch_run, f);
    with = order_of(1, 1);
    without = order_of(0, 0);
    lab_say("\n%d steps on %d ranks, shared memory\n%14s %12s %18s\n", STEPS, RANKS, "", "seconds", "of it, waiting");
    for (int overlap = 1; overlap >= 0; overlap--)
        lab_say("%14s %12.4f %18.4f\n", overlap ? "overlap" : "wait at once", f->seconds[overlap], f->exposed[overlap]);
    lab_say("\n");
    lab_open("Z5");
    lab_check("gathers of a step: layers and head twice, embedding once", 2 * (layers + 1) + 1, with.gathers, 0);
    lab_equal("       with nothing to hide behind: one forward, one backward", 2, with.alone, 0);
    lab_check("       wait at once: with nothing to hide behind", without.gathers, without.alone, 0);
    lab_equal("reduce-scatters with nothing to hide behind: the last", 1, with.reductions_alone, 0);
    lab_check("       wait at once", without.reductions, without.reductions_alone, 0);
    lab_not_measurable("seconds saved by overlap",
                       "why: in shared memory the cores that compute also copy the bytes; needs a link that transfers by itself: "
                       "bench/overlap.py");
    lab_check("weights that differ with and without overlap", 0, f[0].hash[0] != f[0].hash[1], 0);
    return lab_close();
}
