/* P1 - in a pipeline only neighboring stages communicate: activations go forward, their gradients backward.
 *
 * The messages of a run: bytes and messages from each rank to each other, on the two communicators of a pipeline (forward and
 * backward), counted while GPT-2 of 2 blocks a rank trains on 4 ranks. A message is one micro-batch's residual stream, b s d. With two
 * chunks per rank the last rank is also a neighbor of the first. This covers forward and backward; the gradient norm, and an embedding
 * shared by the first and the last stage, are summed over stages in the optimizer step. */
#include "lab_pipeline.h"

enum { MOST = 8 };

struct found { double forward[MOST], back[MOST], messages[2], said, said_messages, loss, one; };
struct shared { const char *schedule; int chunks; struct found rank[MOST]; };

static int P, M; /* stages and micro-batches */

static struct net neighbors_net_of(void)
{
    struct net n = net_gpt2(2 * (size_t)P, 4, 16);

    n.samples = 2 * M;
    return n;
}

static void neighbors_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct shared *s = shared;
    struct found *f = &s->rank[rank];
    struct net net = neighbors_net_of();
    struct line_of_stages l;
    struct distributed one;
    ls_comm *way[2];
    size_t messages;

    pipeline_open(&l, &net, comm, s->schedule, s->chunks, M);
    f->loss = pipeline_run(&l);
    way[0] = ls_mesh_comm(l.mesh, LS_GROUP_PP);
    way[1] = ls_mesh_comm(l.mesh, LS_GROUP_PP_BACK);
    for (int to = 0; to < n; to++) {
        f->forward[to] = (double)ls_comm_bytes_to(way[0], to);
        f->back[to] = (double)ls_comm_bytes_to(way[1], to);
    }
    for (int k = 0; k < 2; k++) f->messages[k] = (double)ls_comm_counters(way[k], LS_COLLECTIVE_SEND).calls;
    f->said = (double)ls_pipeline_bytes(l.pipeline, &messages);
    f->said_messages = (double)messages;
    pipeline_close(&l);
    net.sharded = 0;
    net.shape.dp = 1;
    distributed_open(&net, NULL, 0, &one);
    f->one = distributed_step(&one, 0);
    distributed_close(&one);
}

/* Bytes between ranks that are not neighbors; ring: the last and the first are. */
static double astray(const struct shared *s, int ring)
{
    double bytes = 0;

    for (int from = 0; from < P; from++)
        for (int to = 0; to < P; to++) {
            int forth = to == from + 1 || (ring && to == (from + 1) % P), back = to == from - 1 || (ring && from == (to + 1) % P);

            bytes += (forth ? 0 : s->rank[from].forward[to]) + (back ? 0 : s->rank[from].back[to]);
        }
    return bytes;
}

static void print(const struct shared *s, double message)
{
    lab_say("%s, %d chunk%s a rank: messages from (row) to (column), activations / gradients\n%6s", s->schedule, s->chunks,
           s->chunks > 1 ? "s" : "", "");
    for (int to = 0; to < P; to++) lab_say(" %11d", to);
    for (int from = 0; from < P; from++) {
        lab_say("\n%6d", from);
        for (int to = 0; to < P; to++) lab_say("  %4.0f / %-4.0f", s->rank[from].forward[to] / message, s->rank[from].back[to] / message);
    }
    lab_say("\n\n");
}

static void neighbors_check(const struct shared *s, double message)
{
    double off = 0, unsaid = 0, stages = P * s->chunks, messages = 0;
    char what[80];

    for (int r = 0; r < P; r++) {
        double own[2] = { 0 };

        for (int to = 0; to < P; to++) {
            own[0] += s->rank[r].forward[to];
            own[1] += s->rank[r].back[to];
        }
        off += own[0] + own[1];
        messages += s->rank[r].messages[0] + s->rank[r].messages[1];
        unsaid +=
            fabs(own[0] + own[1] - s->rank[r].said) + fabs(s->rank[r].messages[0] + s->rank[r].messages[1] - s->rank[r].said_messages);
    }
    snprintf(what, sizeof what, "%s: bytes between ranks that are not neighbors", s->schedule);
    lab_equal(what, 0, astray(s, s->chunks > 1), 0);
    lab_equal("        all messages, b s d each: 2 M (stages - 1)", 2 * M * (stages - 1), off / message, 0);
    snprintf(what, sizeof what, "%s, P = %d, M = %d: messages of a step", s->schedule, P, M);
    lab_check(what, 2 * M * (stages - 1), messages, 0);
    lab_check("        bytes and messages counted but not planned", 0, unsaid, 0);
    lab_check("        loss, one rank's", s->rank[0].one, s->rank[0].loss + s->rank[P - 1].loss, 1e-6);
}

LAB(p1_neighbours, "which stages of a pipeline communicate", { "stages", "stages of the pipeline, a rank each", 4, 2, MOST },
    { "micro-batches", "micro-batches of a step", 6, 1, 32 })
{
    struct shared *one = lab_shared(sizeof *one), *two = lab_shared(sizeof *two);

    P = (int)lab_size("stages");
    M = (int)lab_size("micro-batches");
    struct net n = neighbors_net_of();
    double message = 4.0 * n.samples / M * (double)n.time * (double)n.model.width;

    one->schedule = "1f1b";
    one->chunks = 1;
    two->schedule = "interleaved";
    two->chunks = 2;
    lab_ranks(P, neighbors_run, one);
    lab_ranks(P, neighbors_run, two);
    print(one, message);
    print(two, message);
    lab_open("P1");
    lab_equal("rank 0 sends forward to rank 1, messages", M, one->rank[0].forward[1] / message, 0);
    lab_equal("rank 1 sends back to rank 0, messages", M, one->rank[1].back[0] / message, 0);
    lab_equal("rank 1 sends forward to rank 0, rank 0 back to rank 1", 0, one->rank[1].forward[0] + one->rank[0].back[1], 0);
    neighbors_check(one, message);
    neighbors_check(two, message);
    lab_unshare(one, sizeof *one);
    lab_unshare(two, sizeof *two);
    return lab_close();
}
