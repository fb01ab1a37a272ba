/* Z9 - sharding over all ranks fails where a link is too slow for its gathers, where a unit is too large to be gathered, and where so many
 * ranks make the batch too large. The remedy is said to be hybrid sharding: a copy in each node (parallel.replicate), so that gathers
 * stay inside the nodes.
 *
 * Llama 3 8B is planned for --ranks A100 in nodes of 8 whose links to other nodes have 6.25 GB/s for each, micro-batches of 1,024
 * tokens: with so few tokens compute does not hide the gathers. Hybrid sharding helps there, more the more micro-batches share the one
 * exchange between nodes, and a rank holds as many times more as there are nodes. Longer micro-batches help, too: the bytes stay, compute
 * grows.
 *
 * Corrected: hybrid sharding does not help where a unit is too large. The gathered unit has the same size on any number of ranks; tensor
 * parallelism divides it. */
#include "lab.h"

enum { NODE = 8, SAMPLES = 4 };

static double slow(const char *key, int replicate, long micro_batches, long tokens)
{
    long ranks = lab_size("ranks");

    return lab_plan(key,
                    "--machine a100-40-aws -n %ld --model.preset=llama3-8b --parallel.dp=%ld --parallel.zero=3 --parallel.replicate=%d "
                    "--train.micro_batch=1 --train.accumulate=%ld --precision.compute=bf16 --data.seq_len=%ld --recompute.mode=full",
                    ranks, ranks, replicate, micro_batches, tokens);
}

static double z9_step(int replicate, long micro_batches, long tokens) { return slow("seconds.step", replicate, micro_batches, tokens); }

/* Percent of a step in which a rank waits for gathers and reductions. */
static double waits(int replicate, long micro_batches, long tokens)
{
    return 100 * slow("seconds.exposed.dp", replicate, micro_batches, tokens) / z9_step(replicate, micro_batches, tokens);
}

/* Bytes of a rank between steps. */
static double state(int replicate)
{
    return slow("memory.parameters", replicate, 1, 1024) + slow("memory.gradients", replicate, 1, 1024)
           + slow("memory.optimizer", replicate, 1, 1024);
}

/* Eight layers of width 28,672: 13 billion parameters each. */
static double wide(const char *key, long ranks, const char *layout)
{
    return lab_plan(key,
                    "--machine h100-dgx -n %ld --model.preset=llama3-405b --model.width=28672 --model.heads=224 --model.ffn=114688 "
                    "--model.layers=8 --parallel.zero=3 %s --train.micro_batch=1 --precision.compute=bf16 --data.seq_len=1024 "
                    "--recompute.mode=full",
                    ranks, layout);
}

static const char *of_processors(long ranks, const char *text)
{
    static char what[120];

    snprintf(what, sizeof what, "%ld ranks: %s", ranks, text);
    return what;
}

static void link_is_slow(long ranks, long micro)
{
    int nodes = (int)(ranks / NODE);

    lab_above(of_processors(ranks, "slow link, sharded over all: share of the step that waits [%]"), 50, waits(1, micro, 1024));
    lab_above(of_processors(ranks, "slow link, seconds of a step: over all / hybrid"), 1,
              z9_step(1, micro, 1024) / z9_step(nodes, micro, 1024));
    lab_check_below(of_processors(ranks, "slow link, one micro-batch: over all / hybrid, less gained"),
                    z9_step(1, micro, 1024) / z9_step(nodes, micro, 1024), z9_step(1, 1, 1024) / z9_step(nodes, 1, 1024));
    lab_check(of_processors(ranks, "slow link, hybrid: fits into 40 GB (1) or not (0)"), 1, slow("fits", nodes, micro, 1024), 0);
    lab_check(of_processors(ranks, "state of a rank: hybrid / over all"), nodes, state(nodes) / state(1), 0.01);
    lab_check_below(of_processors(ranks, "slow link, share that waits: 4,096 tokens / 1,024"), 0.5,
                    waits(1, micro, 4096) / waits(1, micro, 1024));
}

static void unit_is_large(long ranks)
{
    char layout[2][80];

    snprintf(layout[0], sizeof layout[0], "--parallel.dp=%ld", ranks);
    lab_equal(of_processors(ranks, "large units, over all: fits into 80 GB (1) or not (0)"), 0, wide("fits", ranks, layout[0]), 0);
    lab_check_above(of_processors(ranks, "large units, over all: gathered, and their gradients [GB]"), 80,
                    wide("memory.communication", ranks, layout[0]) / 1e9);
    snprintf(layout[1], sizeof layout[1], "--parallel.dp=%ld --parallel.replicate=%ld", ranks, ranks / NODE);
    lab_corrected(of_processors(ranks, "large units, hybrid: fits (1) or not (0)"), '=', 1, 0, wide("fits", ranks, layout[1]), 0,
                  "why: the gathered unit is as large, and the state of a rank is larger");
    snprintf(layout[1], sizeof layout[1], "--parallel.dp=%ld", 8 * ranks);
    lab_check(of_processors(ranks, "large units, gathered: 8 times as many ranks / these"), 1,
              wide("memory.communication", 8 * ranks, layout[1]) / wide("memory.communication", ranks, layout[0]), 1e-3);
    snprintf(layout[1], sizeof layout[1], "--parallel.dp=%ld --parallel.tp=8", ranks / 8);
    lab_check(of_processors(ranks, "large units, gathered: 8-fold tensor parallelism / without"), 1.0 / 8,
              wide("memory.communication", ranks, layout[1]) / wide("memory.communication", ranks, layout[0]), 0.02);
}

LAB(z9_sharding_fails, "where sharding over all ranks fails", { "ranks", "GPUs, in nodes of 8", 64, 16, 512 },
    { "micro-batches", "micro-batches of a step", 4, 2, 64 })
{
    long ranks = lab_size("ranks"), micro = lab_size("micro-batches");

    if (ranks % NODE) {
        fprintf(stderr, "lab z9: --ranks=%ld is not a multiple of %d\n", ranks, NODE);
        return 1;
    }
    lab_open("Z9");
    link_is_slow(ranks, micro);
    unit_is_large(ranks);
    lab_check(of_processors(ranks, "4 samples each: samples of a step"), SAMPLES * (double)ranks,
              lab_plan("tokens_per_step",
                       "--machine h100-dgx -n %ld --model.preset=llama3-8b --parallel.dp=%ld --parallel.zero=3 --train.micro_batch=%d "
                       "--precision.compute=bf16 --data.seq_len=1024",
                       ranks, ranks, SAMPLES)
                  / 1024,
              0);
    return lab_close();
}
