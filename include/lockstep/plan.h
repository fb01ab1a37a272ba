/* plan.h - plans training steps for ranks that need not exist: how long a step of a model takes under a layout on a cluster and what a
 * rank holds, and under which layouts it takes the least time.
 *
 * A plan compiles the programs that ranks would run, without allocating what they compute with, and adds up the seconds of their
 * instructions on the cluster; the schedule of a pipeline is simulated. The numbers are those of `lockstep plan --machine NAME`;
 * docs/planner.md has the model and how far it is from published runs. The layout says what `lockstep plan` takes from options: all sizes
 * of the step, the sequence length, types, recomputation and the kind of optimizer. compute is LS_F32 unless it is set; the command
 * chooses LS_BF16 where the cluster has it. Models are transformers (ls_model).
 *
 *   ls_layout l = ls_layout_default();
 *   ls_plan plan;
 *   l.dp = 8, l.tp = 2, l.zero = 1, l.seq_len = 4096, l.compute = LS_BF16;
 *   LS_TRY(ls_plan_layout(model, &l, cluster, NULL, &plan));
 *   printf("%g s a step, MFU %.3f, %zu bytes\n", plan.seconds.step, plan.mfu, plan.bytes.total);
 *
 *   ls_plan_space space = { .ranks = 16, .base = l, .fixed = LS_PLAN_FIX_TP };     // 16 ranks, tp stays 2
 *   ls_plan_options options = { .global_batch = 64 };
 *   ls_plan_fastest fastest;
 *   LS_TRY(ls_plan_search(model, &space, cluster, &options, &fastest));
 *   LS_TRY(ls_plan_layout(model, &fastest.found[0].layout, cluster, &options, &plan));
 *
 * The computer that plans does not matter, unless the cluster's processors are cpus: then the kernels are those of this process's
 * instruction set. With cluster NULL only bytes are planned, for ranks like this process, whose number of threads and instruction set
 * determine their scratch memory. A call changes nothing of the process, so several threads may plan at a time; each call uses all cores.
 * Arguments are borrowed for the call.
 */
#ifndef LS_PLAN_H
#define LS_PLAN_H

#include "lockstep/cluster.h"
#include "lockstep/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a plan depends on besides model, layout and cluster; all zero, or NULL for the struct, are the defaults. */
typedef struct ls_plan_options {
    const ls_optimizer *optimizer; /* its kind and in_backward are those of the layout; NULL: LS_OPTIMIZER_DEFAULTS, without clipping if it
                                    * updates in backward */
    size_t global_batch; /* samples of a step over all ranks: micro_batch * micro_batches * dp (dp - 1 with method async), or up to
                          * micro_batch * dp - 1 fewer; 0: that product */
    int evaluates;       /* 1: ranks also hold the programs that evaluate the model, as `train` does with validation data */
    size_t memory_limit; /* bytes that a rank may hold; 0: the cluster's, or without a cluster unlimited */
} ls_plan_options;

/* What a rank waits for: communication by mesh axis (ls_axis), and loads and saves of what is offloaded. */
enum { LS_PLAN_OFFLOAD = LS_AXES, LS_PLAN_WAITS };

/* Seconds of a step. Kernels, optimizer, exposed and bubble add up to `step`; they are those of the pipeline stage that is busy longest.
 * All zero without a cluster. */
typedef struct ls_plan_seconds {
    double step;
    double matmul, attention, memory_bound; /* kernels of forward and backward, by their kind */
    double optimizer;                       /* kernels of the update */
    double exposed[LS_PLAN_WAITS];          /* waits that no kernel overlaps, by ls_axis or LS_PLAN_OFFLOAD */
    double bubble;                          /* waits for other pipeline stages, and messages between them */
    double recomputed;                      /* part of the kernels: forward instructions repeated for the backward */
    double hidden[LS_PLAN_WAITS];           /* communication and copies that kernels overlap; not part of the step */
} ls_plan_seconds;

/* Bytes of the rank that holds the most. */
typedef struct ls_plan_bytes {
    int rank;                                             /* its number; the lowest of several */
    size_t parameters, gradients, optimizer, activations; /* as in ls_cost */
    size_t communication, offload;                        /* offload: in a host memory that is also the rank's own */
    size_t total;                                         /* the sum of those six */
    size_t other;         /* the most that samples, tables, the programs themselves and checkpoints take in addition, on any rank */
    size_t host, file;    /* what is offloaded to a host memory of its own, and to files */
    size_t group_buffers; /* what the cluster's communication library holds for the rank's groups */
    size_t limit;         /* what the rank may hold; 0: unlimited */
    int fits;             /* the sum of total, other and group_buffers is within the limit, and host within the rank's share of the host */
} ls_plan_bytes;

typedef struct ls_plan {
    ls_plan_seconds seconds;
    ls_plan_bytes bytes;
    double tokens;                /* tokens of a step */
    double tokens_per_second;     /* of all ranks; 0 without a cluster, as the next three */
    double mfu, hfu;              /* share of the ranks' peak that model_flops, executed_flops are per second; 0: peak unknown */
    double price_of_million;      /* of a million tokens, in the cluster's currency; 0: unknown */
    double model_flops;           /* FLOPs of a step on all ranks that the model needs */
    double executed_flops;        /* the same with recomputation and padding */
    size_t sent[LS_COLLECTIVES];  /* bytes that the rank of `bytes` sends in a step, by kind of collective */
    size_t calls[LS_COLLECTIVES]; /* how many of them it issues */
} ls_plan;

/* The plan of a layout. A layout that does not fit is LS_OK with fits 0. LS_EINVAL with what is wrong, in the words of the command's
 * options as everywhere: an invalid model or layout (ls_layout_check); a budget of recomputation that cannot be met; another number of
 * samples than the layout has; with a cluster, a method other than LS_METHOD_ALLREDUCE, or offloading to what the machine file does not
 * describe. LS_ENOMEM if this process is out of memory. *out is written on success only. */
ls_status ls_plan_layout(const ls_model *m, const ls_layout *l, const ls_cluster *c, const ls_plan_options *o, ls_plan *out);

/* ---- search ---- */

/* What a search keeps from its base. Fields that have no bit are always kept, except micro_batches, which follows. A kept choice without
 * effect is dropped: zero and replicate without ranks to shard over, vpp and schedule with pp 1, sp with tp 1. */
enum {
    LS_PLAN_FIX_DP = 1 << 0,
    LS_PLAN_FIX_TP = 1 << 1,
    LS_PLAN_FIX_CP = 1 << 2,
    LS_PLAN_FIX_PP = 1 << 3,
    LS_PLAN_FIX_EP = 1 << 4,
    LS_PLAN_FIX_VPP = 1 << 5,
    LS_PLAN_FIX_SCHEDULE = 1 << 6,
    LS_PLAN_FIX_ZERO = 1 << 7,
    LS_PLAN_FIX_REPLICATE = 1 << 8,
    LS_PLAN_FIX_SP = 1 << 9,
    LS_PLAN_FIX_CP_METHOD = 1 << 10,
    LS_PLAN_FIX_MICRO_BATCH = 1 << 11,
    LS_PLAN_FIX_RECOMPUTE = 1 << 12, /* recompute, every, budget */
    LS_PLAN_FIX_OFFLOAD = 1 << 13,   /* offload, offload_parameters */
    LS_PLAN_FIX_ALL = (1 << 14) - 1
};
enum { LS_PLAN_SAMPLES_MOST = 1 << 24 };

typedef struct ls_plan_space {
    int ranks;      /* of every layout, 1 to LS_MESH_RANKS_MOST */
    unsigned fixed; /* LS_PLAN_FIX_... */
    ls_layout base; /* choices that are not fixed need not be valid together */
} ls_plan_space;

/* A compiled layout has the seconds and the total bytes of its ls_plan_layout(), except that ls_plan_layout()
 * plans every rank of up to 32 and may find one whose shards are a little larger. Seconds of another are wrong by up to about 2%. */
typedef struct ls_plan_found {
    ls_layout layout; /* its strings are static or those of the base */
    int compiled;     /* 1: its own programs were compiled; 0: put together from parts of other layouts' programs */
    double seconds;   /* of a step */
    double bytes;     /* of the rank that holds the most */
} ls_plan_found;

/* The fastest layouts that fit, the fastest first and the compiled ones before the others. No layout that was left out is faster than the
 * first, unless its estimate is wrong by more than 2% (5% with offloaded parameters). */
enum { LS_PLAN_FOUND = 16 };
typedef struct ls_plan_fastest {
    ls_plan_found found[LS_PLAN_FOUND];
    int count;    /* of found, 1 or more */
    int compiled; /* how many of them are compiled */
    /* Layouts that were looked at; of these, those that could be among the fastest and were priced; of these, those that fit. */
    int64_t checked, priced, fit;
} ls_plan_fastest;

/* Searches all divisors of the ranks as tp, cp, pp, ep and dp, ZeRO stages and copies, sequence parallelism, both cp methods,
 * micro-batches, recomputation (none, selective, full) and schedules, and, if nothing else fits and the cluster has hosts, offloading; the
 * same layouts as `lockstep plan --search`. o->global_batch must be set, to LS_PLAN_SAMPLES_MOST at most. LS_ENOMEM with the layout that
 * needs the least if none fits; LS_EINVAL if none is valid with what is fixed, or the base has what a search cannot price: fsdp_unit other
 * than 1, prefetch above 1, in_backward, stages, or a schedule from a file. *out is written on success only. */
ls_status ls_plan_search(const ls_model *m, const ls_plan_space *space, const ls_cluster *c, const ls_plan_options *o,
                         ls_plan_fastest *out);

#ifdef __cplusplus
}
#endif
#endif
