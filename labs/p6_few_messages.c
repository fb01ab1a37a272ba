/* P6 - few messages: a forward pass through P stages takes P-1 sends; tensor parallelism takes 2 L all-reduces, in each of which every
 * rank takes part. Hence pipelines run over the slow links between machines, and tp stays inside.
 *
 * GPT-2 of L blocks. Sends are counted on real ranks, for a forward of one micro-batch; all-reduces are those of one tp rank's program
 * (T2 counts them in a run), and the embedding adds one. */
#include "lab_pipeline.h"

enum { MOST = 4 };

struct shared { size_t layers; double sends[MOST], bytes[MOST]; };

static void few_messages_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct shared *s = shared;
    struct net net = net_gpt2(s->layers, 4, 16);
    struct line_of_stages l;

    (void)n;
    pipeline_open(&l, &net, comm, "forward", 1, 1);
    pipeline_run(&l);
    ls_comm *forward = ls_mesh_comm(l.mesh, LS_GROUP_PP);
    s->sends[rank] = (double)ls_comm_counters(forward, LS_COLLECTIVE_SEND).calls;
    s->bytes[rank] = (double)sent(forward, LS_COLLECTIVE_SEND);
    TRY(ls_barrier(comm));  /* those after still take what this one sent */
    pipeline_close(&l);
}

struct count { double calls, bytes; };

static struct count stages(int n, size_t layers)
{
    struct shared *s = lab_shared(sizeof *s);
    struct count c = { 0, 0 };

    s->layers = layers;
    lab_ranks(n, few_messages_run, s);
    for (int r = 0; r < n; r++) {
        c.calls += s->sends[r];
        c.bytes += s->bytes[r];
    }
    lab_unshare(s, sizeof *s);
    return c;
}

/* Bytes of the first `summed` ranks together; calls of each rank. */
static struct count tensor(int n, size_t layers, int summed)
{
    struct net net = net_gpt2(layers, n > 4 ? (size_t)n : 4, 16);
    struct count c = { 0, 0 };
    struct distributed s;
    size_t calls;

    net.shape.tp = n;
    for (int r = 0; r < summed; r++) {
        distributed_plan(&net, r, n, &s);
        c.bytes += (double)ls_program_comm_bytes(s.program, LS_FORWARD, LS_COLLECTIVE_ALL_REDUCE, &calls);
        c.calls = (double)calls;
        distributed_close(&s);
    }
    return c;
}

/* For the sizes of the options: the sends of the schedule, the all-reduces of the program that is planned. */
static void few_messages_planned(int n, size_t layers)
{
    ls_pipeline_schedule s;
    int forwards = 0;
    char what[80];

    TRY(ls_pipeline_schedule_make("forward", n, 1, 1, &s));
    for (int r = 0; r < n - 1; r++) forwards += s.count[r];  /* the last stage sends nothing */
    ls_pipeline_schedule_free(&s);
    snprintf(what, sizeof what, "P %d, L %zu, planned: sends of all ranks", n, layers);
    lab_equal(what, n - 1, forwards, 0);
    snprintf(what, sizeof what, "tp %d, L %zu, planned: all-reduces", n, layers);
    lab_corrected(what, '=', 2.0 * (double)layers, 2.0 * (double)layers + 1, tensor(n, layers, 1).calls, 0,
                  "why: the layers have 2L; the vocabulary-parallel embedding adds one");
}

LAB(p6_few_messages, "messages of pipelines and tensor parallelism", { "stages", "stages, and ranks of tensor parallelism", 4, 2, 32 },
    { "layers", "layers of the model", 40, 1, 256 })
{
    static const struct { int ranks; size_t layers; } cases[] = { { 2, 4 }, { 2, 8 }, { 4, 4 }, { 4, 8 }, { 4, 16 } };
    struct count pp[5], tp[5];
    double bsd = 4.0 * 4 * 16 * 32;
    char what[80];

    for (int i = 0; i < 5; i++) {
        pp[i] = stages(cases[i].ranks, cases[i].layers);
        tp[i] = tensor(cases[i].ranks, cases[i].layers, cases[i].ranks);
    }
    lab_say("a forward pass; bytes of all ranks together, in b s d\n%6s %4s %14s %10s %18s %10s\n", "ranks", "L", "sends of pp", "bytes",
           "all-reduces of tp", "bytes");
    for (int i = 0; i < 5; i++)
        lab_say("%6d %4zu %14.0f %10.1f %18.0f %10.1f\n", cases[i].ranks, cases[i].layers, pp[i].calls, pp[i].bytes / bsd, tp[i].calls,
               tp[i].bytes / bsd);
    lab_say("\n");
    lab_open("P6");
    for (int i = 0; i < 5; i++) {
        int n = cases[i].ranks;

        snprintf(what, sizeof what, "P %d, L %zu: sends of all ranks, P-1", n, cases[i].layers);
        lab_equal(what, n - 1, pp[i].calls, 0);
        lab_equal("        all ranks: P-1 [b s d]", n - 1, pp[i].bytes / bsd, 0);
        snprintf(what, sizeof what, "tp %d, L %zu: all-reduces", n, cases[i].layers);
        lab_corrected(what, '=', 2.0 * (double)cases[i].layers, 2.0 * (double)cases[i].layers + 1, tp[i].calls, 0,
                      "why: the layers have 2L; the vocabulary-parallel embedding adds one");
        lab_check("        all ranks: 2 (T-1) each [b s d]", 2.0 * (n - 1) * tp[i].calls, tp[i].bytes / bsd, 0);
    }
    few_messages_planned((int)lab_size("stages"), (size_t)lab_size("layers"));
    return lab_close();
}
