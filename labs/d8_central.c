/* D8 - data parallelism with one process that owns the model, on the user's model: `lockstep train` with parallel.method=dataparallel
 * (in each micro-batch rank 0 sends the weights to all ranks and adds their gradients, as PyTorch's DataParallel does) and with
 * parallel.method=server (a synchronous parameter server: once a step). Rank 0 sends and receives (K-1) times the model, the others
 * once; a ring loads all links equally, with less than twice the model. And K-1 ranks wait while one adds and updates.
 *
 * Before a run its bytes are planned; after it they are counted, and compared with those of an all-reduce, which the run made first from
 * the same weights on the same samples (RUN/method.json).
 *
 * That it is unbalanced is certain: the bytes at rank 0 are counted. That it is slower depends: if bandwidth limits, it is, by a factor
 * of K/2; if latency limits, the number of sequential messages decides, and rank 0 has no more of them than the ring has steps. In one
 * machine's memory there are no links, so seconds are printed but not compared. */
#include "lab_runs.h"

enum { METHODS = 2, RANKS_MOST = 16 };

static const char *const method[METHODS] = { "dataparallel", "server" };

/* gathered, reduced: bytes per step of rank 0's weights and of all other ranks' gradients; state: bytes of the optimizer state. */
struct central {
    double parameters, gradients, gathered, reduced, reduced_1, calls, state_1;        /* counted; parameters: including untrained ones */
    double sent, received, memory, memory_1, seconds, loss;                            /* figures of the method */
    double ring_sent, ring_received, ring_memory, ring_seconds, ring_loss;             /* figures of the all-reduce */
    double planned_sent, planned_memory, planned_ring_sent, planned_ring_calls, total; /* planned; total: the measured planned_memory */
};

static double central_plan(const char *folder, const char *key, const char *name)
{
    char own[200];

    snprintf(own, sizeof own, "-n %ld --train.micro_batch=%ld --parallel.method=%s", lab_size("ranks"), lab_size("batch"), name);
    return run_plan(folder, key, own);
}

/* The bytes that a plan counts, from line k of rank 0's metrics: the ledger's peaks, without what does not belong to the model. */
static double central_held(const char *metrics, int k)
{
    static const char *const key[] = { "memory.parameters", "memory.gradients", "memory.optimizer", "memory.activations",
                                       "memory.communication" };
    double sum = 0;

    for (size_t i = 0; i < sizeof key / sizeof *key; i++) sum += run_number(metrics, k, key[i]);
    return sum;
}

static void central_predict(const char *folder, const char *name, struct central *c)
{
    c->planned_sent = central_plan(folder, "comm.all_gather.bytes", name);
    c->planned_memory = central_plan(folder, "memory.total", name);
    c->planned_ring_sent = central_plan(folder, "comm.all_reduce.bytes", "allreduce");
    c->planned_ring_calls = central_plan(folder, "comm.all_reduce.calls", "allreduce");
    lab_say("planned: %-12s rank 0 sends %.0f bytes of weights a step, holds %.0f bytes; all-reduce: every rank sends %.0f\n", name,
            c->planned_sent, c->planned_memory, c->planned_ring_sent);
}

static void central_count(const char *folder, const char *name, struct central *c)
{
    int last = (int)lab_size("steps") - 1;
    char file[64];

    for (int r = 0; r < (int)lab_size("ranks"); r++) {
        snprintf(file, sizeof file, "metrics.rank_%04d.jsonl", r);
        char *metrics = run_file(folder, name, file);
        double reduced = run_number(metrics, last, "comm.reduce_scatter.bytes");

        c->reduced += r ? reduced : 0;
        if (r == 0) {
            c->parameters = run_number(metrics, last, "memory.parameters");
            c->gradients = run_number(metrics, last, "memory.gradients");
            c->gathered = run_number(metrics, last, "comm.all_gather.bytes");
            c->calls = run_number(metrics, last, "comm.all_gather.calls") + run_number(metrics, last, "comm.reduce_scatter.calls");
            c->total = central_held(metrics, last);
        }
        if (r == 1) {
            c->reduced_1 = reduced;
            c->state_1 = run_number(metrics, last, "memory.optimizer");
        }
        free(metrics);
    }
}

static void central_compare(const char *folder, const char *name, struct central *c)
{
    char *costs = run_file(folder, name, "method.json");

    c->sent = lab_json(costs, "cost.sent");
    c->received = lab_json(costs, "cost.received");
    c->memory = lab_json(costs, "cost.memory_rank_0");
    c->memory_1 = lab_json(costs, "cost.memory_others");
    c->seconds = lab_json(costs, "cost.step_seconds");
    c->loss = lab_json(costs, "cost.loss");
    c->ring_sent = lab_json(costs, "allreduce.sent");
    c->ring_received = lab_json(costs, "allreduce.received");
    c->ring_memory = lab_json(costs, "allreduce.memory_rank_0");
    c->ring_seconds = lab_json(costs, "allreduce.step_seconds");
    c->ring_loss = lab_json(costs, "allreduce.loss");
    free(costs);
}

static struct central central_run(const char *folder, const char *name)
{
    long steps = lab_size("steps");
    struct central c = { 0 };

    central_predict(folder, name, &c);
    RUN_TRAIN(folder, name,
              "-n %ld --train.micro_batch=%ld --train.steps=%ld --parallel.reference_steps=%ld --log.per_rank=true --parallel.method=%s",
              lab_size("ranks"), lab_size("batch"), steps, steps, name);
    central_count(folder, name, &c);
    central_compare(folder, name, &c);
    return c;
}

static void central_print(const struct central *c)
{
    lab_say("\na step, on %ld ranks           %14s %14s %14s\n", lab_size("ranks"), method[0], method[1], "all-reduce");
    lab_say("%-30s %14.0f %14.0f %14.0f\n", "busiest rank sends [bytes]", c[0].sent, c[1].sent, c[1].ring_sent);
    lab_say("%-30s %14.0f %14.0f %14.0f\n", "             receives", c[0].received, c[1].received, c[1].ring_received);
    lab_say("%-30s %14.0f %14.0f %14.0f\n", "another rank sends", c[0].reduced_1, c[1].reduced_1, c[1].ring_sent);
    lab_say("%-30s %14.0f %14.0f %14.0f\n", "memory of rank 0 [bytes]", c[0].memory, c[1].memory, c[1].ring_memory);
    lab_say("%-30s %14.0f %14.0f %14.0f\n", "       of another, most", c[0].memory_1, c[1].memory_1, c[1].ring_memory);
    lab_say("%-30s %14.6f %14.6f %14.6f\n", "median of a step [s]", c[0].seconds, c[1].seconds, c[1].ring_seconds);
    lab_say("%-30s %14.4f %14.4f %14.4f\n\n", "loss of the last step", c[0].loss, c[1].loss, c[1].ring_loss);
}

/* Prints the rows of one method. P: bytes of weights, and as many of gradients. */
static void central_rows(const char *name, const struct central *c, int ranks)
{
    char what[100];

    snprintf(what, sizeof what, "%s, %d ranks: rank 0 sends, in models a step", name, ranks);
    lab_equal(what, ranks - 1, c->gathered / c->gradients, 0);
    lab_equal("       rank 0 receives", ranks - 1, c->reduced / c->gradients, 0);
    lab_equal("       another rank sends", 1, c->reduced_1 / c->gradients, 0);
    lab_check("       bytes of rank 0, measured - planned", 0, c->gathered - c->planned_sent, 0);
    lab_check("       memory of rank 0, measured - planned [bytes]", 0, c->total - c->planned_memory, 0);
    lab_check("       optimizer state of another rank [bytes]", 0, c->state_1, 0);
    lab_above("       unbalanced: memory of rank 0 / of another", 1, c->memory / c->memory_1);
    lab_check("       the same training: loss of the last step", c->ring_loss, c->loss, 1e-4);
}

/* For models without untrained state: batch norm's statistics are summed by all-reduces in each method. */
static void central_ring_rows(const struct central *c, int ranks)
{
    lab_check("all-reduce: every rank sends, in models a step: 2 (K-1)/K", 2.0 * (ranks - 1) / ranks, c->ring_sent / c->gradients, 0.01);
    lab_equal("bandwidth-bound: bytes of the busiest rank, central / all-reduce, K/2", ranks / 2.0,
              (c->sent + c->received) / (c->ring_sent + c->ring_received), 0.01);
    lab_corrected("latency-bound: sequential messages per step, central / ring", '>', 1, 1,
                  c->calls * (ranks - 1) / (c->planned_ring_calls * 2 * (ranks - 1)), 0,
                  "why: rank 0 sends K-1 and receives K-1 messages a bucket, a ring takes 2 (K-1) steps: small models are not slower");
}

LAB_TRAINS(d8_central, "model data optim", "one process that owns the model",
           { "ranks", "ranks, one of which owns the model", 4, 2, RANKS_MOST }, { "batch", "samples of a rank's batch", 2, 1, 1024 },
           { "steps", "steps of each run", 8, 2, 10000 })
{
    int ranks = (int)lab_size("ranks");
    struct central c[METHODS];
    char folder[COMMAND_PATH], text[COMMAND_PATH + 16];

    folder_new(folder);
    snprintf(text, sizeof text, "%s/text.txt", folder);
    folder_write_text(text);
    for (int m = 0; m < METHODS; m++) c[m] = central_run(folder, method[m]);
    folder_remove(folder);
    central_print(c);
    lab_open("D8");
    for (int m = 0; m < METHODS; m++) central_rows(method[m], &c[m], ranks);
    lab_equal("unbalanced: rank 0's bytes / another rank's, server", ranks - 1, c[1].gathered / c[1].reduced_1, 0);
    if (c[1].parameters == c[1].gradients) central_ring_rows(&c[1], ranks);
    lab_not_measurable("seconds, central / all-reduce",
                       "why: ranks share cores and memory, so no link is loaded and either may be faster (the seconds printed); "
                       "needs a link and a processor for each rank");
    return lab_close();
}
