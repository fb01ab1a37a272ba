/* S5 - DDP on 8 GPUs is 7.5 times as fast as one, 94%, and what is missing follows Amdahl's law.
 *
 * Llama 3.2 1B with samples of 2,048 tokens is planned on a node of H100, once with a batch that grows with the ranks and once with a fixed
 * batch, and the serial share of Amdahl's law is fitted to the curve of 1 to 8 ranks.
 *
 * Corrected: 7.5 is no property of DDP. It depends on the samples of a rank, since compute grows with them and the gradients do not. The
 * serial share is found in the plan: under DDP every rank makes the whole update; the rest is exposed communication. That is not a constant
 * share, so a fit to 8 ranks promises too much for 64. FSDP, which divides the update, is faster here, not slower. Seconds of this machine
 * are shown beside it; its ranks share cores. */
#include "lab_train.h"

enum { POINTS = 4, RANKS_MOST = 8, FIXED = 64, FAR = 64, STEPS = 4, SAMPLES = 48 };

static double planned(const char *key, int n, long micro_batch, long batch, const char *more)
{
    return lab_plan(key,
                    "--machine h100-dgx -n %d --precision.compute=bf16 --model.preset=llama3.2-1b --data.seq_len=2048 "
                    "--train.micro_batch=%ld --train.global_batch=%ld %s",
                    n, micro_batch, batch, more);
}

/* ---- a batch that grows with the ranks ---- */

static void growing(void)
{
    long b = lab_size("batch");
    int n = (int)lab_size("ranks");
    double one = planned("seconds.step", 1, b, b, ""), all = planned("seconds.step", n, b, b * n, "");
    double claimed = 7.5 / 8 * n, speedup = n * one / all, expected = n / (1 + planned("seconds.exposed.dp", n, b, b * n, "") / one);
    char what[96];

    lab_say("growing batch, %ld samples a rank: seconds of a step %.4f on 1 rank, %.4f on %d\n", b, one, all, n);
    snprintf(what, sizeof what, "growing batch, %ld a rank, %d ranks: speedup", b, n);
    if (fabs(speedup - claimed) <= 0.01 * claimed) lab_equal(what, claimed, speedup, 0.01);
    else
        lab_corrected(what, '=', claimed, expected, speedup, 0.01,
                      "why: n / (1 + exposed / compute); more samples a rank hide more of the same gradients");
    lab_check_above("       8 samples a rank / 1, 8 ranks: efficiency", 1.05,
                    planned("seconds.step", 1, 8, 8, "") / planned("seconds.step", 8, 8, 64, "") /
                        (planned("seconds.step", 1, 1, 1, "") / planned("seconds.step", 8, 1, 8, "")));
    lab_check_below("       FSDP / DDP, 8 ranks in a node, 2 samples each: seconds of a step", 1,
                    planned("seconds.step", 8, 2, 16, "--parallel.zero=3") / planned("seconds.step", 8, 2, 16, ""));
}

/* ---- a fixed batch ---- */

static double fixed_step(int n) { return planned("seconds.step", n, 1, FIXED, ""); }
static double amdahl(double share, int n) { return 1 / (share + (1 - share) / n); }

/* The serial share that fits the speedups of 2 .. 8 ranks best: 1 / speedup = s + (1 - s) / n is a line in 1 - 1 / n. */
static double fitted(const double *speedup)
{
    double xy = 0, xx = 0;

    for (int k = 1; k < POINTS; k++) {
        double n = 1 << k, x = 1 - 1 / n;

        xy += x * (1 / speedup[k] - 1 / n);
        xx += x * x;
    }
    return xy / xx;
}

static void fixed(void)
{
    double speedup[POINTS], one = fixed_step(1), share, most = 0, derived, far;

    for (int k = 0; k < POINTS; k++) speedup[k] = one / fixed_step(1 << k);
    share = fitted(speedup);
    lab_say("fixed batch of %d samples\n%6s %12s %12s\n", FIXED, "ranks", "speedup", "Amdahl");
    for (int k = 0; k < POINTS; k++) {
        lab_say("%6d %12.4f %12.4f\n", 1 << k, speedup[k], amdahl(share, 1 << k));
        most = fmax(most, fabs(amdahl(share, 1 << k) / speedup[k] - 1));
    }
    lab_check("fixed batch, 2 to 8 ranks: speedup off from Amdahl's fit by", 0, most, 0.02);
    derived = planned("seconds.optimizer", 1, 1, FIXED, "");
    lab_check_above("       serial share of the fit, above the update's of a step on one rank [%]", 100 * derived / one, 100 * share);
    far = (one - derived) / FAR + derived + planned("seconds.exposed.dp", FAR, 1, FIXED, "");
    lab_corrected("       64 ranks, 8 nodes: speedup; claimed: by the fit of 8", '=', amdahl(share, FAR), one / far, one / fixed_step(FAR),
                  0.02, "why: communication is not a constant share; with a sample a rank nothing is left to hide it under");
    lab_check_above("       64 ranks: ZeRO-1's speed / DDP's, since the update is divided", 1.1,
                    fixed_step(FAR) / planned("seconds.step", FAR, 1, FIXED, "--parallel.zero=1"));
}

/* ---- this machine ---- */

struct here { double seconds; };

static void here_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct here *h = (struct here *)shared + rank;
    struct job j = job_of(2, 64);
    struct training t;

    j.samples = SAMPLES;
    training_open(&j, n > 1 ? comm : NULL, 0, &t);
    training_step(&t, 0);
    h->seconds = -seconds_now();
    for (int s = 1; s <= STEPS; s++) training_step(&t, s);
    h->seconds += seconds_now();
    training_close(&t);
}

static void here(void)
{
    struct here *h = lab_shared(RANKS_MOST * sizeof *h);

    lab_say("this machine, a small model, %d samples a step: seconds of %d steps (not judged: ranks share cores)\n", SAMPLES, STEPS);
    for (int n = 1; n <= RANKS_MOST; n *= 2) {
        lab_ranks(n, here_run, h);
        lab_say("%6d ranks %12.4f\n", n, h[0].seconds);
    }
    lab_unshare(h, RANKS_MOST * sizeof *h);
    lab_not_measurable("measured speedup of 1 to 8 ranks",
                       "why: ranks share the cores of this machine; needs a processor and a link for each");
}

LAB(s5_scaling, "scaling over 1 to 8 ranks", { "ranks", "ranks of the row with a growing batch", 8, 2, RANKS_MOST },
    { "batch", "samples of a rank of that row", 2, 1, 8 })
{
    lab_open("S5");
    growing();
    fixed();
    here();
    return lab_close();
}
