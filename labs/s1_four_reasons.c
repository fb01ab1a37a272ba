/* S1 - four reasons why more processors do not help: communication, bubbles, processors that are starved of work, data.
 *
 * Llama 3 8B is planned for H100. Each row has one reason alone: twice the ranks would halve a step, and it does not. The plan knows
 * nothing of data: a run's step line says how long it waited for the loader. */
#include "lab.h"

static double part(const char *key, int ranks, const char *layout)
{
    return lab_plan(key,
                    "--machine h100-dgx -n %d --model.preset=llama3-8b --precision.compute=bf16 --data.seq_len=%ld "
                    "--train.global_batch=%ld %s",
                    ranks, lab_size("seq-len"), lab_size("batch"), layout);
}

static double s1_step(int ranks, const char *layout) { return part("seconds.step", ranks, layout); }

LAB(s1_four_reasons, "why more processors do not help", { "seq-len", "tokens of a sample", 2048, 1024, 8192 },
    { "batch", "samples of a step, a multiple of 64", 256, 64, 512 })
{
    static const char near[] = "--parallel.tp=8 --parallel.sp --parallel.dp=8 --train.micro_batch=1",
                      far[] = "--parallel.tp=16 --parallel.sp --parallel.dp=4 --train.micro_batch=1";
    double M = (double)lab_size("batch") / 8;

    lab_open("S1");
    lab_above("communication: tp 16 over two nodes / tp 8 in one, 64 GPUs each: exposed seconds", 2,
              part("seconds.exposed.tp", 64, far) / part("seconds.exposed.tp", 64, near));
    lab_below("communication: speedup of twice the ranks by tp 16, of 2", 2,
              s1_step(32, "--parallel.tp=8 --parallel.sp --parallel.dp=4 --train.micro_batch=1") / s1_step(64, far));
    double bubble = part("seconds.bubble", 64, "--parallel.pp=8 --parallel.dp=8 --train.micro_batch=1") /
             s1_step(64, "--parallel.pp=8 --parallel.dp=8 --train.micro_batch=1");
    lab_equal("bubble: share of a step, pp 8, (P - 1) / (M + P - 1)", 7 / (M + 7), bubble, 0.15);
    lab_above("starved: matmul seconds of 8 ranks by tp 8 / of one, one sample each", 1,
              8 * part("seconds.matmul", 8, "--parallel.tp=8 --parallel.sp --train.micro_batch=1") /
                  part("seconds.matmul", 1, "--train.micro_batch=1"));
    lab_not_measurable("data: seconds that a step waits for samples",
                       "why: a plan reads no data; 'lockstep train' measures it and prints it when the loader is late");
    return lab_close();
}
