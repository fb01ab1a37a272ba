/* M4 - use the simplest layout that works: below 1B parameters DDP, from 1B to 10B FSDP, from 10B to 30B tensor parallelism as well, above
 * 30B all three.
 *
 * Each is planned for 64 H100 in nodes of 8, 4 samples a rank and step. Corrected: on 64 GPUs FSDP alone works above 10B too (above 30B
 * with recomputation), and tensor parallelism makes it slower. What limits FSDP is not the model's size but the number of ranks: each needs
 * a sample of its own. */
#include "lab.h"

enum { GPU = 80 }; /* GB */

static const char DDP[] = "--train.micro_batch=1", FSDP[] = "--parallel.zero=3 --train.micro_batch=1",
                  TENSOR[] = "--parallel.tp=8 --parallel.sp --parallel.zero=3 --train.micro_batch=4",
                  THREE[] = "--parallel.tp=8 --parallel.pp=4 --parallel.sp --parallel.zero=1 --train.micro_batch=1",
                  FULL[] = "--recompute.mode=full";

static double m4_planned(const char *key, const char *model, const char *layout, const char *more)
{
    long ranks = lab_size("ranks"), others = strstr(layout, "pp=4") ? 32 : strstr(layout, "tp=8") ? 8 : 1;

    return lab_plan(key,
                    "--machine h100-dgx -n %ld --parallel.dp=%ld --precision.compute=bf16 --data.seq_len=%ld --train.global_batch=%ld "
                    "%s %s %s",
                    ranks, ranks / others, lab_size("seq-len"), 4 * ranks, model, layout, more);
}

static double m4_memory(const char *model, const char *layout, const char *more)
{
    return m4_planned("memory.total", model, layout, more) / 1e9;
}
static double m4_step(const char *model, const char *layout, const char *more) { return m4_planned("seconds.step", model, layout, more); }

LAB(m4_simplest, "the simplest layout that works", { "ranks", "GPUs, in nodes of 8, a multiple of 32", 64, 64, 512 },
    { "seq-len", "tokens of a sample", 4096, 1024, 4096 })
{
    static const char small[] = "--model.preset=gpt2-124m --model.max_positions=131072", eight[] = "--model.preset=llama3-8b",
                      eighteen[] = "--model.preset=llama3-8b --model.layers=80", seventy[] = "--model.preset=llama3-70b";

    lab_open("M4");
    lab_below("0.1B: memory of DDP [GB]", GPU, m4_memory(small, DDP, ""));
    lab_below("      seconds of DDP / FSDP", 1, m4_step(small, DDP, "") / m4_step(small, FSDP, ""));
    lab_above("8B: memory of DDP, full recomputation [GB]", GPU, m4_memory(eight, DDP, FULL));
    lab_below("    memory of FSDP [GB]", GPU, m4_memory(eight, FSDP, ""));
    lab_below("    seconds of FSDP / with tensor parallelism", 1, m4_step(eight, FSDP, "") / m4_step(eight, TENSOR, ""));
    lab_corrected("18B: FSDP alone does not fit (1) or does (0)", '=', 1, 0, m4_memory(eighteen, FSDP, "") > GPU, 0,
                  "why: a rank's share of the state shrinks with the ranks, and only two layers are gathered at a time");
    lab_check_below("     seconds of FSDP / with tensor parallelism", 1, m4_step(eighteen, FSDP, "") / m4_step(eighteen, TENSOR, ""));
    lab_corrected("70B: FSDP alone does not fit (1) or does (0), full recomputation", '=', 1, 0, m4_memory(seventy, FSDP, FULL) > GPU, 0,
                  "why: as above; activations are one tensor a layer and what one layer computes");
    lab_say("     seconds of FSDP %.2f, of all three without recomputation %.2f (not judged: it depends on the batch)\n",
            m4_step(seventy, FSDP, FULL), m4_step(seventy, THREE, ""));
    return lab_close();
}
