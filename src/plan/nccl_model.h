/* nccl_model.h - how long NCCL takes for a collective. It has several algorithms and protocols, and uses the one that its own cost model
 * (the tuner) predicts to be fastest for the group and the size. This is that model with its constants, of version 2.30:
 *
 *   seconds = latency + bytes / bandwidth
 *   ring    latency: of the algorithm's start, and of every step; bandwidth: the ring's, (n - 1) / n of the bytes once or, for an
 *           all-reduce, twice
 *   tree    all-reduce only: up and down a chain within a node and a binary tree between nodes, 0.92 of the ring's bandwidth, less for
 *           sizes in the middle
 *   NVLS    all-reduce only, of nodes whose switches add (NVLink SHARP); between nodes by a tree. In a node every processor sends and
 *           receives all of the buffer, and once more its part of it. The model has a factor for sizes in the middle only for some nodes;
 *           measured all-reduces of 8 H100 follow it, so it is taken for all.
 *
 * each by the protocols LL (short latency, half the bandwidth or less), LL128 (0.92 of it) and Simple (all of it, long latency). Left out:
 * PAT, which gathers over one rank a node since version 2.23, what needs switches of the network that add, and limits of a single channel.
 */
#ifndef LS_PLAN_NCCL_MODEL_H
#define LS_PLAN_NCCL_MODEL_H

#include <stdbool.h>
#include "lockstep/comm.h"

/* Generations of processors, by which some constants differ. NONE: the library of the machine is not NCCL. */
enum nccl_generation { NCCL_NONE, NCCL_VOLTA, NCCL_AMPERE, NCCL_HOPPER, NCCL_BLACKWELL, NCCL_GENERATIONS };
const char *nccl_generation_name(enum nccl_generation g); /* "hopper" */

/* A group. ring: bytes/s of its ring; between: bytes/s of what it sends between nodes; further: how many seconds longer than NCCL_NETWORK
 * the messages of its nodes - 1 steps between nodes take, in all; nvls: bytes/s that a processor sends and
 * receives while its node's switches add, the buffer and a k-th of it for k ranks in the node; 0: they do not add. */
struct nccl_group {
    enum nccl_generation generation;
    int ranks, nodes;
    double ring, between, further, nvls;
};
/* Seconds of a message over InfiniBand within a pod, as a ring's step by LL128. */
#define NCCL_NETWORK 4e-6
bool nccl_knows(ls_collective op); /* all_reduce, all_gather, reduce_scatter */
double nccl_seconds(const struct nccl_group *g, ls_collective op, double bytes);

#endif
