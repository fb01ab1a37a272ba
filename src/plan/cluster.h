/* cluster.h - the machine that a step is planned for: processors of one kind, in equal nodes, that a network connects. A machine file
 * (machines/NAME.yaml) describes it; the processors need not be here.
 *
 *   machine:
 *     name: NVIDIA DGX A100 80 GB, 8 x HDR InfiniBand
 *   processor:
 *     name: A100 SXM 80 GB
 *     bf16: 312e12                # FLOP/s of dense matmuls at the peak, by type
 *     memory: 80 GiB
 *     bandwidth: 2.039e12         # bytes/s of its memory
 *   node:
 *     processors: 8
 *     bandwidth: 300e9            # bytes/s of a processor's links in one direction
 *     latency: 2e-6               # seconds of a step of a collective
 *   network: ...
 *
 * Numbers are in SI units: seconds, bytes, FLOP/s. cluster.c lists the keys and their bounds. An unknown key and an impossible value are
 * errors that name file and line, a missing key is one that names the file.
 */
#ifndef LS_PLAN_CLUSTER_H
#define LS_PLAN_CLUSTER_H

#include <stdbool.h>
#include "lockstep/dtype.h"
#include "lockstep/status.h"

enum { CLUSTER_NAME = 128 };

/* One level of links. bandwidth: bytes/s of one processor in one direction; latency: seconds of a step of a collective. */
struct cluster_link {
    double bandwidth, latency;
};

struct cluster {
    char name[CLUSTER_NAME], processor[CLUSTER_NAME];
    double flops[LS_DTYPES]; /* peak FLOP/s of dense matmuls of a processor; 0: not known */
    double memory, reserved; /* bytes of a processor, and those of them that the runtime takes */
    double bandwidth;        /* bytes/s of its memory */
    /* efficiencies, fitted per kind of processor (docs/planner.md) */
    double launch;       /* seconds that every kernel takes at least */
    double matmul;       /* share of the peak that large matmuls reach */
    double host;         /* seconds that the host of an eager framework takes to issue a kernel; --cases only */
    double attention;    /* share of the peak that fused attention reaches */
    double memory_bound; /* share of the bandwidth that elementwise kernels reach */
    double link_share;   /* share of a link's bandwidth that collectives reach */
    int processors;      /* of a node */
    struct cluster_link node, network;
    /* of published runs, not of the machine's file */
    bool scores_written; /* attention writes its scores to memory, as before FlashAttention */
    bool fp8;            /* matmuls are in fp8, at twice the peak of bf16 */
};

/* Reads a machine file, or one of those that are built in, by its name ("a100-80-selene"). LS_EINVAL with "file:line: " and what would be
 * right, or with the names that there are. */
ls_status cluster_read(const char *name, struct cluster *out);
/* Name i of the machines that are built in; NULL past the last one. */
const char *cluster_builtin(int i);

#endif
