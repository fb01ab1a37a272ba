/* T4 - tensor parallelism shards weights, optimizer state and activations over T ranks; FSDP does not shard a rank's activations; too
 * high a T starves the matmuls.
 *
 * The ledger of plans, a GPT-2 of 8 layers, width 512, 1024 tokens. Corrected: norms, biases added after a sum and positions are replicated
 * under tp, and so are the residual stream and the norms' outputs without sequence parallelism: of 16 tensors of b s d that a layer keeps
 * (34 b s d bytes in 16 bits without dropout's masks, Korthikanti et al. 2022) 4 stay, so 11/32 is left at T = 8, not 1/8. FSDP over as
 * many ranks, each with as many samples as the one rank had. All of a layer's activations are divided by T only with sequence parallelism
 * and recomputation of what column-parallel matmuls gather.
 *
 * Starving: a sharded matmul has 1/T of the FLOPs, but its input or its output keeps its width, so it has fewer FLOPs per byte. That
 * number comes from the program; the speed of this machine is printed beside it and not compared. */
#include "lab_program.h"
#include "lab_mesh.h"

enum { ROWS = 256, WIDTH = 1024, REPEATS = 10 };

static ls_cost memory_price(size_t layers, int tp, int dp, int sp, ls_recompute recompute, size_t *elements)
{
    struct net n = net_gpt2(layers, 64, 1024);
    struct distributed s;

    n.model.vocab = 64;
    n.samples = 2 * dp;
    n.shape.tp = tp;
    n.shape.dp = dp;
    n.options.sp = sp;
    n.recompute = recompute;
    n.data.zero = dp > 1 ? 3 : 0;
    distributed_plan(&n, 0, tp * dp, &s);
    ls_cost c = ls_program_cost(s.program);
    *elements = ls_store_elements(s.store);
    distributed_close(&s);
    return c;
}

/* Bytes of activations of one more layer. */
static double memory_layer(int tp, int sp, ls_recompute recompute)
{
    size_t n;

    return (double)(memory_price(8, tp, 1, sp, recompute, &n).activations - memory_price(4, tp, 1, sp, recompute, &n).activations) / 4;
}

static void memory_row(const char *what, const ls_cost *c)
{
    lab_say("%-24s %12.2f %12.2f %12.2f %14.2f\n", what, (double)c->parameters / 1e6, (double)c->gradients / 1e6,
            (double)c->optimizer / 1e6, (double)c->activations / 1e6);
}

/* Parameters that tp replicates: norms, biases added after a sum, positions. */
static double replicated(void) { return 8 * (4 + 2) * 512.0 + 2 * 512.0 + 1024 * 512.0; }

/* A matmul of WIDTH/t columns: operations per byte by the program's text, and seconds. */
static double matmul_rate(size_t t, double *per_byte)
{
    double best = 1e9;
    ls_program *p;
    ls_store *s;

    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_value x = ls_input(p, "x", LS_F32, SIZES(ROWS, WIDTH));
    ls_value w = ls_param(p, "w.weight", (ls_init){ LS_INIT_NORMAL, 0.1 }, SIZES(WIDTH / t, WIDTH));
    ls_output(p, "y", ls_linear(p, x, w, LS_NONE));
    TRY(ls_program_compile(p, NULL));
    struct instructions l = instructions_of(p);
    for (int k = 0; k < l.n; k++)
        if (is_op(&l.at[k], "linear")) *per_byte = l.at[k].flops / (double)l.at[k].bytes;
    free(l.at);
    for (int k = 0; k < REPEATS; k++) {
        double from = seconds_now();

        TRY(ls_program_run(p, LS_FORWARD));
        best = fmin(best, seconds_now() - from);
    }
    ls_program_release(&p);
    ls_store_release(&s);
    return 2.0 * ROWS * WIDTH * (WIDTH / (double)t) / best;
}

LAB(t4_memory, "memory under tensor parallelism", { "ranks", "ranks of tensor parallelism, and of FSDP", 8, 2, 64 })
{
    size_t n, again;
    int T = (int)lab_size("ranks");
    ls_recompute none = LS_RECOMPUTE_NONE, selective = LS_RECOMPUTE_SELECTIVE;
    ls_cost one = memory_price(8, 1, 1, 0, none, &n), tensor = memory_price(8, T, 1, 0, none, &again);
    ls_cost sequence = memory_price(8, T, 1, 1, none, &again), fsdp = memory_price(8, 1, T, 0, none, &again);
    double layer = memory_layer(1, 0, none), kept = (4 + 12.0 / T) / 16, even = 64 % T ? 0.02 : 1e-12;
    double sharded = (double)n - replicated(), per_byte[9], previous = INFINITY, left = (sharded / T + replicated()) / (double)n;
    int fewer = 0, i = 0;

    lab_say("MB of a rank, 1 or %d ranks, %.1f million parameters\n%-24s %12s %12s %12s %14s\n", T, (double)n / 1e6, "", "parameters",
            "gradients", "optimizer", "activations");
    memory_row("one rank", &one);
    memory_row("tp", &tensor);
    memory_row("tp, sp", &sequence);
    memory_row("FSDP", &fsdp);
    lab_say("\na matmul [%d,%d] x [%d,%d/T]\n%6s %20s %12s\n", ROWS, WIDTH, WIDTH, WIDTH, "T", "operations a byte", "GFLOP/s");
    for (size_t t = 1; t <= 256; t *= 2, i++) {
        double rate = matmul_rate(t, &per_byte[i]);

        lab_say("%6zu %20.1f %12.1f\n", t, per_byte[i], rate / 1e9);
        fewer += per_byte[i] < previous;
        previous = per_byte[i];
    }
    lab_say("\n");
    lab_open("T4");
    lab_corrected("tp: weights / one rank's", '=', 1.0 / T, left, (double)tensor.parameters / (double)one.parameters, even,
                  "why: norms, biases added after an all-reduce and positions are replicated: 2% of this model, far less of a large one");
    lab_corrected("        optimizer state", '=', 1.0 / T, left, (double)tensor.optimizer / (double)one.optimizer, even, "why: the same");
    lab_corrected("tp: activations of a layer / one rank's", '=', 1.0 / T, kept, memory_layer(T, 0, none) / layer, 0.02,
                  "why: the residual stream and the norms' outputs are replicated: 4 of the 16 tensors that a layer keeps");
    lab_corrected("        with sequence parallelism", '=', 1.0 / T, (16.0 / T + 2.0 * (T - 1) / T) / 16,
                  memory_layer(T, 1, none) / layer, 0.02,
                  "why: the two gathered inputs of column-parallel matmuls are kept; with selective recomputation it is 1/T");
    lab_equal("        with sequence parallelism and selective recomputation", 1.0 / T,
              memory_layer(T, 1, selective) / memory_layer(1, 0, selective), 0.01);
    lab_check_above("        with selective recomputation alone", 1.0 / T,
                    memory_layer(T, 0, selective) / memory_layer(1, 0, selective));
    lab_corrected("tp: all activations / one rank's", '=', 1.0 / T, kept, (double)tensor.activations / (double)one.activations, 0.05,
                  "why: the same; embedding and output layer keep little");
    lab_equal("FSDP: weights / one rank's", 1.0 / T, (double)fsdp.parameters / (double)one.parameters, 1e-6);
    lab_equal("        optimizer state", 1.0 / T, (double)fsdp.optimizer / (double)one.optimizer, 1e-6);
    lab_equal("        activations / one rank's", 1, (double)fsdp.activations / (double)one.activations, 1e-3);
    lab_equal("starves: matmuls with fewer operations a byte than the one before, of 8", 8, fewer - 1, 0);
    lab_not_measurable("the T at which matmuls starve",
                       "why: this processor is not a GPU, and its cores are shared; needs the GPU in question");
    return lab_close();
}
