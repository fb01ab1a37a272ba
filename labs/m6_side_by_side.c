/* M6 - layouts of one model side by side: what each divides, what it sends, and how often.
 *
 * Llama 3 8B on 8 H100, 8 samples a step in bf16, gradients communicated in bf16 too: DDP, FSDP, tensor parallelism with and without
 * sequence parallelism, and a pipeline of 4 stages x dp 2. `lockstep plan` says what the rank with the most memory holds and sends;
 * `lockstep compare` prints such a table for any layouts. FSDP's bytes follow the weights (3 times their bytes), tensor parallelism's the
 * tokens (4 all-reduces of b s d per layer), so the sequence length decides which is more. Seconds are a model's, and printed only.
 *
 * M7 - before any parallelism: what one GPU holds. 16 bytes a parameter fill 80 GB with 5B; with the f32 gradients of this program (18) it
 * is 4.4B, and nothing is left for activations. bf16 halves activations, recomputation keeps a layer's input only. */
#include "lab.h"

enum { RANKS = 8, LAYERS = 32, WIDTH = 4096 };

static const struct layout { const char *name, *divides, *options; } layouts[] = {
    { "DDP", "samples", "--parallel.zero=0 --train.micro_batch=1 --precision.reduce=bf16" },
    { "FSDP", "samples, state", "--parallel.zero=3 --train.micro_batch=1 --precision.reduce=bf16" },
    { "tp 8", "matrices", "--parallel.tp=8 --train.micro_batch=1" },
    { "tp 8, sp", "matrices, tokens", "--parallel.tp=8 --parallel.sp=true --train.micro_batch=1" },
    { "pp 4 x dp 2", "layers, samples", "--parallel.pp=4 --train.micro_batch=1 --precision.reduce=bf16" },
};
enum { DDP, FSDP, TENSOR, SEQUENCE, PIPELINE, LAYOUTS };

static double side(const char *key, int i)
{
    return lab_plan(key,
                    "--machine h100-dgx -n %d --model.preset=llama3-8b --model.tied=false --precision.compute=bf16 "
                    "--data.seq_len=%ld --train.global_batch=%d %s",
                    RANKS, lab_size("seq-len"), RANKS, layouts[i].options);
}

/* The state with gradients of 2 bytes: they are f32 here (Z1). */
static double side_state(int i) { return side("memory.parameters", i) + side("memory.gradients", i) / 2 + side("memory.optimizer", i); }

static double side_kept(int i) { return side("memory.activations", i); }

struct sums { double bytes, calls; };

/* `kinds`: the collectives that this layout has. */
static struct sums side_sent(int i)
{
    static const char *const kinds[LAYOUTS][4] = { { "all_reduce" },
                                                   { "all_gather", "reduce_scatter" },
                                                   { "all_reduce", "all_gather" },
                                                   { "all_gather", "reduce_scatter" },
                                                   { "all_reduce", "send" } };
    struct sums s = { 0, 0 };
    char key[64];

    for (int k = 0; k < 4 && kinds[i][k]; k++) {
        snprintf(key, sizeof key, "comm.%s.bytes", kinds[i][k]);
        s.bytes += side(key, i);
        snprintf(key, sizeof key, "comm.%s.calls", kinds[i][k]);
        s.calls += side(key, i);
    }
    return s;
}

/* GB/s at which sending takes as long as computing. */
static double side_link(int i)
{
    double computing = side("seconds.matmul", i) + side("seconds.attention", i) + side("seconds.memory_bound", i) +
                       side("seconds.optimizer", i) + side("seconds.recomputed", i);

    return side_sent(i).bytes / computing / 1e9;
}

static void side_table(void)
{
    lab_say("Llama 3 8B on 8 H100, %d samples of %ld tokens; a rank holds and sends [GB]\n%-12s %-17s %8s %12s %8s %9s %11s %10s %8s %5s\n",
            RANKS, lab_size("seq-len"), "", "divides", "state", "activations", "sends", "messages", "link, GB/s", "bubble, s", "step, s",
            "fits");
    for (int i = 0; i < LAYOUTS; i++) {
        struct sums s = side_sent(i);

        lab_say("%-12s %-17s %8.1f %12.2f %8.2f %9.0f %11.1f %10.3f %8.3f %5s\n", layouts[i].name, layouts[i].divides,
                side_state(i) / 1e9, side("memory.activations", i) / 1e9, s.bytes / 1e9, s.calls, side_link(i), side("seconds.bubble", i),
                side("seconds.step", i), side("fits", i) != 0 ? "yes" : "no");
    }
    lab_say("link: the rate at which sending takes as long as computing; a slower link cannot hide it\n\n");
}

static void side_rows(void)
{
    double T = (double)lab_size("seq-len"), N = side("parameters", DDP), whole = side_state(DDP);
    double hidden = T * WIDTH * 2, tensor = side_sent(TENSOR).bytes, fsdp = side_sent(FSDP).bytes;

    lab_open("M6");
    lab_equal("DDP: state of a rank, 16 N", 1, whole / (16 * N), 1e-3);
    lab_equal("FSDP: state of a rank / DDP's", 1.0 / RANKS, side_state(FSDP) / whole, 0.01);
    lab_equal("tp 8: state of a rank / DDP's", 1.0 / RANKS, side_state(TENSOR) / whole, 0.01);
    lab_equal("pp 4: state of a rank / DDP's, the rank with the most", 1.0 / 4, side_state(PIPELINE) / whole, 0.2);
    lab_equal("FSDP: activations of a rank / DDP's", 1, side_kept(FSDP) / side_kept(DDP), 0.05);
    lab_corrected("pp 4: activations of a rank / DDP's", '=', 1.0 / 4, 1, side_kept(PIPELINE) / side_kept(DDP), 0.15,
                  "why: 4 micro-batches are in flight on the first stage, each with a quarter of the layers");
    lab_below("tp 8: activations of a rank / DDP's", 1, side_kept(TENSOR) / side_kept(DDP));
    lab_check_below("tp 8, sp: activations of a rank / those without sp", 1, side_kept(SEQUENCE) / side_kept(TENSOR));
    lab_equal("FSDP: bytes sent by a rank / DDP's", 1.5, fsdp / side_sent(DDP).bytes, 0.05);
    lab_check("tp 8: sent by a rank, 4 L all-reduces of b s d for each of 8 samples [GB]",
              RANKS * 4.0 * LAYERS * 2 * (RANKS - 1) / RANKS * hidden / 1e9, tensor / 1e9, 0.03);
    lab_check("FSDP: sent by a rank, 3 times the weights' bytes [GB]", 3 * 2 * N * (RANKS - 1) / RANKS / 1e9, fsdp / 1e9, 0.05);
    lab_check("tp 8: bytes sent by a rank / FSDP's", RANKS * 4.0 * LAYERS * 2 * hidden / (6 * N), tensor / fsdp, 0.08);
    lab_check("tp 8, sp: bytes sent by a rank / those without sp", 1, side_sent(SEQUENCE).bytes / tensor, 0.05);
    lab_below("pp 4 x dp 2: bytes sent by a rank / DDP's", 1, side_sent(PIPELINE).bytes / side_sent(DDP).bytes);
}

/* ---- one GPU ---- */

static double one_gpu(const char *key, int layers, const char *more)
{
    return lab_plan(key,
                    "-n 1 --model.preset=llama3.2-1b --model.layers=%d --data.seq_len=2048 --train.micro_batch=1 "
                    "--train.accumulate=1 --run.memory_limit=2000GB %s",
                    layers, more);
}

static double one_gpu_state(int layers, double gradient)
{
    static const char o[] = "--precision.compute=bf16";

    return one_gpu("memory.parameters", layers, o) + one_gpu("memory.gradients", layers, o) * gradient / 4 +
           one_gpu("memory.optimizer", layers, o);
}

/* Activations of one more layer. */
static double one_gpu_layer(const char *more)
{
    return (one_gpu("memory.activations", 8, more) - one_gpu("memory.activations", 4, more)) / 4;
}

/* Parameters of the deepest model whose state is at most that many bytes, in billions: state grows by the same bytes with each layer. */
static double one_gpu_most(double room, double gradient)
{
    double few = one_gpu_state(4, gradient), layer = (one_gpu_state(8, gradient) - few) / 4;
    int most = 4 + (int)((room - few) / layer);

    if (one_gpu_state(most, gradient) > room || one_gpu_state(most + 1, gradient) <= room) return NAN;
    return one_gpu("parameters", most, "--precision.compute=bf16") / 1e9;
}

static double audio(int zero)
{
    static const char o[] = "-n %ld --parallel.zero=%d --model.preset=gpt2-1.5b --data.seq_len=1024 --train.micro_batch=1 "
                            "--precision.compute=bf16 --run.memory_limit=2000GB";
    long K = lab_size("ranks");

    double bytes = lab_plan("memory.parameters", o, K, zero) + lab_plan("memory.gradients", o, K, zero) / 2 +
                   lab_plan("memory.optimizer", o, K, zero);

    return bytes * 1.5 / lab_plan("parameters", o, K, zero);
}

static double seventy(const char *key)
{
    return lab_plan(key, "-n 8 --parallel.tp=8 --model.preset=llama3-70b --data.seq_len=2048 --train.micro_batch=1 "
                         "--precision.compute=bf16 --run.memory_limit=2000GB");
}

static void before_rows(void)
{
    static const char bf16[] = "--precision.compute=bf16", f32[] = "--precision.compute=fp32",
                      full[] = "--precision.compute=bf16 --recompute.mode=full";
    double plain = one_gpu("memory.parameters", 8, f32) + one_gpu("memory.gradients", 8, f32) + one_gpu("memory.optimizer", 8, f32);
    double node = RANKS * (seventy("memory.parameters") + seventy("memory.gradients") / 2 + seventy("memory.optimizer"));
    char what[100];

    lab_open("M7");
    lab_equal("DDP, gradients of 2 bytes: parameters whose state fills 80 GB [billion]", 5, one_gpu_most(80e9, 2), 0.02);
    lab_corrected("DDP, as planned: parameters whose state fills 80 GB [billion]", '=', 5, 80.0 / 18, one_gpu_most(80e9, 4), 0.02,
                  "why: gradients are f32: 18 bytes a parameter; and activations need room too");
    snprintf(what, sizeof what, "1.5B, ZeRO-3 over %ld: state of a rank, gradients of 2 bytes [GB]", lab_size("ranks"));
    lab_equal(what, 24.0 / (double)lab_size("ranks"), audio(3), 0.01);
    lab_equal("1.5B, DDP: state of a rank, gradients of 2 bytes [GB]", 24, audio(0), 0.01);
    lab_check("70B, tp 8: state of a node of 8, gradients of 2 bytes, scaled to 70B [GB]", 1120, node / seventy("parameters") * 70, 0.01);
    lab_equal("bf16: activations of a layer / f32's", 0.5, one_gpu_layer(bf16) / one_gpu_layer(f32), 0.03);
    lab_corrected("bf16: state / f32's, gradients of 2 bytes in bf16", '=', 0.5, 1, one_gpu_state(8, 2) / plain, 1e-3,
                  "why: bf16 has a master copy: 2 + 2 + 4 + 4 + 4 bytes a parameter, f32 4 + 4 + 4 + 4");
    lab_below("full recomputation: activations / those without it", 0.5,
              one_gpu("memory.activations", 8, full) / one_gpu("memory.activations", 8, bf16));
    lab_below("full recomputation: work added, at most a third", 1.0 / 3,
              one_gpu("executed_flops_per_step", 8, full) / one_gpu("executed_flops_per_step", 8, bf16) - 1);
}

LAB(m6_side_by_side, "layouts side by side", { "seq-len", "tokens of a sample of the 8B model", 4096, 512, 8192 },
    { "ranks", "data-parallel ranks of the 1.5B model", 8, 2, 64 })
{
    side_table();
    side_rows();
    before_rows();
    return lab_close();
}
