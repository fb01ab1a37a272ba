/* Z2 - bytes per rank of K with 16 N in all: ZeRO-1 4N + 12N/K, ZeRO-2 2N + 14N/K, ZeRO-3 16N/K. Some texts replicate the
 * master weights: 8N + 8N/K and 6N + 10N/K. Corrected: master weights are optimizer state, only the update reads them, and they
 * are sharded with the rest of it (Rajbhandari et al. 2020, and here).
 *
 * Gradients are f32 here: 2 N more where they are replicated, 2 N / K where they are sharded: 18N, 6N + 12N/K, 2N + 16N/K, 18N/K.
 * A model of 7.5 billion parameters is planned for each K, without allocating it. Sizes divisible by K match to the byte; for others
 * the shards of all ranks add up to the complete model.
 *
 * "ZeRO-1 saves 4 times, ZeRO-2 8 times" are limits for many ranks. What is saved over --ranks is 16N / (4N + 12N/K) and
 * 16N / (2N + 14N/K); with f32 gradients 18N / (6N + 12N/K) and 18N / (2N + 16N/K). Gradients of 2 bytes are those of the plan, halved. */
#include "lab_train.h"

static ls_cost cost_of(const struct job *j, int zero, int rank, int n, size_t *elements)
{
    struct job job = *j;
    struct training t;
    ls_comm *comm;

    job.samples = n;
    job.data.zero = zero;
    TRY(ls_comm_open("plan:", rank, n, &comm));
    training_open(&job, comm, 1, &t);
    ls_cost c = ls_program_cost(t.program);
    *elements = ls_store_elements(t.store);
    training_close(&t);
    ls_comm_close(&comm);
    return c;
}

/* Bytes that one of K ranks holds between steps. */
static double held(const struct job *j, int zero, int rank, int n, size_t *elements)
{
    ls_cost c = cost_of(j, zero, rank, n, elements);

    return (double)(c.parameters + c.gradients + c.optimizer);
}

/* Bytes per element in all, and how many of them are sharded at each stage: by the claim, here, and with replicated masters. */
static const double sharded[3][4] = { { 0, 12, 14, 16 }, { 0, 12, 16, 18 }, { 0, 8, 10, 12 } }, all[3] = { 16, 18, 16 };

static double formula(int which, int zero, double n, int k)
{
    return n * (all[which] - sharded[which][zero] + sharded[which][zero] / k);
}

/* The parts of ZeRO-1 and of ZeRO-2, K = 64, in bytes per parameter. */
static void categories(const struct job *j)
{
    size_t n;
    ls_cost one = cost_of(j, 1, 0, 64, &n), two = cost_of(j, 2, 0, 64, &n);

    lab_equal("ZeRO-1: weights, on every rank [bytes per parameter]", 2, (double)one.parameters / (double)n, 0);
    lab_equal("        optimizer state with the master weights, 12/K [bytes per parameter]", 12.0 / 64,
              (double)one.optimizer / (double)n, 0);
    lab_corrected("        the same, in texts that replicate master weights", '=', 4 + 8.0 / 64, 12.0 / 64,
                  (double)one.optimizer / (double)n, 0,
                  "why: 8N + 8N/K and 6N + 10N/K replicate master weights, but only the sharded update reads them");
    lab_corrected("ZeRO-2: gradients, sharded, 2/K [bytes per parameter]", '=', 2.0 / 64, 4.0 / 64, (double)two.gradients / (double)n, 0,
                  "why: gradients are f32");
}

static void large(void)
{
    struct job j = job_of(36, 4096);
    double most = 0;
    size_t n;

    TRY(ls_model_preset("gpt2-1.5b", &j.model));
    j.model.layers = 36;
    j.model.width = 4096;
    j.model.heads = j.model.kv_heads = 32;
    j.model.head_size = 128;
    j.model.ffn = 4 * 4096;
    TRY(ls_model_check(&j.model));
    j.type = LS_BF16;
    j.time = 64;
    held(&j, 0, 0, 2, &n);
    lab_say("GB a rank holds, %.2f billion parameters\n%6s %6s %12s %14s %14s %14s\n", (double)n / 1e9, "K", "zero", "claimed",
           "masters whole", "f32 gradients", "planned");
    for (int k = 1; k <= 64; k *= 2)
        for (int zero = k == 1 ? 0 : 1; zero < (k == 1 ? 1 : 4); zero++) {
            double have = k == 1 ? held(&j, 0, 0, 1, &n) : held(&j, zero, k - 1, k, &n);

            lab_say("%6d %6d %12.2f %14.2f %14.2f %14.2f\n", k, zero, formula(0, zero, (double)n, k) / 1e9,
                   formula(2, zero, (double)n, k) / 1e9, formula(1, zero, (double)n, k) / 1e9, have / 1e9);
            most = fmax(most, fabs(have - formula(1, zero, (double)n, k)));
        }
    lab_say("\n");
    lab_open("Z2");
    double per = 7.5 / (double)n;  /* bytes of a plan to GB of 7.5 billion parameters */
    lab_corrected("7.5B, DDP [GB]", '=', 120, 135, held(&j, 0, 63, 64, &n) * per, 1e-9,
                  "why: 18 bytes per parameter: gradients are accumulated in f32 (Z1)");
    lab_corrected("7.5B, K = 64, ZeRO-1 [GB]", '=', 31.4, 46.4, held(&j, 1, 63, 64, &n) * per, 1e-3, "why: 6N + 12N/K with f32 gradients");
    lab_corrected("7.5B, K = 64, ZeRO-2 [GB]", '=', 16.6, 16.9, held(&j, 2, 63, 64, &n) * per, 2e-3,
                  "why: 2N + 16N/K: the f32 gradients are sharded");
    lab_corrected("7.5B, K = 64, ZeRO-3 [GB]", '=', 1.9, 2.11, held(&j, 3, 63, 64, &n) * per, 2e-3, "why: 18N/K");
    categories(&j);
    lab_check("all rows: bytes planned, off from 6N+12N/K, 2N+16N/K, 18N/K by", 0, most, 0);
}

/* Odd sizes over any number of ranks: no byte lost or held twice. */
static void shards_small(void)
{
    struct job j = job_of(2, 16);
    double most = 0;
    size_t n;

    j.type = LS_BF16;
    for (int zero = 1; zero < 4; zero++)
        for (int k = 3; k <= 63; k += 12) {
            double sum = 0;

            for (int r = 0; r < k; r++) sum += held(&j, zero, r, k, &n);
            most = fmax(most, fabs(sum - k * formula(1, zero, (double)n, k)));
        }
    lab_check("K = 3, 15, 27 .. 63: all ranks' bytes, off from K times the formula", 0, most, 1e-3);
}

/* ---- K that the user chooses ---- */

static double state_of_two(const ls_cost *c) { return (double)(c->parameters + c->optimizer) + (double)c->gradients / 2; }
static double state_of_four(const ls_cost *c) { return (double)(c->parameters + c->optimizer + c->gradients); }

/* How many of weights, gradients and optimizer state are smaller than under DDP. */
static int kinds_sharded(const ls_cost *c, const ls_cost *ddp)
{
    return (c->parameters < ddp->parameters) + (c->gradients < ddp->gradients) + (c->optimizer < ddp->optimizer);
}

/* A row of K ranks, whose text begins with K. */
static const char *of_ranks(int k, const char *text)
{
    static char what[120];

    snprintf(what, sizeof what, "K = %d, %s", k, text);
    return what;
}

static void bytes_each(int k, const ls_cost c[4], double n)
{
    static const char whole[] = "why: master weights are sharded with the rest of the optimizer state";
    double one = 1.0 / k;

    lab_equal(of_ranks(k, "DDP, gradients of 2 bytes [bytes per parameter]"), 16, state_of_two(&c[0]) / n, 1e-3);
    lab_corrected(of_ranks(k, "ZeRO-1, gradients of 2 bytes [bytes per parameter]"), '=', 8 + 8 * one, 4 + 12 * one,
                  state_of_two(&c[1]) / n, 1e-3, whole);
    lab_corrected(of_ranks(k, "ZeRO-2, gradients of 2 bytes [bytes per parameter]"), '=', 6 + 10 * one, 2 + 14 * one,
                  state_of_two(&c[2]) / n, 1e-3, whole);
    lab_equal(of_ranks(k, "ZeRO-3, gradients of 2 bytes [bytes per parameter]"), 16 * one, state_of_two(&c[3]) / n, 1e-3);
}

static void factors(int k, const ls_cost c[4])
{
    static const char limit[] = "why: this is the limit for many ranks";
    double two = state_of_two(&c[0]), four = state_of_four(&c[0]), one = 1.0 / k;

    lab_corrected(of_ranks(k, "ZeRO-1 saves, 16N: factor"), '=', 4, 16 / (4 + 12 * one), two / state_of_two(&c[1]), 1e-3, limit);
    lab_corrected(of_ranks(k, "ZeRO-2 saves, 16N: factor"), '=', 8, 16 / (2 + 14 * one), two / state_of_two(&c[2]), 1e-3, limit);
    lab_equal(of_ranks(k, "ZeRO-3 saves, 16N: factor"), k, two / state_of_two(&c[3]), 1e-3);
    lab_check(of_ranks(k, "ZeRO-1 saves, 18N with f32 gradients: factor"), 18 / (6 + 12 * one), four / state_of_four(&c[1]), 1e-3);
    lab_check(of_ranks(k, "ZeRO-2 saves, 18N with f32 gradients: factor"), 18 / (2 + 16 * one), four / state_of_four(&c[2]), 1e-3);
    lab_check(of_ranks(k, "ZeRO-3 saves, 18N with f32 gradients: factor"), k, four / state_of_four(&c[3]), 1e-3);
}

static void z2_chosen(int k)
{
    struct job j = job_of(4, 256);
    ls_cost c[4];
    int first = 0;
    size_t n;

    j.type = LS_BF16;
    for (int zero = 0; zero < 4; zero++) c[zero] = cost_of(&j, zero, 0, k, &n);
    bytes_each(k, c, (double)n);
    lab_check(of_ranks(k, "share of DDP's bytes that are copies [%]"), 100 - 100.0 / k,
              100 * (1 - state_of_four(&c[3]) / state_of_four(&c[0])), 1e-3);
    factors(k, c);
    while (first < 3 && c[first].parameters == c[0].parameters) first++;
    lab_check(of_ranks(k, "lowest ZeRO stage that shards the weights"), 3, first, 0);
    lab_check(of_ranks(k, "kinds of state that ZeRO-3 shards"), 3, kinds_sharded(&c[3], &c[0]), 0);
    lab_check(of_ranks(k, "ZeRO-3: activations of a rank / DDP's"), 1, (double)c[3].activations / (double)c[0].activations, 1e-3);
}

LAB(z2_shards, "memory under ZeRO", { "ranks", "data-parallel ranks", 8, 2, 512 })
{
    large();
    shards_small();
    z2_chosen((int)lab_size("ranks"));
    return lab_close();
}
