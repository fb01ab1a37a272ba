/* S6 - a run that waits for a slow link, diagnosed step by step: ranks, overlap, buckets, topology; then a remedy.
 *
 * Llama 3.2 1B under DDP is planned on nodes of 8 H100 that 100 Gb/s connect, 2 samples of 2,048 tokens a rank. The lab writes a machine
 * file for it.
 *
 *     ranks      from one node to two the step takes 13 times as long, from two to eight all but the same: the link between nodes, its
 *                bandwidth and not its latency
 *     overlap    is on and hides what it can: the all-reduce takes far longer than backward
 *     buckets    no size helps: the bytes are the same
 *     topology   sharding inside the nodes sends a little less between them
 *     remedy     fewer bytes (gradients in bf16) and more samples for the same bytes (accumulation), besides the sharding */
#include "lab_command.h"

enum { SLOW = 100 }; /* Gb/s per node */

static char s6_folder[COMMAND_PATH], slow_file[COMMAND_PATH + 32], chosen_file[COMMAND_PATH + 32];

/* Nodes of 8 H100 with so many Gb/s for each node. */
static void machine_write(char path[COMMAND_PATH + 32], const char *name, long gbits)
{
    snprintf(path, COMMAND_PATH + 32, "%s/%s", s6_folder, name);
    FILE *f = fopen(path, "w");
    if (!f) {
        perror(path);
        exit(1);
    }
    fprintf(f,
            "machine:\n  name: nodes of 8 H100 with %ld Gb/s\n"
            "processor:\n  name: H100 SXM 80 GB\n  bf16: 989.4e12\n  fp16: 989.4e12\n  fp32: 66.9e12\n  memory: 79.1 GiB\n"
            "  reserved: 0.55 GiB\n  group_buffers: 221 MiB\n  bandwidth: 3.35e12\n  units: 132\n"
            "efficiency:\n  launch: 4e-6\n  matmul: 0.76\n  host: 80e-6\n  attention: 0.25\n  memory_bound: 0.8\n  link_share: 0.8\n"
            "node:\n  processors: 8\n  bandwidth: 450e9\n  latency: 1.9e-6\n"
            "network:\n  bandwidth: %.6e\n  latency: 10e-6\n",
            gbits, (double)gbits * 1e9 / 8 / 8);
    fclose(f);
}

static double planned_on(const char *file, const char *key, int n, int micro_batches, const char *more)
{
    return lab_plan(key,
                    "--machine %s -n %d --precision.compute=bf16 --model.preset=llama3.2-1b --data.seq_len=2048 --train.micro_batch=2 "
                    "--train.global_batch=%d %s",
                    file, n, 2 * n * micro_batches, more);
}

static double s6_step(int n, int micro_batches, const char *more) { return planned_on(slow_file, "seconds.step", n, micro_batches, more); }
static double exposed(int n, int micro_batches, const char *more)
{
    return planned_on(slow_file, "seconds.exposed.dp", n, micro_batches, more);
}
static double exposed_percent(int n, int micro_batches, const char *more)
{
    return 100 * exposed(n, micro_batches, more) / s6_step(n, micro_batches, more);
}
static double speed(int n, int micro_batches, const char *more)
{
    return planned_on(slow_file, "seconds.units_per_second", n, micro_batches, more);
}

static double best_bucket(void)
{
    static const char *const size[] = { "5MB", "100MB", "400MB", "2GB" };
    double best = s6_step(32, 1, "");
    char more[64];

    lab_say("bucket 25 MB: %.4f s a step on 32 GPUs\n", best);
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        snprintf(more, sizeof more, "--parallel.bucket=%s --parallel.first_bucket=%s", size[i], size[i]);
        lab_say("bucket %5s: %.4f\n", size[i], s6_step(32, 1, more));
        best = fmin(best, s6_step(32, 1, more));
    }
    return best;
}

static void diagnosis(void)
{
    double hidden = planned_on(slow_file, "seconds.hidden.dp", 32, 1, "");

    lab_below("ranks: 8 GPUs in a node, exposed share of a step [%]", 10, exposed_percent(8, 1, ""));
    lab_above("       16 GPUs in two nodes [%]", 50, exposed_percent(16, 1, ""));
    lab_below("       tokens per second of 32 GPUs / of 8", 1, speed(32, 1, "") / speed(8, 1, ""));
    lab_check("       seconds of a step on 64 / on 16: bandwidth binds, not latency", 1, s6_step(64, 1, "") / s6_step(16, 1, ""), 0.1);
    lab_below("overlap: share of the all-reduce that backward hides, 32 GPUs [%]", 10, 100 * hidden / (hidden + exposed(32, 1, "")));
    lab_below("       seconds of a step without overlap / with", 1.1, s6_step(32, 1, "--parallel.overlap=false") / s6_step(32, 1, ""));
    lab_above("buckets: seconds of a step with the best of 5 sizes / with 25 MB", 0.95, best_bucket() / s6_step(32, 1, ""));
    lab_below("topology: FSDP inside nodes, replicated across / DDP, seconds of a step", 0.9,
              s6_step(32, 1, "--parallel.zero=3 --parallel.replicate=4") / s6_step(32, 1, ""));
    lab_above("       FSDP over all nodes / DDP", 0.9, s6_step(32, 1, "--parallel.zero=3") / s6_step(32, 1, ""));
}

static void remedy(void)
{
    static const char all[] = "--precision.reduce=bf16 --parallel.zero=1 --parallel.replicate=4";

    lab_below("remedy: gradients sent in bf16 / fp32, seconds of a step", 0.6,
              s6_step(32, 1, "--precision.reduce=bf16") / s6_step(32, 1, ""));
    lab_above("       8 micro-batches a step: tokens per second / with one", 5, speed(32, 8, "") / speed(32, 1, ""));
    lab_above("       both, and sharded inside nodes: tokens per second / before", 8, speed(32, 8, all) / speed(32, 1, ""));
    lab_below("       exposed share of a step then [%]", 50, exposed_percent(32, 8, all));
    lab_above("       tokens per second of 32 GPUs then / of 8 before", 2, speed(32, 8, all) / speed(8, 1, ""));
}

/* The share by bytes alone: the ring's 2 D (n-1)/n over a node's link at 80% of its speed, less what is hidden. */
static void chosen_link(void)
{
    long gbits = lab_size("network-gbits");
    double step32 = planned_on(chosen_file, "seconds.step", 32, 1, ""), waits = planned_on(chosen_file, "seconds.exposed.dp", 32, 1, "");
    double seconds = planned_on(chosen_file, "comm.all_reduce.bytes", 32, 1, "") / (0.8 * (double)gbits * 1e9 / 8);
    double bound = fmax(0, seconds - planned_on(chosen_file, "seconds.hidden.dp", 32, 1, ""));
    char what[96];

    snprintf(what, sizeof what, "32 GPUs, %ld Gb/s a node: exposed share of a step, above that of the bytes [%%]", gbits);
    lab_check_above(what, 100 * bound / (step32 - waits + bound), 100 * waits / step32);
}

LAB(s6_diagnosis, "a run that a slow link limits", { "network-gbits", "Gb/s of a node's network, of the last row", SLOW, 25, 3200 })
{
    folder_new(s6_folder);
    machine_write(slow_file, "slow.yaml", SLOW);
    machine_write(chosen_file, "chosen.yaml", lab_size("network-gbits"));
    lab_open("S6");
    diagnosis();
    remedy();
    chosen_link();
    folder_remove(s6_folder);
    return lab_close();
}
