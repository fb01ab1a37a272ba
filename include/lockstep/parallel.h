/* parallel.h - distributes a program over the ranks of a mesh: two calls mark the program, and each becomes a pass when it is compiled.
 *
 * ls_partition() shards the model (tensor, sequence, context, expert parallelism): the dims of a model's weights give parameters their
 * placements, a table of rules propagates placements through every op of the forward, and a redistribution is inserted wherever an op needs
 * another placement. Values get this rank's local sizes; the code that built the model is not aware of it.
 *
 * ls_data_parallel() distributes a program over the ranks of a comm. Each rank runs the same program on its own samples; after the last
 * micro-batch every gradient is the sum over all ranks (the loss divides by the global count, so a sum is the whole batch's gradient: no
 * mean of means). What is sharded:
 *
 *     zero   parameters   gradients    optimizer     collectives of a step
 *      0     replicated   replicated   replicated    all-reduce of gradients                               (DDP)
 *      1     replicated   replicated   sharded       reduce-scatter of gradients, all-gather of parameters
 *      2     replicated   sharded      sharded       the same, a bucket's gradient freed once it is reduced
 *      3     sharded      sharded      sharded       all-gather of a unit forward and backward, reduce-scatter  (FSDP)
 *
 * What is sharded is a flat buffer of several parameters one after another, a bucket (zero 0-2) or a unit (3: a block of the model, and
 * what precedes and follows the blocks); rank r of n holds elements [count*r/n, count*(r+1)/n) of it, so a parameter of any size can be
 * sharded over any number of ranks. Hybrid (HSDP): parameters are sharded over groups of n / replicate ranks, and gradients are then
 * all-reduced across the replicas.
 *
 *   LS_TRY(ls_data_parallel(program, comm, &(ls_data_parallel_options)LS_DATA_PARALLEL_DEFAULTS));
 *   LS_TRY(ls_program_compile(program, &options));
 *   for (k = 0; k < K; k++)
 *       LS_TRY(ls_program_run(program, LS_FORWARD | LS_BACKWARD | (k == K - 1 ? LS_LAST : 0)));
 *   LS_TRY(ls_program_run(program, LS_OPTIMIZER_STEP));
 */
#ifndef LS_PARALLEL_H
#define LS_PARALLEL_H

#include "lockstep/comm.h"
#include "lockstep/mesh.h"
#include "lockstep/nn.h"
#include "lockstep/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How gradients become an update. ALLREDUCE is the ordinary way, with `zero`. The others are counterexamples that show by measurement why
 * it is the ordinary one; rank 0 of the comm has the authoritative copy of the parameters and the optimizer state. They require zero 0,
 * replicate 1 and no axis other than dp.
 *     DATAPARALLEL  one process owns the model: in every micro-batch rank 0 sends the parameters to all ranks, which keep them for that
 *                   micro-batch only, and adds up their gradients; nothing overlaps
 *     SERVER        a synchronous parameter server: after the last micro-batch rank 0 adds up the gradients, updates, and sends the
 *                   parameters to all ranks
 *     ASYNC         an asynchronous one: the program communicates nothing, so each rank has its own statistics over samples; the caller
 *                   sends the gradients of a rank to rank 0, which alone runs the optimizer, and fetches the parameters. This is not the
 *                   step of a single rank
 */
typedef enum ls_method { LS_METHOD_ALLREDUCE, LS_METHOD_DATAPARALLEL, LS_METHOD_SERVER, LS_METHOD_ASYNC, LS_METHODS } ls_method;
typedef enum ls_offload { LS_OFFLOAD_NONE, LS_OFFLOAD_CPU, LS_OFFLOAD_FILE } ls_offload;

typedef struct ls_data_parallel_options {
    int zero;                   /* 0 .. 3 */
    int replicate;              /* replicas of every shard; divides the comm's size; 1: shard over all ranks */
    size_t bucket_bytes;        /* size of a gradient bucket, zero 0 .. 2; counted in f32 */
    size_t first_bucket_bytes;  /* size of the bucket that is ready first */
    ls_dtype reduce;            /* type of f32 gradients in communication: f32 or bf16 */
    int overlap;                /* start early, wait late; zero 1, 2: parameters are gathered during the next forward; 0: wait at once */
    int fsdp_unit;              /* zero 3: layers whose parameters are gathered and freed together; 0: all parameters at once */
    int prefetch;               /* zero 3 with overlap: units whose gather may start ahead of the one in use */
    int reshard_after_forward;  /* zero 3: a unit is freed after its forward and gathered again for its backward; 0: it is kept */
    int unsharded_accumulation; /* zero 2, 3: unsharded gradients until LS_LAST; one reduction per step instead of one per micro-batch */
    int sync_batch_norm;        /* batch norms use the statistics of all ranks */
    ls_offload offload;         /* where optimizer state is kept between steps */
    const char *offload_path;   /* LS_OFFLOAD_FILE: folder for an unnamed file, made if missing */
    ls_method method;
    /* Where parameters are kept except while a unit (fsdp_unit) is in use, and gradients except while they are added to or read. Loads run
     * `prefetch` units ahead with overlap. Ranks with different samples need zero 3. */
    ls_offload offload_parameters;
} ls_data_parallel_options;
#define LS_DATA_PARALLEL_DEFAULTS                                                                                        \
    {                                                                                                                    \
        0, 1, 25u << 20, 1u << 20, LS_F32, 1, 1, 1, 1, 0, 1, LS_OFFLOAD_NONE, NULL, LS_METHOD_ALLREDUCE, LS_OFFLOAD_NONE \
    }
enum { LS_PREFETCH_MOST = 1000 };

/* Before ls_program_compile(), after ls_optimizer_append(). The comm is borrowed until program and store are released, and
 * is the program's alone while it runs; NULL: one rank, for which only `offload` and `offload_parameters` have an effect. All programs of
 * one store must use the same options, and the one that trains is compiled first. Frozen parameters and buffers stay replicated.
 * Collective. */
ls_status ls_data_parallel(ls_program *p, ls_comm *comm, const ls_data_parallel_options *options);

/* The same over the groups of a mesh: parameters outside of experts over DATA, experts over EXPERT_DATA. Gradients that are partial sums
 * over tp, or that two stages share (tied weights), are summed over those too; the norm counts each element once. A program without a
 * backward may run the optimizer on gradients that other programs of the store have reduced (pipelines); it is compiled last. Slots
 * require reshard_after_forward. `replicate` is the mesh's. */
ls_status ls_data_parallel_mesh(ls_program *p, const ls_mesh *mesh, const ls_data_parallel_options *options);

typedef enum ls_cp_method { LS_CP_RING, LS_CP_ALL_TO_ALL } ls_cp_method;
typedef struct ls_partition_options {
    int sp;                 /* shard norms, dropout and residual along the sequence over tp */
    ls_cp_method cp_method; /* attention over cp: pass keys and values around a ring (zigzag), or exchange heads for tokens */
    int overlap;            /* 1: communication overlaps independent compute; 0: wait at once */
    int tp_chunks;  /* with overlap, n >= 2: split row-parallel matmuls into n row chunks; the all-reduce of each overlaps the next */
    ls_stage stage; /* pipeline stage; stages 0 or 1: the whole model */
    double receive_factor; /* room for routed rows that arrive at a rank of ep, in multiples of an even load, in programs with a backward; a
                            * run into which more arrive fails with LS_ENOMEM; 0: room for as many as can arrive */
} ls_partition_options;
#define LS_PARTITION_DEFAULTS                    \
    {                                            \
        0, LS_CP_RING, 1, 1, { 0, 1, 0, 0 }, 0.0 \
    }

/* Before ls_program_compile() and ls_data_parallel_mesh(), after the model. m: the model that was appended (copied). Inputs keep their
 * batch dim; over cp their sequence dim is this rank's shard, see ls_cp_ranges(). LS_EINVAL with the numbers if the model can't be
 * sharded so. The mesh is borrowed until program and store are released. */
ls_status ls_partition(ls_program *p, const ls_mesh *mesh, const ls_model *m, const ls_partition_options *options);
/* Writes the ranges [begin[i], end[i]) of a sequence of t tokens that this rank has over cp, in order, and returns how many: 2 with
 * LS_CP_RING over more than one rank (zigzag), else 1. */
int ls_cp_ranges(const ls_mesh *mesh, ls_cp_method method, size_t t, size_t begin[2], size_t end[2]);

#ifdef __cplusplus
}
#endif
#endif
