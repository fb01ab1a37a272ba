/* P5 - the slowest stage sets the pace of a pipeline. An even split gives every stage the same number of blocks; the last one also has
 * the output layer (C x V), the first the embedding, which costs almost nothing to compute. If the output layer is counted, blocks move
 * away from the last stage.
 *
 * A model of 32 blocks, by default of width 4096 and vocabulary 128256, T = 4096, P = 4; the work of a block and of the output
 * layer comes from the programs of one block and of two. Simulated with 1F1B, M = 64: the step takes the time of the slowest stage, and the
 * division that counts the output layer is as fast as any. */
#include "lab.h"
#include "lockstep/nn.h"
#include "lockstep/pipeline.h"

enum { BLOCKS = 32, P = 4, M = 64 };

static double cost[BLOCKS], head;      /* GFLOP a token, forward */

/* FLOPs of a forward pass of a model of `layers` blocks, with its loss. */
static double forward(size_t layers, size_t *parameters)
{
    ls_compile_options plan = { .every = 1, .plan_only = 1 };
    ls_model m;
    ls_program *p;
    ls_store *s;

    TRY(ls_model_preset("gpt2-124m", &m));
    m.layers = layers;
    m.width = (size_t)lab_size("width");
    m.head_size = 128;
    m.heads = m.kv_heads = m.width / 128;
    m.ffn = 4 * m.width;
    m.vocab = (size_t)lab_size("vocab");
    m.max_positions = 4096;
    m.tied = 0;
    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_value x = ls_input(p, "x", LS_I32, SIZES(1, 4096));
    ls_value y = ls_input(p, "y", LS_I32, SIZES(1, 4096));
    ls_output(p, "loss", ls_model_loss(p, &m, x, y, LS_NONE, LS_NONE));
    TRY(ls_program_compile(p, &plan));
    double flops = ls_program_cost(p).forward_flops;
    *parameters = ls_model_parameters(&m);
    ls_program_release(&p);
    ls_store_release(&s);
    return flops;
}

/* Seconds of a step, 1 GFLOP = 1 second; *dearest of the stages' forwards. */
static double uneven_step(const int *begin, double *dearest)
{
    double f[P], b[P];
    ls_pipeline_times t = { .forward = f, .backward = b };
    ls_pipeline_schedule s;
    ls_pipeline_timeline p;

    *dearest = 0;
    for (int k = 0; k < P; k++) {
        f[k] = k == P - 1 ? head : 0;
        for (int i = begin[k]; i < begin[k + 1]; i++) f[k] += cost[i];
        b[k] = 2 * f[k];
        *dearest = fmax(*dearest, f[k]);
    }
    TRY(ls_pipeline_schedule_make("1f1b", P, 1, M, &s));
    TRY(ls_pipeline_play(&s, &t, &p));
    double seconds = p.seconds;
    ls_pipeline_played_free(&s, &p);
    ls_pipeline_schedule_free(&s);
    return seconds;
}

static void uneven_row(const char *name, const int *begin, double dearest, double seconds)
{
    lab_say("%-24s %3d %3d %3d %3d %14.3f %14.1f\n", name, begin[1], begin[2] - begin[1], begin[3] - begin[2], begin[4] - begin[3], dearest,
           seconds);
}

/* The fastest of all divisions into stages. */
static double fastest(void)
{
    double best = INFINITY, dearest;

    for (int a = 1; a < BLOCKS - 2; a++)
        for (int b = a + 1; b < BLOCKS - 1; b++)
            for (int c = b + 1; c < BLOCKS; c++) best = fmin(best, uneven_step((int[]){ 0, a, b, c, BLOCKS }, &dearest));
    return best;
}

LAB(p5_uneven, "uneven stages", { "width", "width of the model, a multiple of 128", 4096, 1024, 4096 },
    { "vocab", "tokens of the vocabulary", 128256, 65536, 262144 })
{
    int even[P + 1], counted[P + 1];
    const double C = (double)lab_size("width"), V = (double)lab_size("vocab"), T = 4096;
    double dear_even, dear_counted;
    size_t parameters[2];
    double one = forward(1, &parameters[0]);
    double two = forward(2, &parameters[1]);

    for (int i = 0; i < BLOCKS; i++) cost[i] = (two - one) / 4096 / 1e9;
    head = one / 4096 / 1e9 - cost[0];
    double block = (double)(parameters[1] - parameters[0]);
    TRY(ls_pipeline_balance(BLOCKS, cost, 0, 0, P, even));
    TRY(ls_pipeline_balance(BLOCKS, cost, 0, head, P, counted));
    double slow = uneven_step(even, &dear_even);
    double fast = uneven_step(counted, &dear_counted);
    lab_say("output layer: %.1f blocks' work\n%-24s %-15s %14s %14s\n", head / cost[0], "partition", "blocks", "slowest stage", "step");
    uneven_row("even", even, dear_even, slow);
    uneven_row("output layer counted", counted, dear_counted, fast);
    lab_say("\n");
    lab_open("P5");
    lab_equal("output layer: parameters, V/(12 d) [blocks]", V / (12 * C), V * C / block, 0.01);
    lab_corrected("embedding and output layer: work [blocks]", '=', 2 * V / (12 * C), 2 * C * V / (24 * C * C + 2 * C * T),
                  head / cost[0], 0.01,
                  "why: each has the parameters of V/(12 d) blocks, but an embedding is only looked up, and a block also has attention");
    lab_equal("even: blocks of the last stage", 8, even[P] - even[P - 1], 0);
    lab_below("counted: blocks of the last stage", 8, counted[P] - counted[P - 1]);
    lab_equal("even: the step lasts M times the slowest stage, and at most P - 1 more", 1, slow / (3 * M * dear_even), (P - 1.0) / M);
    lab_equal("counted: the same", 1, fast / (3 * M * dear_counted), (P - 1.0) / M);
    lab_above("even / counted: time of a step, as simulated", 1, slow / fast);
    lab_check("counted / the fastest of all divisions into stages", 1, fast / fastest(), 0.005);
    return lab_close();
}
