/* P5 - the dearest stage is the pace of a pipeline. An even split gives every stage as many blocks; the last one has the
 * output layer (C x V) besides, the first the embedding, which costs next to nothing to compute. Counted, the blocks move away
 * from the last stage.
 *
 * A model of 32 blocks, width 4096, vocabulary 128256, T = 4096 (its FLOPs a token: a block 2 (12 C^2 + 2 T C) or so, the output
 * layer 2 C V), P = 4. Played with 1F1B, M = 64: the step takes what the dearest stage takes, and the cut that counts the
 * output layer is as fast as any cut there is. */
#include "lab.h"
#include "lockstep/pipeline.h"

enum { BLOCKS = 32, P = 4, M = 64 };

static const double C = 4096, V = 128256, T = 4096;
static double cost[BLOCKS], head;      /* GFLOP a token, forward */

/* Seconds of a step, 1 GFLOP = 1 second; *dearest of the stages' forwards. */
static double step(const int *begin, double *dearest)
{
    double f[P], b[P], seconds;
    ls_pipeline_times t = { f, b, NULL, 0 };
    ls_pipeline_schedule s;
    ls_pipeline_played p;

    *dearest = 0;
    for (int k = 0; k < P; k++) {
        f[k] = k == P - 1 ? head : 0;
        for (int i = begin[k]; i < begin[k + 1]; i++) f[k] += cost[i];
        b[k] = 2 * f[k];
        *dearest = fmax(*dearest, f[k]);
    }
    TRY(ls_pipeline_schedule_make("1f1b", P, 1, M, &s));
    TRY(ls_pipeline_play(&s, &t, &p));
    seconds = p.seconds;
    ls_pipeline_played_free(&s, &p);
    ls_pipeline_schedule_free(&s);
    return seconds;
}

static void row(const char *name, const int *begin, double dearest, double seconds)
{
    printf("%-24s %3d %3d %3d %3d %14.3f %14.1f\n", name, begin[1], begin[2] - begin[1], begin[3] - begin[2], begin[4] - begin[3], dearest, seconds);
}

/* The fastest of all cuts. */
static double fastest(void)
{
    double best = INFINITY, dearest;

    for (int a = 1; a < BLOCKS - 2; a++)
        for (int b = a + 1; b < BLOCKS - 1; b++)
            for (int c = b + 1; c < BLOCKS; c++) best = fmin(best, step((int[]){ 0, a, b, c, BLOCKS }, &dearest));
    return best;
}

int main(void)
{
    int even[P + 1], counted[P + 1];
    double dear_even, dear_counted, slow, fast, sum = 0;

    for (int i = 0; i < BLOCKS; i++) sum += cost[i] = 2 * (12 * C * C + 2 * T * C) / 1e9;
    head = 2 * C * V / 1e9;
    TRY(ls_pipeline_balance(BLOCKS, cost, 0, 0, P, even));
    TRY(ls_pipeline_balance(BLOCKS, cost, 0, head, P, counted));
    slow = step(even, &dear_even);
    fast = step(counted, &dear_counted);
    printf("output layer: %.1f blocks' work\n%-24s %-15s %14s %14s\n", head / cost[0], "cut", "blocks", "dearest stage", "step");
    row("even", even, dear_even, slow);
    row("output layer counted", counted, dear_counted, fast);
    printf("\n");
    lab_open("P5", "uneven stages make the slowest the pace: embedding and output layer count");
    lab_equal("even: blocks of the last stage", 8, even[P] - even[P - 1], 0);
    lab_below("counted: blocks of the last stage", 8, counted[P] - counted[P - 1]);
    lab_equal("even: step / (M x the dearest stage), few percent of filling", 1, slow / (3 * M * dear_even), 0.06);
    lab_equal("counted: the same", 1, fast / (3 * M * dear_counted), 0.06);
    lab_above("even / counted: time of a step", 1.1, slow / fast);
    lab_equal("counted / the fastest of all cuts", 1, fast / fastest(), 0.005);
    lab_above("counted: share of the work that the dearest stage does, x P", 1 - 1e-12, dear_counted * P / (sum + head));
    return lab_close();
}
