/* P2 - the share of time in which the ranks of a pipeline are idle: (P-1)/(M+P-1) for GPipe and for 1F1B. P = 4: 16% with 16 micro-
 * batches, 9% with 32; with one undivided batch a rank works 1/P of the time.
 *
 * P3 - 1F1B does not reduce the bubble but the memory: GPipe holds the activations of all M micro-batches, 1F1B on rank r those of P -
 * r, so P at most. M = 32, P = 4: 8 times less on the first rank.
 *
 * W1 - the bubble is said to be about 1/M. That is right for two stages: idle time over work is (P-1)/M.
 *
 * Schedules are lists; each is simulated with equal stages and compared with the formulas. */
#include "lab.h"
#include "lockstep/pipeline.h"

static double bubble(const char *name, int P, int M, double *seconds)
{
    ls_pipeline_schedule s;
    ls_pipeline_timeline p;

    TRY(ls_pipeline_schedule_make(name, P, 1, M, &s));
    TRY(ls_pipeline_play(&s, NULL, &p));
    double share = p.bubble;
    if (seconds) *seconds = p.seconds;
    ls_pipeline_played_free(&s, &p);
    ls_pipeline_schedule_free(&s);
    return share;
}

static int in_flight(const char *name, int P, int M, int rank)
{
    ls_pipeline_schedule s;

    TRY(ls_pipeline_schedule_make(name, P, 1, M, &s));
    int slots = ls_pipeline_schedule_slots(&s, rank, 0);
    ls_pipeline_schedule_free(&s);
    return slots;
}

/* Ticks from the first stage's first forward to the last stage's last one; a forward takes one tick. */
static double forward_ticks(int P, int M)
{
    double one[64];
    ls_pipeline_times t = { .forward = one, .backward = one, .weights = one };
    ls_pipeline_schedule s;
    ls_pipeline_timeline p;

    for (int k = 0; k < P; k++) one[k] = 1;
    TRY(ls_pipeline_schedule_make("forward", P, 1, M, &s));
    TRY(ls_pipeline_play(&s, &t, &p));
    double seconds = p.seconds;
    ls_pipeline_played_free(&s, &p);
    ls_pipeline_schedule_free(&s);
    return seconds;
}

static void bubbles(void)
{
    int stages = (int)lab_size("stages"), micro = (int)lab_size("micro-batches");
    double gpipe, one, most = 0, share = (double)(stages - 1) / (micro + stages - 1);
    char what[80];

    lab_say("share of the time in which nothing is done, F = 1, B = 2\n%4s %4s %12s %12s %12s\n", "P", "M", "(P-1)/(M+P-1)", "gpipe",
           "1f1b");
    for (int P = 2; P <= 8; P *= 2)
        for (int M = 1; M <= 64; M *= 4) {
            double formula = (double)(P - 1) / (M + P - 1), x = bubble("gpipe", P, M, &gpipe), y = bubble("1f1b", P, M, &one);

            lab_say("%4d %4d %12.4f %12.4f %12.4f\n", P, M, formula, x, y);
            most = fmax(most, fmax(fabs(x - formula), fabs(y - formula)) + fabs(gpipe - one));
        }
    lab_say("\n");
    lab_open("P2");
    lab_equal("the table, off from the formula by", 0, most, 1e-15);
    lab_equal("P = 4, M = 16, to half a percent point [%]", 16, 100 * bubble("1f1b", 4, 16, NULL), 0.5 / 16);
    lab_equal("P = 4, M = 32, to half a percent point [%]", 9, 100 * bubble("1f1b", 4, 32, NULL), 0.5 / 9);
    snprintf(what, sizeof what, "P = %d, M = %d [%%]", stages, micro);
    lab_equal(what, 100 * share, 100 * bubble("1f1b", stages, micro, NULL), 1e-12);
    snprintf(what, sizeof what, "gpipe, P = %d, M = %d [%%]", stages, micro);
    lab_equal(what, 100 * share, 100 * bubble("gpipe", stages, micro, NULL), 1e-12);
    snprintf(what, sizeof what, "P = %d, M = %d: ticks of the forward pass", stages, micro);
    lab_check(what, stages + micro - 1, forward_ticks(stages, micro), 0);
    lab_equal("P = 4, one batch whole: share of the time in which a rank works", 1.0 / 4, 1 - bubble("gpipe", 4, 1, NULL), 1e-15);
}

static void said_of_bubbles(void)
{
    int stages = (int)lab_size("stages"), micro = (int)lab_size("micro-batches");
    double share = bubble("1f1b", stages, micro, NULL), measured = 100 * share / (1 - share);
    char what[80];

    lab_open("W1");
    snprintf(what, sizeof what, "P = %d, M = %d: idle time / work [%%]", stages, micro);
    if (stages == 2)
        lab_equal(what, 100.0 / micro, measured, 1e-12);
    else
        lab_corrected(what, '=', 100.0 / micro, 100.0 * (stages - 1) / micro, measured, 1e-12,
                      "why: filling and draining take P-1 micro-batches, not one");
}

static void in_flight_rows(int P, int M)
{
    char what[80];
    int most = 0;

    for (int r = 0; r < P; r++) {
        int n = in_flight("1f1b", P, M, r);

        snprintf(what, sizeof what, "1f1b, P = %d, M = %d, rank %d: micro-batches in flight", P, M, r);
        lab_equal(what, P - r < M ? P - r : M, n, 0);
        if (n > most) most = n;
    }
    snprintf(what, sizeof what, "gpipe, P = %d, M = %d, on every rank", P, M);
    lab_equal(what, M, in_flight("gpipe", P, M, P - 1), 0);
    snprintf(what, sizeof what, "gpipe / 1f1b at their most, P = %d, M = %d", P, M);
    lab_equal(what, fmax(1, (double)M / P), (double)in_flight("gpipe", P, M, 0) / most, 1e-12);
}

static void p2_memory(void)
{
    int P = (int)lab_size("stages"), M = (int)lab_size("micro-batches");

    lab_open("P3");
    in_flight_rows(4, 32);
    if (P != 4 || M != 32) in_flight_rows(P, M);
}

LAB(p2_bubble, "bubbles and activations of pipelines", { "stages", "stages of the pipeline", 8, 2, 64 },
    { "micro-batches", "micro-batches of a step", 24, 1, 1024 })
{
    bubbles();
    said_of_bubbles();
    p2_memory();
    return lab_close();
}
