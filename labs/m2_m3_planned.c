/* M2 - 70B on 256 GPUs: tp 8, pp 4, dp 8, so 2.2 billion parameters a rank, "4.4 GB of state".
 *
 * Corrected: 4.4 GB are the bf16 weights. With gradients and Adam's state a rank holds 18 bytes a parameter here (Z1), 40 GB, and under
 * ZeRO-1 6 + 12/8 of them.
 *
 * M3 - 175B on 1,024 GPUs: tp 8, pp 16, dp 8: 1.37 billion parameters a rank, 2.7 GB of weights, 21.9 GB of state, 7.5 GB with ZeRO-1, 6
 * layers a stage. Counted with gradients of 2 bytes.
 *
 * `lockstep plan` says what the rank with the most memory holds. The first and the last stage hold the embedding as well, so they are a few
 * percent above the average. */
#include "lab.h"

enum { OPTIONS = 400 };

static double gigabytes(const char *category, const char *options, int zero)
{
    char key[64];

    snprintf(key, sizeof key, "memory.%s", category);
    return lab_plan(key, "%s --parallel.zero=%d", options, zero) / 1e9;
}

/* gradient: bytes of one; the program has 4. */
static double state(const char *options, int zero, double gradient)
{
    return gigabytes("parameters", options, zero) + gigabytes("optimizer", options, zero) +
           gigabytes("gradients", options, zero) * gradient / 4;
}

static void seventy(void)
{
    char o[OPTIONS];
    double each;

    snprintf(o, sizeof o,
             "-n 256 --model.preset=llama3-70b --data.seq_len=%ld --parallel.tp=8 --parallel.pp=4 --parallel.dp=8 --train.micro_batch=1 "
             "--precision.compute=bf16 --run.memory_limit=80GB",
             lab_size("seq-len"));
    each = lab_plan("parameters", "%s --parallel.zero=0", o) / 32 / 1e9;
    lab_open("M2");
    lab_equal("parameters a rank [billion]", 2.2, each, 0.005);
    lab_equal("bf16 weights a rank [GB]", 4.4, gigabytes("parameters", o, 0), 0.05);
    lab_corrected("state a rank [GB]", '=', 4.4, 18 * each, state(o, 0, 4), 0.05,
                  "why: 4.4 GB are the weights alone; gradients are 4 bytes here, masters and moments 12");
    lab_corrected("state a rank under ZeRO-1 [GB]", '=', 4.4, (6 + 12.0 / 8) * each, state(o, 1, 4), 0.05,
                  "why: only masters and moments are sharded over the 8 ranks of dp");
    lab_check_below("everything that the largest rank holds [GB]", 80, gigabytes("total", o, 0));
}

static void large(void)
{
    static const char o[] =
        "-n 1024 --model.preset=gpt2-1.5b --model.layers=96 --model.width=12288 --model.heads=96 --model.ffn=49152 "
        "--model.max_positions=2048 --data.seq_len=2048 --parallel.tp=8 --parallel.pp=16 --parallel.dp=8 --parallel.sp "
        "--train.micro_batch=1 --precision.compute=bf16 --run.memory_limit=80GB";

    lab_open("M3");
    lab_equal("parameters a rank [billion]", 1.37, lab_plan("parameters", "%s --parallel.zero=0", o) / 128 / 1e9, 0.01);
    lab_equal("bf16 weights a rank [GB]", 2.7, gigabytes("parameters", o, 0), 0.1);
    lab_equal("state a rank, gradients of 2 bytes [GB]", 21.9, state(o, 0, 2), 0.1);
    lab_equal("state a rank under ZeRO-1 [GB]", 7.5, state(o, 1, 2), 0.1);
    lab_check_below("everything that the largest rank holds [GB]", 80, gigabytes("total", o, 0));
}

LAB(m2_m3_planned, "layouts of 70B and 175B", { "seq-len", "tokens of a sample of the 70B model", 2048, 64, 4096 })
{
    seventy();
    large();
    return lab_close();
}
