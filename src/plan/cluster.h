/* cluster.h - the machine that a step is planned for: processors of one kind in equal nodes, connected by a network. A machine file
 * (machines/NAME.yaml) describes it; it does not have to be this machine.
 *
 *   machine:
 *     name: NVIDIA DGX A100 80 GB, 8 x HDR InfiniBand
 *   processor:
 *     name: A100 SXM 80 GB
 *     bf16: 312e12                # peak FLOP/s of dense matmuls, by type
 *     memory: 80 GiB
 *     bandwidth: 2.039e12         # bytes/s of its memory
 *   node:
 *     processors: 8
 *     bandwidth: 300e9            # bytes/s of a processor's links in one direction
 *     latency: 2e-6               # seconds per step of a collective
 *   network: ...                  # between nodes: bandwidth and latency
 *
 * network.all_reduce and network.all_gather, "2:362e9 8:99e9", are measured bus bandwidths in bytes/s of rings over all processors of that
 * many nodes (all_gather also for reduce_scatter), interpolated linearly in logarithms between two numbers of nodes. A ring over some of a
 * node's processors gets its share of that. Without them a ring reaches link_share of the adapters' bandwidth. `bench machine` adds
 * sections `kernels` and `collectives`: "matmul-f32: 1e6:2.1e-5 1e8:1.3e-3", pairs of size and seconds. `nccl.generation` names the
 * generation of NVIDIA's processors whose communication library is used (nccl_model.h); without it, collectives are rings whose steps take
 * what bandwidth and latency say. Sections that the plan of a step does not need may be left out: the level above the network (`spine`),
 * offloading to a processor's host (`offload`), `storage`, `failures` and `price`. Numbers are in SI units: seconds, bytes, FLOP/s.
 * cluster.c lists the keys and their bounds. The error for an unknown key or an impossible value names file and line; the error for a
 * missing key names the file.
 */
#ifndef LS_PLAN_CLUSTER_H
#define LS_PLAN_CLUSTER_H

#include <stdbool.h>
#include "lockstep/cluster.h"
#include "lockstep/dtype.h"
#include "lockstep/status.h"
#include "plan/nccl_model.h"

enum { CLUSTER_NAME = 128 };

/* One level of links. bandwidth: bytes/s of one processor in one direction; latency: seconds of a step of a collective. */
struct cluster_link {
    double bandwidth, latency;
};

/* The host memory and disks that a processor can offload to. bandwidth: bytes/s of copies between its memory and its host's, in one
 * direction; memory: bytes of a node's host; read, write: bytes/s of a processor's part of the node's own disks. 0: not known. */
struct cluster_offload {
    double bandwidth, memory, read, write;
};

/* Why a job stops. PLANNED: on purpose, at the end of a step, after a checkpoint. */
enum failure_kind { FAILURE_PROCESSOR, FAILURE_NETWORK, FAILURE_HOST, FAILURE_SOFTWARE, FAILURE_PLANNED, FAILURES };
const char *failure_name(enum failure_kind kind);

/* Measured seconds by size. The size of a kernel is its FLOPs, or its bytes if it has none; that of a collective the bytes of its complete
 * buffer. A curve of the network has bytes/s by number of nodes. Sizes ascend. */
enum { CURVES_MOST = 192, CURVE_POINTS = 12, CURVE_NAME = 40 };
struct cluster_curve {
    char name[CURVE_NAME]; /* "kernels.matmul-f32", "collectives.all_reduce-2": op and type of the first operand, op and ranks */
    int points;
    double size[CURVE_POINTS], seconds[CURVE_POINTS];
};

struct cluster {
    char name[CLUSTER_NAME], processor[CLUSTER_NAME];
    double flops[LS_DTYPES]; /* peak FLOP/s of dense matmuls of a processor; 0: not known */
    double memory, reserved; /* bytes of a processor's memory, and how many of them the runtime takes */
    double group_buffers;    /* bytes that the communication library holds for each group that a rank is in */
    double bandwidth;        /* bytes/s of a processor's memory */
    int units; /* units of a processor that each compute one tile of a matmul (streaming multiprocessors); 0: matmuls have no tiles */
    /* efficiencies, fitted per kind of processor (docs/planner.md) */
    double launch;       /* least seconds of any kernel */
    double matmul;       /* share of the peak that large matmuls reach */
    double host;         /* seconds that the host of an eager framework takes to issue a kernel; --cases only */
    double eager;        /* factor on the time of an eager framework's kernels; 0: unknown, taken as 1; --cases only */
    double attention;    /* share of the peak that fused attention reaches over long sequences */
    double query;        /* fixed cost of each query of fused attention, in keys: added to the number of keys that it attends to */
    double attention_2;  /* factor on attention's time with FlashAttention-2, whose queries have no such cost; 0: unknown; --cases only */
    double memory_bound; /* share of the bandwidth that elementwise kernels reach */
    double link_share;   /* share of a link's bandwidth that collectives reach */
    int processors;      /* processors per node */
    struct cluster_link node, network;
    int pod;                   /* nodes that the network connects at its full bandwidth; 0: all */
    struct cluster_link spine; /* between pods; bandwidth: a processor's share if all send at once */
    int paths;                 /* equal-cost paths out of a pod for each adapter's place in a node, one of which is drawn for each
                                  connection; 0: traffic is spread over all */
    struct cluster_offload offload;
    enum nccl_generation
        nccl;     /* generation in the communication library's cost model (nccl_model.h); NCCL_NONE: rings of the steps above */
    int channels; /* units that a collective occupies while it runs; 0: none */
    double nvls;  /* bytes/s that a processor sends while its node's switches do the sums (NVLink SHARP); 0: they cannot */
    double read, write, shared;     /* bytes/s of a node's storage, and of all nodes together; 0: not known, not limited */
    double failures[FAILURES];      /* per processor and hour */
    double detect, restart, repair; /* seconds until a failure is noticed; from then to the first step, without reading the checkpoint;
                                       until a node is back */
    double price;                   /* price per processor and hour; 0: not known */
    char currency[CLUSTER_NAME];
    bool serial; /* a collective occupies the whole processor: no kernel overlaps with it */
    int curves;  /* curves as `bench machine` measures them; an operation with a curve uses nothing of the above */
    struct cluster_curve curve[CURVES_MOST];
    /* properties of published runs, which are not in machine files */
    bool scores_written;   /* attention writes its scores to memory, as before FlashAttention */
    double logit_bytes[2]; /* bytes moved per logit in the forward and in the backward if the loss is not fused with the head */
    double low_precision;  /* the peak of matmuls in fp8 or fp4 / that of bf16; 0: matmuls are in bf16 */
    double cast_bytes;     /* bytes moved per element that is cast to that precision */
    bool chunks_tp; /* collectives over tp are divided into a chunk for each rank; all but the first overlap with the matmul that they feed
                       or follow */
    bool routes_shards; /* with sp each rank sends the rows of its own tokens to experts; received rows are gathered over tp, as in Megatron
                         */
    int whole_experts;  /* neighboring ranks, those of tp first, over which the experts are distributed, each whole on its rank; 0: over ep,
                           and each sharded over tp */
    int token_experts;  /* experts of a token, if each node receives one copy of its row, which its ranks forward; 0: a row per expert is
                           sent */
    int token_nodes;    /* most nodes that a token's experts are on; 0: no limit */
    bool experts_apart; /* each expert's matmul is a kernel of its own */
    int gathers;        /* all-gathers over dp per block, if every parameter has its own; 0: one */
    int tp_issues;      /* kernels that the host issues per rank for a block's collective over tp; 0: one for all ranks */
};

/* The public handle (lockstep/cluster.h). */
struct ls_cluster {
    struct cluster cluster;
};

/* Reads a machine file, or a built-in one by its name ("a100-80-selene"). LS_EINVAL with "file:line: " and what is expected, or with the
 * names of the built-in ones. */
ls_status cluster_read(const char *name, struct cluster *out);
/* The same for steps of lockstep: `host` is 0, since kernels are issued as graphs, or the host runs ahead. */
ls_status cluster_read_own(const char *name, struct cluster *out);
/* The curve of that name, or NULL. */
const struct cluster_curve *cluster_find_curve(const struct cluster *c, const char *name);
/* Interpolates linearly between the points, in logarithms; below the first point the value is the first's, beyond the last it grows in
 * proportion to the size. */
double cluster_curve_at(const struct cluster_curve *x, double size);
/* The i-th built-in machine's name; NULL past the last one. */
const char *cluster_builtin(int i);

#endif
