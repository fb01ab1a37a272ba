/* Z3 - bytes that each of K ranks sends per step, for a model of N elements: DDP 2 (K-1)/K (all-reduce). ZeRO-1 and ZeRO-2 the same:
 * reduce-scatter of gradients, all-gather of the updated weights. "ZeRO-2 is half of DDP" counts the reduce-scatter but not the all-
 * gather: corrected. ZeRO-3 3 (K-1)/K: weights are gathered in forward and again in backward.
 *
 * All in f32, so that elements compare. Two things differ from the formula here: backward does not read the embedding, so it is
 * gathered once; and the ranks sum the squares of their gradient shards, 8 bytes. Counted on real ranks, equal to what the program
 * predicts. */
#include "lab_train.h"

enum { MOST = 8, STEPS = 2 };

struct found { double reduced, scattered, gathered, planned; size_t elements; };
struct shared { int zero, layers; struct found rank[MOST]; };

static void traffic_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct shared *s = shared;
    struct found *f = &s->rank[rank];
    struct job j = job_of((size_t)s->layers, 32);
    struct training t;

    j.samples = 24 / n * n;
    j.data.zero = s->zero;
    j.data.bucket_bytes = j.data.first_bucket_bytes = 20000;
    training_open(&j, comm, 0, &t);
    for (int step = 0; step < STEPS; step++) training_step(&t, step);
    TRY(ls_store_wait(t.store)); /* the gathers of the last update */
    f->reduced = (double)sent(comm, LS_COLLECTIVE_ALL_REDUCE) / STEPS;
    f->scattered = (double)sent(comm, LS_COLLECTIVE_REDUCE_SCATTER) / STEPS;
    f->gathered = (double)sent(comm, LS_COLLECTIVE_ALL_GATHER) / STEPS;
    for (int c = 0; c < LS_COLLECTIVES; c++) f->planned += (double)ls_program_comm_bytes(t.program, WHOLE_STEP, c, NULL);
    f->elements = ls_store_elements(t.store);
    training_close(&t);
}

/* Bytes of all ranks together, in models; planned: bytes by which the counted ones differ from the predicted ones. */
static struct found world(int zero, int n, int layers)
{
    struct shared *s = lab_shared(sizeof *s);
    struct found sum = { 0 };

    s->zero = zero;
    s->layers = layers;
    lab_ranks(n, traffic_run, s);
    sum.elements = s->rank[0].elements;
    double model = 4.0 * (double)sum.elements;
    for (int r = 0; r < n; r++) {
        const struct found *f = &s->rank[r];

        sum.planned += fabs(f->reduced + f->scattered + f->gathered - f->planned);
        sum.reduced += f->reduced / model;
        sum.scattered += f->scattered / model;
        sum.gathered += f->gathered / model;
    }
    lab_unshare(s, sizeof *s);
    return sum;
}

/* A row of n ranks: "sent per step by each of 4 ranks, " and the text. */
static const char *each_of(int n, const char *text)
{
    static char what[120];

    snprintf(what, sizeof what, "sent per step by each of %d ranks, %s", n, text);
    return what;
}

LAB(z3_traffic, "traffic under ZeRO", { "ranks", "data-parallel ranks; 4: 2 and 3 as well", 4, 2, MOST },
    { "layers", "layers of the model", 2, 1, 16 })
{
    static const char *const name[] = { "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3" };
    int most = (int)lab_size("ranks"), layers = (int)lab_size("layers"), least = most == 4 ? 2 : most;
    double off[4] = { 0 }, sent_of[4] = { 0 }, embedding = 0, unplanned = 0; /* sent_of, embedding: with `most` ranks, in N (K-1)/K each */
    char why[120], what[120];

    lab_say("sent in a step, all K ranks together, in models of N floats\n%4s %6s %12s %16s %12s %10s %14s\n", "K", "zero",
           "all_reduce", "reduce_scatter", "all_gather", "sum", "claimed");
    for (int n = least; n <= most; n++)
        for (int zero = 0; zero < 4; zero++) {
            struct found f = world(zero, n, layers);
            double model = 4.0 * (double)f.elements, norm = zero ? 2.0 * (n - 1) * 8 / model : 0;
            double once = zero == 3 ? (n - 1) * 4.0 * VOCAB * 32 / model : 0, sum = f.reduced + f.scattered + f.gathered;
            double claimed = (zero == 3 ? 3 : 2) * (n - 1);

            lab_say("%4d %6d %12.4f %16.4f %12.4f %10.4f %14.4f\n", n, zero, f.reduced, f.scattered, f.gathered, sum, claimed);
            off[zero] = fmax(off[zero], fabs(sum - norm + once - claimed));
            unplanned += f.planned;
            sent_of[zero] = sum / (n - 1);
            embedding = once / (n - 1);
        }
    lab_say("\n");
    lab_open("Z3");
    lab_equal(each_of(most, "DDP [N (K-1)/K]"), 2, sent_of[0], 1e-3);
    lab_equal(each_of(most, "ZeRO-1 [N (K-1)/K]"), 2, sent_of[1], 1e-3);
    lab_corrected(each_of(most, "ZeRO-2 [N (K-1)/K]"), '=', 1, 2, sent_of[2], 1e-3,
                  "why: the claim counts the reduce-scatter of gradients but not the all-gather of the updated weights");
    snprintf(why, sizeof why, "why: backward does not read the embedding, so it is gathered once: %.0f%% of this small model",
             100 * embedding);
    lab_corrected(each_of(most, "ZeRO-3 [N (K-1)/K]"), '=', 3, 3 - embedding, sent_of[3], 1e-3, why);
    for (int zero = 0; zero < 4; zero++) {
        double models = sent_of[zero] * (most - 1) / most, formula = (zero == 3 ? 3 - embedding : 2) * (most - 1) / most;

        snprintf(what, sizeof what, "each of %d ranks sends under %s [models of N]", most, name[zero]);
        lab_check(what, formula, models, 1e-3);
    }
    lab_corrected(each_of(most, "ZeRO-2 / DDP"), '=', 0.5, 1, sent_of[2] / sent_of[0], 1e-3,
                  "why: the all-gather of the updated weights is as large as the reduce-scatter of the gradients");
    lab_corrected(each_of(most, "ZeRO-3 / DDP"), '=', 1.5, (3 - embedding) / 2, sent_of[3] / sent_of[0], 1e-3, why);
    snprintf(what, sizeof what, "%d to %d ranks, DDP: off from 2 (K-1) models by", least, most);
    lab_check(what, 0, off[0], 1e-12);
    lab_check("         ZeRO-1: off from 2 (K-1) models, but for the norm's 8 bytes, by", 0, off[1], 1e-12);
    lab_check("         ZeRO-2: off from 2 (K-1) models, but for the norm's 8 bytes, by", 0, off[2], 1e-12);
    lab_check("         ZeRO-3: off from 3 (K-1), but for norm and embedding, by", 0, off[3], 1e-12);
    lab_check("bytes counted but not planned by the program", 0, unplanned, 0);
    return lab_close();
}
