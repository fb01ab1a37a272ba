/* layout.h - how a training step is distributed over ranks: one plain struct, and the one function that checks whether a model can be
 * trained under it.
 *
 * The commands make a layout from their options; messages name fields by those options, which are given beside each field. A field without
 * effect under the others (vpp if pp is 1) is ignored.
 *
 * A layout is for programs that train a whole model, and for searches over layouts. The calls that build a step (ls_mesh_open,
 * ls_partition, ls_data_parallel, ls_pipeline_open, ls_program_compile, ls_store_new) take options of their own, so that a program can
 * use one of them without a layout; ls_layout_mesh() and the functions beside it fill those options in. Each of these calls checks its
 * part of the rules again, by the same functions. Why a layout is rejected is the thread's message, ls_errmsg(), as for all functions, so
 * ls_layout_check() has no argument for it.
 *
 *   ls_layout l = ls_layout_default();                       // one rank
 *   l.tp = 2, l.pp = 4, l.micro_batches = 8;
 *   LS_TRY(ls_layout_check(&model, &l));                     // LS_EINVAL: "model.layers=3 in parallel.pp=4 ..."
 *   ls_mesh_shape shape = ls_layout_mesh(&l);
 *   LS_TRY(ls_mesh_open(world, &shape, &mesh));              // a world of ls_layout_ranks(&l) ranks
 */
#ifndef LS_LAYOUT_H
#define LS_LAYOUT_H

#include "lockstep/optim.h"
#include "lockstep/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The order of the fields leaves no padding, so that a test can tell whether it covers all of them. */
typedef struct ls_layout {
    /* ranks: pp * dp * cp * tp, at most LS_MESH_RANKS_MOST; each 1 or more */
    int pp;  /* parallel.pp: pipeline stages */
    int vpp; /* parallel.vpp: chunks of a rank, where pp > 1 */
    int dp;  /* parallel.dp: data-parallel ranks, each with other samples */
    int cp;  /* parallel.cp: context-parallel ranks, each with other tokens of the same samples */
    int tp;  /* parallel.tp: tensor-parallel ranks, each with other heads, MLP columns and vocabulary rows */
    int ep;  /* parallel.ep: expert-parallel ranks, each with other experts; divides dp / replicate * cp */
    /* sizes of a step */
    int micro_batch;   /* train.micro_batch: samples per rank and micro-batch */
    int micro_batches; /* train.accumulate: micro-batches per rank and step */
    int seq_len;       /* data.seq_len: tokens per sample, of a transformer */
    /* what the ranks do */
    int zero;                   /* parallel.zero: 0 to 3, see parallel.h */
    int replicate;              /* parallel.replicate: copies of every shard; 1 with zero 0 */
    ls_method method;           /* parallel.method */
    int async_turns;            /* parallel.async_turns, method ASYNC: 1: rank 0 takes gradients in the order of ranks */
    int sp;                     /* parallel.sp: 1: norms, dropout and residual stream sharded along the sequence over tp */
    ls_cp_method cp_method;     /* parallel.cp_method */
    int tp_chunks;              /* parallel.tp_chunks: row chunks of a matmul whose output is summed over tp, 1 to 16 */
    int overlap;                /* parallel.overlap: 1: communicate while computing; 0: wait at once */
    int fsdp_unit;              /* parallel.fsdp_unit, zero 3: layers whose parameters are gathered together; 0: all parameters */
    int prefetch;               /* parallel.prefetch, zero 3 with overlap: units gathered ahead of the one in use, up to
                                 * LS_PREFETCH_MOST */
    int reshard_after_forward;  /* parallel.reshard_after_forward, zero 3: 1: parameters are gathered again for the backward */
    int unsharded_accumulation; /* parallel.unsharded_accumulation, zero 2 and 3: 1: one reduction a step */
    int sync_batch_norm;        /* parallel.sync_batch_norm: 1: statistics of all ranks */
    double receive_factor;      /* parallel.receive_factor: room for rows that arrive for a rank's experts in training, in multiples of an
                                 * even load, at least 1; 0: for as many as can arrive */
    size_t bucket_bytes;        /* parallel.bucket, zero 0 to 2: bytes of gradients that are reduced together */
    size_t first_bucket_bytes;  /* parallel.first_bucket: the size of the bucket that is ready first */
    const char *schedule;       /* parallel.schedule, where pp > 1: a name of pipeline.h, "file:PATH", or "auto" (NULL): 1f1b,
                                 * or interleaved where vpp > 1. Borrowed, as are the texts below */
    const char *stages;         /* parallel.stages: layers of each of the pp * vpp stages, "3,4,4,1"; "" (NULL): balanced by work */
    /* memory and types */
    ls_recompute recompute;        /* recompute.mode */
    int every;                     /* K for every:K */
    size_t budget;                 /* memory budget in bytes for budget:SIZE */
    ls_dtype compute;              /* precision.compute: floating type of parameters and arithmetic */
    int master;                    /* precision.master: 1: f32 master weights for half types */
    ls_dtype grads;                /* precision.grads: type in which gradients are kept, f32, or bf16 with compute bf16 */
    ls_dtype reduce;               /* precision.reduce: type of f32 gradients in communication, f32 or bf16 */
    ls_offload offload;            /* optim.offload: where optimizer state is kept between steps */
    ls_offload offload_parameters; /* parallel.offload_parameters: where parameters and gradients are kept while no unit needs them */
    ls_optimizer_kind optimizer;   /* optim.name: the kind of the ls_optimizer that updates; some do not update in backward */
    int in_backward;               /* optim.in_backward: 1: as that optimizer's in_backward */
    const char *offload_path;      /* run.dir: the folder for LS_OFFLOAD_FILE */
} ls_layout;

/* One rank, one micro-batch of one sample of one token; the rest as the options' defaults, f32. */
ls_layout ls_layout_default(void);
int64_t ls_layout_ranks(const ls_layout *l); /* INT64_MAX if the product is larger */

/* LS_OK if every rank's programs of this model compile under this layout, except that it computes no sizes in bytes, which only compiling
 * can. So it does not say whether recompute mode budget:SIZE can be met (if not, compiling fails with LS_EINVAL and the bytes that the
 * program needs), nor whether the step fits into memory. Otherwise LS_EINVAL, and the message says which fields do not fit and what
 * would. m NULL: a model that is not a transformer, for which only dp may be more than 1. What such a model consists of is not known here:
 * if it has batch norms, which parallel.method=async does not support, compiling fails with LS_EINVAL. Reads no file except that of
 * schedule "file:PATH". */
ls_status ls_layout_check(const ls_model *m, const ls_layout *l);

/* Writes "pp 2 (1f1b) x dp 2 (zero 1) x tp 2 (sp), optimizer state in host memory" into out and returns it. Any layout has room in
 * LS_LAYOUT_TEXT bytes; a schedule's path is cut off. */
enum { LS_LAYOUT_TEXT = 224 };
char *ls_layout_text(const ls_layout *l, char *out, size_t room);

/* The options of other calls, taken from the layout. */
ls_mesh_shape ls_layout_mesh(const ls_layout *l);
ls_partition_options ls_layout_partition(const ls_layout *l); /* with the whole model as its stage */
ls_data_parallel_options ls_layout_data_parallel(const ls_layout *l);
ls_compile_options ls_layout_compile(const ls_layout *l); /* recomputation */
ls_store_options ls_layout_store(const ls_layout *l);     /* types */
/* The schedule of a pipeline; free with ls_pipeline_schedule_free. */
ls_status ls_layout_schedule(const ls_layout *l, ls_pipeline_schedule *out);
/* First layers of the stages, begin[pp * vpp + 1]; *given is 0 and begin is not written if stages are balanced by work. */
ls_status ls_layout_stages(const ls_layout *l, size_t layers, int *begin, int *given);

#ifdef __cplusplus
}
#endif
#endif
