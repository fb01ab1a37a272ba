/* cluster.h - a cluster to plan for: processors of one kind in equal nodes, and the links between them.
 *
 * It is read from a machine file (machines/NAME.yaml; those files are built into the library) and does not have to exist. An ls_machine
 * (machine.h) is the one computer on which this process runs, as it was found and measured; a cluster is what a file says. Plans
 * (plan.h) take a cluster.
 *
 * A cluster is opaque, because what a plan computes with (efficiencies, curves of kernels, the communication library's constants) changes
 * with the planner. What a program may want to read or print is in ls_cluster_facts, whose fields are physical properties that keep their
 * meaning.
 *
 *   for (int i = 0; ls_cluster_builtin(i); i++) puts(ls_cluster_builtin(i));
 *   LS_TRY(ls_cluster_read("h100-dgx", &cluster));
 *   double peak = 64 * ls_cluster_facts_of(cluster).flops[LS_BF16];  // FLOP/s of 64 processors
 */
#ifndef LS_CLUSTER_H
#define LS_CLUSTER_H

#include <stddef.h>
#include "lockstep/dtype.h"
#include "lockstep/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_cluster ls_cluster;

/* Reads a machine file by its path, or a built-in one by its name; a path contains a '/' or a '.'. The caller owns *out. LS_EINVAL with
 * file and line, or with the built-in names; LS_EIO if the file cannot be read. */
ls_status ls_cluster_read(const char *name, ls_cluster **out);
void ls_cluster_release(ls_cluster **c); /* sets *c to NULL; NULL and pointer to NULL are no-ops */
const char *ls_cluster_builtin(int i);   /* the i-th built-in name, "h100-dgx"; NULL past the last */

/* What the file says. The strings belong to the cluster. A rank is one processor. */
typedef struct ls_cluster_facts {
    const char *name;         /* "NVIDIA DGX H100, 8 x NDR InfiniBand" */
    const char *processor;    /* "H100 SXM 80 GB" */
    int ranks_per_node;       /* processors of a node */
    double flops[LS_DTYPES];  /* peak FLOP/s of dense matmuls of a processor in that type; 0: unknown */
    double memory;            /* bytes of a processor that programs can have: without what its runtime takes */
    double bandwidth;         /* bytes/s of a processor's memory */
    double node_bandwidth;    /* bytes/s of a processor's links to others of its node, in one direction */
    double network_bandwidth; /* bytes/s of a processor's adapter to other nodes, in one direction */
    double host_memory;       /* bytes of a node's host to which ranks can offload; 0: unknown */
    double price;             /* of one processor for one hour; 0: unknown */
    const char *currency;     /* of the price, "USD"; "": unknown */
} ls_cluster_facts;
ls_cluster_facts ls_cluster_facts_of(const ls_cluster *c);

#ifdef __cplusplus
}
#endif
#endif
