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
 *   network: ...                  # between nodes, the same two
 *
 * network.all_reduce and network.all_gather, "2:362e9 8:99e9", are what rings over all processors of so many nodes reach together, in
 * bytes/s of bus bandwidth (all_gather: reduce_scatter, too), where that was measured; between two numbers of nodes on straight lines of
 * logarithms. A ring over some of the processors of a node has its share. Without them it is link_share of the adapters.
 * `bench machine` adds sections `kernels` and `collectives`: "matmul-f32: 1e6:2.1e-5 1e8:1.3e-3", pairs of size and seconds.
 * `nccl.generation` names the generation of NVIDIA's processors whose communication library is used (nccl_model.h); without it, collectives
 * are rings of the steps that link and latency say. What a plan of one step does not need may be left out: the level above the network
 * (`spine`), what offloads use of a processor's host (`offload`), `storage`, `failures` and `price`.
 * Numbers are in SI units: seconds, bytes, FLOP/s. cluster.c lists the keys and their bounds. An unknown key and an impossible value are
 * errors that name file and line, a missing key is one that names the file.
 */
#ifndef LS_PLAN_CLUSTER_H
#define LS_PLAN_CLUSTER_H

#include <stdbool.h>
#include "lockstep/dtype.h"
#include "lockstep/status.h"
#include "plan/nccl_model.h"

enum { CLUSTER_NAME = 128 };

/* One level of links. bandwidth: bytes/s of one processor in one direction; latency: seconds of a step of a collective. */
struct cluster_link {
    double bandwidth, latency;
};

/* What a processor can offload to. bandwidth: bytes/s of copies between its memory and its host's, in one direction; memory: bytes of a
 * node's host; read, write: bytes/s of a processor's part of the node's own disks. 0: not known. */
struct cluster_offload {
    double bandwidth, memory, read, write;
};

/* Why a job stops. PLANNED: on purpose, at the end of a step, after a checkpoint. */
enum failure_kind { FAILURE_PROCESSOR, FAILURE_NETWORK, FAILURE_HOST, FAILURE_SOFTWARE, FAILURE_PLANNED, FAILURES };
const char *failure_name(enum failure_kind kind);

/* Measured seconds by size: of a kernel its FLOPs, or its bytes if it has none; of a collective the bytes of its complete buffer. Of a
 * network bytes/s by nodes. Sizes ascend. */
enum { CURVES_MOST = 192, CURVE_POINTS = 12, CURVE_NAME = 40 };
struct cluster_curve {
    char name[CURVE_NAME]; /* "kernels.matmul-f32", "collectives.all_reduce-2": op and type of the first operand, op and ranks */
    int points;
    double size[CURVE_POINTS], seconds[CURVE_POINTS];
};

struct cluster {
    char name[CLUSTER_NAME], processor[CLUSTER_NAME];
    double flops[LS_DTYPES]; /* peak FLOP/s of dense matmuls of a processor; 0: not known */
    double memory, reserved; /* bytes of a processor, and those of them that the runtime takes */
    double group_buffers;    /* bytes that the communication library holds for each group that a rank is in */
    double bandwidth;        /* bytes/s of its memory */
    int units;               /* parts that compute a tile of a matmul each (streaming multiprocessors); 0: matmuls have no tiles */
    /* efficiencies, fitted per kind of processor (docs/planner.md) */
    double launch;       /* seconds that every kernel takes at least */
    double matmul;       /* share of the peak that large matmuls reach */
    double host;         /* seconds that the host of an eager framework takes to issue a kernel; --cases only */
    double eager;        /* how many times as long all but its matmuls take; 0: not known, as long; --cases only */
    double attention;    /* share of the peak that fused attention reaches over long sequences */
    double query;        /* keys: each query of fused attention takes as long as these, beyond the keys that it attends to */
    double attention_2;  /* how many times as long FlashAttention-2 takes, whose queries take nothing more; 0: not known; --cases only */
    double memory_bound; /* share of the bandwidth that elementwise kernels reach */
    double link_share;   /* share of a link's bandwidth that collectives reach */
    int processors;      /* of a node */
    struct cluster_link node, network;
    int pod;                   /* nodes that the network connects at its full bandwidth; 0: all */
    struct cluster_link spine; /* between pods; bandwidth: a processor's share if all send at once */
    int paths;                 /* equal-cost paths out of a pod for each adapter's place in a node, one of which is drawn for each
                                  connection; 0: traffic is spread over all */
    struct cluster_offload offload;
    enum nccl_generation nccl;      /* of the communication library's cost model (nccl_model.h); NCCL_NONE: rings of the steps above */
    int channels;                   /* of the units, those that a collective takes while it runs; 0: none */
    double nvls;                    /* bytes/s that a processor sends while the switches of its node add; 0: they do not */
    double read, write, shared;     /* bytes/s of a node's storage, and of all nodes together; 0: not known, not limited */
    double failures[FAILURES];      /* per processor and hour */
    double detect, restart, repair; /* seconds until a failure is noticed; from then to the first step, but for reading the checkpoint;
                                       until a node is back */
    double price;                   /* of a processor for an hour; 0: not known */
    char currency[CLUSTER_NAME];
    bool serial; /* a collective takes the processor: no kernel runs beside it */
    int curves;  /* as `bench machine` measures them; where there is one, nothing above is used for it */
    struct cluster_curve curve[CURVES_MOST];
    /* of published runs, not of the machine's file */
    bool scores_written;   /* attention writes its scores to memory, as before FlashAttention */
    double logit_bytes[2]; /* moved for each logit in a forward and in a backward, where the loss is not fused with the head */
    double low_precision;  /* the peak of matmuls in fp8 or fp4 / that of bf16; 0: matmuls are in bf16 */
    double cast_bytes;     /* moved for each element that is brought to that precision */
    bool chunks_tp;     /* collectives over tp are divided into a chunk for each rank; all but the first run beside the matmul they feed or
                           follow */
    bool routes_shards; /* with sp each rank sends experts the rows of its own tokens; what comes is gathered over tp, as in Megatron */
    int token_experts;  /* of a token, of whose rows every node is sent one, which its ranks hand on; 0: every row is sent */
    int token_nodes;    /* that a token's experts are in at most; 0: any */
    bool experts_apart; /* the matmuls of a rank's experts are a kernel each */
    int gathers;        /* all-gathers over dp that replace each one of a block, because every parameter has its own; 0: one */
    int tp_issues;      /* kernels that the host issues for every rank of a block's collective over tp; 0: one for all */
};

/* Reads a machine file, or one of those that are built in, by its name ("a100-80-selene"). LS_EINVAL with "file:line: " and what would be
 * right, or with the names that there are. */
ls_status cluster_read(const char *name, struct cluster *out);
/* The curve of that name, or NULL. */
const struct cluster_curve *cluster_find_curve(const struct cluster *c, const char *name);
/* On straight lines between the points, in logarithms; below the first as at the first, beyond the last in proportion to the size. */
double cluster_curve_at(const struct cluster_curve *x, double size);
/* Name i of the machines that are built in; NULL past the last one. */
const char *cluster_builtin(int i);

#endif
