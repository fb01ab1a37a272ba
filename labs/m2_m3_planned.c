/* M2 - 70B on 256 GPUs: tp 8, pp 4, dp 8, so 2.2 billion parameters a rank, "4.4 GB of state".
 *
 * Corrected: 4.4 GB are the bf16 weights. With gradients and Adam's state a rank holds 18 bytes a parameter here (Z1), 40 GB, and under
 * ZeRO-1 6 + 12/8 of them.
 *
 * M3 - 175B on 1,024 GPUs: tp 8, pp 16, dp 8: 1.37 billion parameters a rank, 2.7 GB of weights, 21.9 GB of state, 7.5 GB with ZeRO-1, 6
 * layers a stage. Counted with gradients of 2 bytes.
 *
 * `lockstep plan` says what rank 0 holds. Its stage, the first, has the most: the embedding as well, so a few percent above the average,
 * and the most micro-batches in flight. */
#include "lab.h"

enum { OPTIONS = 400 };

static double gigabytes(const char *category, const char *options, int zero)
{
    char key[64];

    snprintf(key, sizeof key, "memory.%s", category);
    return lab_plan(key, "%s --parallel.zero=%d", options, zero) / 1e9;
}

/* gradient: bytes of one gradient; the program's have 4. */
static double state(const char *options, int zero, double gradient)
{
    return gigabytes("parameters", options, zero) + gigabytes("optimizer", options, zero) +
           gigabytes("gradients", options, zero) * gradient / 4;
}

static void seventy(void)
{
    int pp = (int)lab_size("pp"), dp = (int)lab_size("dp");
    char o[OPTIONS];
    double claimed = 140.8 / (8 * pp);

    snprintf(o, sizeof o,
             "-n %d --rank 0 --model.preset=llama3-70b --data.seq_len=%ld --parallel.tp=8 --parallel.pp=%d --parallel.dp=%d "
             "--train.micro_batch=1 --precision.compute=bf16 --run.memory_limit=80GB",
             8 * pp * dp, lab_size("seq-len"), pp, dp);
    double each = lab_plan("parameters", "%s --parallel.zero=0", o) / (8 * pp) / 1e9;
    lab_open("M2");
    lab_equal("parameters a rank [billion]", 70.4 / (8 * pp), each, 0.005);
    lab_equal("bf16 weights a rank [GB]", claimed, gigabytes("parameters", o, 0), 0.02 * pp);
    lab_corrected("state a rank [GB]", '=', claimed, 18 * each, state(o, 0, 4), 0.02 * pp,
                  "why: 2 bytes a parameter are the weights alone; gradients are 4 bytes here, masters and moments 12");
    lab_corrected("state a rank, gradients of 2 bytes [GB]", '=', claimed, 16 * each, state(o, 0, 2), 0.02 * pp,
                  "why: as above, 2 + 2 + 12");
    lab_corrected("state a rank under ZeRO-1 [GB]", '=', claimed, (6 + 12.0 / dp) * each, state(o, 1, 4), 0.02 * pp,
                  "why: only masters and moments are sharded over the ranks of dp");
    lab_check("state a rank under ZeRO-1, gradients of 2 bytes [GB]", (4 + 12.0 / dp) * each, state(o, 1, 2), 0.02 * pp);
    lab_check("state a rank under ZeRO-3, gradients of 2 bytes [GB]", 16 * each / dp, state(o, 3, 2), 0.02 * pp);
    lab_check_below("everything that the largest rank holds [GB]", 80, gigabytes("total", o, 0));
}

static void large(void)
{
    static const char o[] =
        "-n 1024 --rank 0 --model.preset=gpt2-1.5b --model.layers=96 --model.width=12288 --model.heads=96 --model.ffn=49152 "
        "--model.max_positions=2048 --data.seq_len=2048 --parallel.tp=8 --parallel.pp=16 --parallel.dp=8 --parallel.sp "
        "--train.micro_batch=1 --precision.compute=bf16 --run.memory_limit=80GB";

    lab_open("M3");
    lab_equal("parameters a rank [billion]", 1.37, lab_plan("parameters", "%s --parallel.zero=0", o) / 128 / 1e9, 0.01);
    lab_equal("bf16 weights a rank [GB]", 2.7, gigabytes("parameters", o, 0), 0.1);
    lab_equal("state a rank, gradients of 2 bytes [GB]", 21.9, state(o, 0, 2), 0.1);
    lab_equal("state a rank under ZeRO-1 [GB]", 7.5, state(o, 1, 2), 0.1);
    lab_check_below("everything that the largest rank holds [GB]", 80, gigabytes("total", o, 0));
}

LAB(m2_m3_planned, "layouts of 70B and 175B", { "pp", "pipeline stages of the 70B model, of which each rank has 1/8", 4, 4, 8 },
    { "dp", "data-parallel ranks of the 70B model", 8, 2, 64 },
    { "seq-len", "tokens of a sample of the 70B model", 2048, 64, 4096 })
{
    seventy();
    large();
    return lab_close();
}
