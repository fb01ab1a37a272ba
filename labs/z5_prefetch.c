/* Z5 - the gather of the next unit overlaps the compute of this one.
 *
 * In the program, the wait for a unit is followed by the start of the next unit's gather, then by this unit's instructions. Only the
 * first gather of forward and of backward has nothing to overlap with. A gradient's reduce-scatter continues while the previous unit
 * computes. A table shows what larger units, and units gathered further ahead, cost in bytes and change in gathers and waiting. Seconds
 * are printed but not compared with a claim: in shared memory the cores that compute also copy the bytes (bench/overlap.py measures it on
 * a slow link). */
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
    ls_comm *comm;

    j.data.zero = 3;
    j.data.overlap = overlap;
    TRY(ls_comm_open("plan:", 0, 4, &comm));
    training_open(&j, comm, 1, &t);
    struct instructions l = instructions_of(t.program);
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

/* ---- the size of units, and how far ahead they are gathered ---- */

enum { UNITS = 3, AHEAD_MOST = 8 }; /* units: a layer, several, the model */

struct unit_cost { size_t communication, whole, largest; double gathered; int gathers; };
struct unit_run { double exposed; uint64_t hash; };
struct unit_runs { struct unit_run of[UNITS][AHEAD_MOST + 1]; };

static struct job unit_job(int unit, int ahead)
{
    struct job j = job_of((size_t)lab_size("layers"), 64);

    j.data.zero = 3;
    j.data.fsdp_unit = unit == 0 ? 1 : unit == 1 ? (int)lab_size("unit-layers") : 0;
    j.data.prefetch = ahead;
    return j;
}

static struct unit_cost unit_price(int unit, int ahead)
{
    struct job j = unit_job(unit, ahead);
    struct unit_cost c = { 0 };
    struct training t;
    ls_comm *comm;
    size_t calls;

    TRY(ls_comm_open("plan:", 0, RANKS, &comm));
    training_open(&j, comm, 1, &t);
    struct instructions l = instructions_of(t.program);
    for (int k = 0; k < l.n; k++) {
        if (l.at[k].exchange != LS_EXCHANGE_START || !is_op(&l.at[k], "all_gather")) continue;
        if (l.at[k].segment == LS_FORWARD) c.whole += 4 * l.at[k].elements;
        c.largest = 4 * l.at[k].elements > c.largest ? 4 * l.at[k].elements : c.largest;
    }
    c.communication = ls_program_cost(t.program).communication;
    c.gathered = (double)ls_program_comm_bytes(t.program, WHOLE_STEP, LS_COLLECTIVE_ALL_GATHER, &calls);
    c.gathers = (int)calls;
    free(l.at);
    training_close(&t);
    ls_comm_close(&comm);
    return c;
}

static void unit_runs(ls_comm *comm, int rank, int n, void *shared)
{
    struct unit_runs *runs = (struct unit_runs *)shared + rank;

    (void)n;
    for (int unit = 0; unit < UNITS; unit++)
        for (int ahead = 0; ahead <= (int)lab_size("prefetch"); ahead++) {
            struct job j = unit_job(unit, ahead);
            double before = exposed(comm);
            struct training t;

            training_open(&j, comm, 0, &t);
            for (int s = 0; s < STEPS; s++) training_step(&t, s);
            runs->of[unit][ahead] = (struct unit_run){ (exposed(comm) - before) / STEPS, training_hash(&t) };
            training_close(&t);
        }
}

/* Rows of the table, and what they must say. */
static void units_print(void)
{
    int most = (int)lab_size("prefetch"), layers = (int)lab_size("layers"), several = (int)lab_size("unit-layers"), differ = 0;
    struct unit_runs *runs = lab_shared(RANKS * sizeof *runs);
    struct unit_cost at[UNITS][AHEAD_MOST + 1];
    char what[100];

    lab_ranks(RANKS, unit_runs, runs);
    lab_say("\na step on %d ranks, shared memory\n%-10s %9s %8s %14s %20s %10s %16s\n", RANKS, "unit", "prefetch", "gathers", "gathered",
            "communication bytes", "of model", "waiting [s]");
    for (int unit = 0; unit < UNITS; unit++)
        for (int ahead = 0; ahead <= most; ahead++) {
            struct unit_cost c = at[unit][ahead] = unit_price(unit, ahead);

            snprintf(what, sizeof what, unit == 0 ? "block" : unit == 1 ? "layers:%d" : "model", several);
            lab_say("%-10s %9d %8d %14.0f %20zu %10.2f %16.4f\n", what, ahead, c.gathers, c.gathered, c.communication,
                    (double)c.communication / (double)c.whole, runs[0].of[unit][ahead].exposed);
            differ += runs[0].of[unit][ahead].hash != runs[0].of[unit][0].hash;
        }
    lab_say("\n");
    for (int ahead = 1; ahead <= most && ahead < layers; ahead++) { /* the largest unit is the last layer's, which has the final norm too */
        snprintf(what, sizeof what, "a layer a unit, prefetch %d: bytes held beyond prefetch 0 [units]", ahead);
        lab_check(what, ahead, (double)(at[0][ahead].communication - at[0][0].communication) / (double)at[0][0].largest, 0.005);
    }
    snprintf(what, sizeof what, "%d layers a unit: gathers of a step", several);
    lab_check(what, 2 * ((layers + several - 1) / several + 1) + 1, at[1][0].gathers, 0);
    lab_check("the model a unit: gathers of a step", 2, at[2][0].gathers, 0);
    lab_check("       bytes held, prefetch 0: weights and gradients [models]", 2,
              (double)at[2][0].communication / (double)at[2][0].whole, 0.01);
    lab_check("       bytes held beyond that with prefetch", 0, (double)(at[2][most].communication - at[2][0].communication), 0);
    lab_check("weights that differ by prefetch", 0, differ, 0);
    lab_unshare(runs, RANKS * sizeof *runs);
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

LAB(z5_prefetch, "prefetch", { "layers", "layers of the model", 6, 1, 24 },
    { "prefetch", "units gathered ahead, at most", 3, 1, AHEAD_MOST }, { "unit-layers", "layers of the larger unit", 2, 2, 24 })
{
    int layers = (int)lab_size("layers");
    struct found *f = lab_shared(RANKS * sizeof *f);

    lab_ranks(RANKS, prefetch_run, f);
    struct order with = order_of(1, 1);
    struct order without = order_of(0, 0);
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
    units_print();
    return lab_close();
}
