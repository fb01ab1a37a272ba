/* nccl_model.c - see nccl_model.h. Bandwidths of the tables are bytes/s, latencies seconds. */
#include "plan/nccl_model.h"

#include <math.h>
#include "base/base.h"

enum algorithm { RING, TREE, ALGORITHMS };
enum protocol { LL, LL128, SIMPLE, PROTOCOLS };

/* Latencies of the start, and of a step over NVLink and over the network. */
static const double nccl_model_start[ALGORITHMS][PROTOCOLS] = { [RING] = { 6.6e-6, 14e-6, 8.4e-6 }, [TREE] = { 6.8e-6, 14e-6, 8.4e-6 } };
static const double nvlink[ALGORITHMS][PROTOCOLS] = { [RING] = { 0.6e-6, 1.9e-6, 3.4e-6 }, [TREE] = { 0.6e-6, 1.25e-6, 4e-6 } };
static const double network[ALGORITHMS][PROTOCOLS] = { [RING] = { 2.7e-6, NCCL_NETWORK, 14e-6 }, [TREE] = { 5e-6, 8.5e-6, 14e-6 } };
static const double nvls_start = 25e-6, nvls_network = 20.9e-6;
static const double nccl_model_post = 1e-6; /* a step over the network costs the host at least this, three times with Simple */

/* The largest bandwidth of LL in a node, over 2 nodes and over more. */
static const double ll_node[NCCL_GENERATIONS] = {
    [NCCL_VOLTA] = 39e9, [NCCL_AMPERE] = 87.7e9, [NCCL_HOPPER] = 141e9, [NCCL_BLACKWELL] = 282e9
};
static const double ll_nodes[2] = { 22.5e9, 19e9 };

/* Share of the bandwidth that trees reach with 64 bytes, 128, ..., 512 MB; between two sizes on straight lines. */
enum { SIZES = 24 };
static const double middle[PROTOCOLS][SIZES] = {
    [LL] = { 1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1 },
    [LL128] = { 1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1 },
    [SIMPLE] = { .9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9 },
};

const char *nccl_generation_name(enum nccl_generation g)
{
    static const char *const names[NCCL_GENERATIONS] = { "none", "volta", "ampere", "hopper", "blackwell" };

    return names[g];
}

bool nccl_knows(ls_collective op)
{
    return op == LS_COLLECTIVE_ALL_REDUCE || op == LS_COLLECTIVE_ALL_GATHER || op == LS_COLLECTIVE_REDUCE_SCATTER;
}

static double middle_of(enum protocol p, double bytes)
{
    double along = bytes > 64 ? log2(bytes / 64) : 0;
    int at = (int)along;

    if (at >= SIZES - 1) return middle[p][SIZES - 1];
    return middle[p][at] + (along - at) * (middle[p][at + 1] - middle[p][at]);
}

static double ring_seconds(const struct nccl_group *g, ls_collective op, double bytes, enum protocol p)
{
    int rounds = op == LS_COLLECTIVE_ALL_REDUCE ? 2 : 1, between = rounds * (g->nodes - 1), steps = rounds * (g->ranks - 1);
    double ring = g->ring, own = nvlink[RING][p];
    double far = network[g->ranks == g->nodes ? TREE : RING][p]; /* one rank a node: nothing hides a message */

    if (p == LL) ring = fmin(ring / 2, g->nodes == 1 ? ll_node[g->generation] : ll_nodes[g->nodes > 2]);
    if (p == LL128) ring *= 0.92;
    if (g->nodes > 1) own = fmax(own, p == SIMPLE ? 3 * nccl_model_post : nccl_model_post);
    double latency = nccl_model_start[RING][p] + (steps - between) * own + between * far + rounds * g->further;
    if (p == SIMPLE && g->nodes > 1 && op == LS_COLLECTIVE_ALL_REDUCE) latency *= g->generation == NCCL_VOLTA ? 1.9 : 1.4;
    return latency + bytes * steps / g->ranks / ring;
}

static double tree_seconds(const struct nccl_group *g, double bytes, enum protocol p)
{
    double levels = floor(log2(g->nodes)), tree = 0.92 * g->ring;

    if (p == LL) tree = fmin(tree / 3.8, g->nodes == 1 ? ll_node[g->generation] : ll_nodes[g->nodes > 2]);
    if (p == LL128) tree *= g->nodes == 1 ? 7.0 / 9 : 120.0 / 128;
    double further = g->nodes > 1 ? g->further * levels / (g->nodes - 1) : 0;
    double latency = nccl_model_start[TREE][p] + 2 * ((g->ranks / g->nodes - 1) * nvlink[TREE][p] + levels * network[TREE][p] + further);
    return latency + 2 * bytes / (tree * middle_of(p, bytes));
}

static double nvls_seconds(const struct nccl_group *g, double bytes)
{
    double levels = floor(log2(g->nodes)), further = g->nodes > 1 ? g->further * levels / (g->nodes - 1) : 0;
    double local = (double)g->ranks / g->nodes, share = middle_of(SIMPLE, bytes);
    double inside = bytes * (1 + 1 / local) / g->nvls, around = 2 * bytes * (g->nodes - 1) / g->nodes / g->between;

    return nvls_start + 2 * (levels * nvls_network + further) + fmax(inside, g->nodes > 1 ? around : 0) / share;
}

double nccl_seconds(const struct nccl_group *g, ls_collective op, double bytes)
{
    bool reduces = op == LS_COLLECTIVE_ALL_REDUCE;
    double best = INFINITY;

    ASSERT(nccl_knows(op) && g->generation != NCCL_NONE);
    for (int p = 0; p < PROTOCOLS; p++) {
        best = fmin(best, ring_seconds(g, op, bytes, (enum protocol)p));
        if (reduces) best = fmin(best, tree_seconds(g, bytes, (enum protocol)p));
    }
    if (reduces && g->nvls > 0 && g->ranks > g->nodes) best = fmin(best, nvls_seconds(g, bytes));
    return best;
}
