/* program.h - a training step as a list of instructions, compiled before it runs.
 *
 * A program is a list of instructions over typed values. Ops (ops.h) append to it with shapes checked;
 * ls_program_compile() runs the passes over it - gradient, recompute, memory - and binds kernels; then it can be run any number of times: a
 * run walks the list, calls kernels and allocates nothing.
 *   1. A value's bytes exist from its first writer to its last reader, in one arena that the memory pass laid out.
 *      Inputs, outputs and bound tensors last as long as the program.
 *   2. Parameters, gradients and optimizer state belong to the store and outlive the program.
 *   3. Errors are sticky: an op that fails sets the program's status and returns the null value (id 0), and an op on a null value returns
 *      null; ls_program_compile returns the first failure.
 *   4. One thread per program. Programs that share a store must not run at the same time.
 *   5. On several ranks an update may return while its parameters are still gathered (zero 1 and 2 with overlap: parallel.h). The next
 *      forward waits where it reads them; other programs and the functions of store.h wait first. Data of an ls_tensor that
 *      ls_store_value() returned before the update may not be touched without calling it again.
 *
 *   ls_value x = ls_input(p, "x", LS_F32, 2, (size_t[]){ 64, 2 }), y = ls_input(p, "y", LS_F32, 2, (size_t[]){ 64, 1 });
 *   ls_value loss = ls_output(p, "loss", ls_mse(p, model(p, x), y));
 *   ls_backward(p, loss);
 *   LS_TRY(ls_program_compile(p, NULL));
 *   LS_TRY(ls_program_write(p, "x", data, LS_F32, 128));
 *   LS_TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
 */
#ifndef LS_PROGRAM_H
#define LS_PROGRAM_H

#include "lockstep/comm.h"
#include "lockstep/store.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_program ls_program;
typedef struct ls_value {
    int id;
} ls_value; /* id 0 is the null value */
#define LS_NONE ((ls_value){ 0 })

/* Placement of a value over one axis of the mesh of ranks: replicated, sharded along a dim, or partial: the value is the reduction, by
 * redop (LS_SUM or LS_MAX), of what the ranks have. A shard's bounds are multiples of grain (0 is 1): rank r of n has
 * grain * [units*r/n, units*(r+1)/n), units = whole / grain. zigzag: the dim has 2n chunks, and rank r has chunks r and 2n-1-r. A
 * replicated value's gradient is the same on all ranks too, or (partial_gradient) each rank has a partial sum of it. */
typedef enum ls_placement_kind { LS_REPLICATE, LS_SHARD, LS_PARTIAL } ls_placement_kind;
typedef struct ls_placement {
    ls_placement_kind kind;
    int dim;
    size_t grain;
    int zigzag, partial_gradient;
    ls_redop redop;
} ls_placement;
typedef enum ls_axis { LS_AXIS_PP, LS_AXIS_DP, LS_AXIS_CP, LS_AXIS_EP, LS_AXIS_TP, LS_AXES } ls_axis;

typedef enum ls_role {
    LS_ROLE_ACTIVATION,
    LS_ROLE_PARAMETER,
    LS_ROLE_GRADIENT,
    LS_ROLE_OPTIMIZER,
    LS_ROLE_COMMUNICATION,
    LS_ROLE_INPUT,
    LS_ROLE_OUTPUT,
    LS_ROLE_BOUND
} ls_role;

/* Segments of a program, in the order in which they run. */
enum {
    LS_FORWARD = 1,
    LS_BACKWARD = 2, /* input gradients and weight gradients */
    LS_WEIGHTS = 4,  /* weight gradients alone, when compiled with split_backward */
    LS_OPTIMIZER_STEP = 8,
    LS_LAST = 16 /* with LS_BACKWARD, on several ranks: the last micro-batch of the step, after which gradients are reduced; a program with
                    slots waits for the sums in LS_OPTIMIZER_STEP */
};

typedef enum ls_recompute {
    LS_RECOMPUTE_NONE,
    LS_RECOMPUTE_SELECTIVE, /* recompute cheap ops (norms, activations, softmax, dropout) before a block's backward */
    LS_RECOMPUTE_FULL,      /* keep block inputs only */
    LS_RECOMPUTE_EVERY,     /* keep the input of every k-th block: O(L/k + k) activations (Chen et al. 2016) */
    LS_RECOMPUTE_BUDGET,    /* recompute the first n blocks, the smallest n that brings the arena within `bytes` */
    LS_RECOMPUTE_FIRST      /* recompute the first `every` blocks */
} ls_recompute;

typedef struct ls_compile_options {
    ls_recompute recompute;
    int every;          /* k of LS_RECOMPUTE_EVERY, >= 1; n of LS_RECOMPUTE_FIRST, >= 0 */
    size_t bytes;       /* memory budget in bytes for LS_RECOMPUTE_BUDGET */
    int split_backward; /* put weight gradients into segment LS_WEIGHTS */
    int fuse_loss;      /* compute ls_linear_xent's loss and gradient in one pass of LS_BACKWARD, and the logits once */
    int plan_only;      /* compute costs, don't allocate: ls_program_run fails */
    int check_finite;   /* check the results of each instruction: the first inf or NaN is an error that names it */
    int slots;  /* micro-batches in flight at once, see ls_program_select(); 0: one, whose memory is planned for the whole program */
    int retain; /* LS_BACKWARD may run several times after one LS_FORWARD: forward values that it reads are kept until it ends */
} ls_compile_options;
#define LS_COMPILE_DEFAULTS                       \
    {                                             \
        LS_RECOMPUTE_NONE, 1, 0, 0, 0, 0, 0, 0, 0 \
    }

/* Bytes by purpose and FLOPs by segment; known after compile, before any run. */
typedef struct ls_cost {
    size_t parameters, gradients, optimizer, activations; /* bytes; activations: the arena */
    size_t communication;                                 /* bytes: gathered parameters, buckets, messages in flight */
    size_t offload;      /* bytes of host memory for what is offloaded: optimizer state, parameters, gradients */
    size_t offload_file; /* bytes in files for what is offloaded */
    size_t live_peak;    /* bytes alive at once in the arena; activations - live_peak is fragmentation */
    double forward_flops, backward_flops, recompute_flops; /* FLOPs of one forward, one backward and its recomputation */
    double model_flops;                                    /* forward + backward without recomputation: what MFU counts */
} ls_cost;

ls_status ls_program_new(ls_store *store, ls_program **out); /* the store is borrowed and must outlive it */
void ls_program_release(ls_program **p);
ls_status ls_program_status(const ls_program *p); /* the first failure, or LS_OK */
ls_store *ls_program_store(ls_program *p);

/* Appends the gradients of `loss` (one element) for every parameter that it depends on and that is not frozen. Once per
 * program: a second call fails; the gradients of several losses are those of their sum. */
void ls_backward(ls_program *p, ls_value loss);
ls_status ls_program_compile(ls_program *p, const ls_compile_options *options); /* NULL: the defaults */

/* Bytes that one rank sends for one kind of operation (ls_collective of comm.h) in one run of these segments (LS_LAST counts); calls may be
 * NULL. */
size_t ls_program_comm_bytes(const ls_program *p, int segments, int collective, size_t *calls);

/* Runs the given segments in their order. LS_EINVAL before compile; if check_finite finds a value; for an update whose gradient norm is not
 * finite (optim.h); for a backward without a forward just before it, because a backward consumes what its forward left
 * (with retain: without a forward since the last update; each further backward adds to the gradients as another micro-batch would); and on
 * several ranks for an update if the last backward ran without the LS_LAST that reduces its gradients. Without split_backward, LS_WEIGHTS
 * is part of LS_BACKWARD. */
ls_status ls_program_run(ls_program *p, int segments);
/* Copy from the host to an input, and from an output or bound value to the host, by name; count must be the value's. Indices (token ids,
 * positions) out of range for the ops that read them give LS_EINVAL. */
ls_status ls_program_write(ls_program *p, const char *name, const void *host, ls_dtype type, size_t count);
ls_status ls_program_read(const ls_program *p, const char *name, void *host, ls_dtype type, size_t count);

/* For a program with slots: inputs, outputs and what forward leaves for backward exist once per slot; run, write and read use the slot
 * selected last (0 at first). */
ls_status ls_program_select(ls_program *p, int slot);
int ls_program_has(const ls_program *p, const char *name); /* an input, output or bound value of that name, in use */

ls_cost ls_program_cost(const ls_program *p);

/* ---- instruction by instruction ---- */

/* The purpose of an instruction: forward, recomputation for the backward, input gradient (dgrad), weight gradient (wgrad), optimizer
 * update, communication. */
typedef enum ls_phase {
    LS_PHASE_FORWARD,
    LS_PHASE_RECOMPUTE,
    LS_PHASE_INPUT_GRADIENT,
    LS_PHASE_WEIGHT_GRADIENT,
    LS_PHASE_OPTIMIZER,
    LS_PHASE_COMMUNICATE
} ls_phase;
typedef enum ls_when {
    LS_WHEN_ALWAYS,
    LS_WHEN_LAST,
    LS_WHEN_NOT_LAST
} ls_when; /* in every micro-batch of a step, only in the last, in all but the last */
typedef enum ls_exchange { LS_EXCHANGE_NONE, LS_EXCHANGE_START, LS_EXCHANGE_WAIT } ls_exchange;

/* One operand as this rank holds it. value.id is the program's id of the value, the same in every instruction. */
typedef struct ls_operand {
    ls_value value;   /* LS_NONE: an optional operand that is absent; the other fields are then 0 */
    const char *name; /* "wte.weight"; for an activation the op that computed it, "h.0/linear" */
    ls_role role;
    ls_dtype dtype;
    int ndim;
    size_t size[LS_DIMS], bytes;
    const ls_placement *place; /* [LS_AXES] */
} ls_operand;

enum { LS_OPERANDS = 8 };

/* One instruction of a compiled program. The program owns strings and placements. */
typedef struct ls_instruction {
    int segment;        /* LS_FORWARD, LS_BACKWARD, LS_WEIGHTS or LS_OPTIMIZER_STEP */
    const char *op;     /* "linear"; for a collective "all_reduce", for its wait "wait all_reduce" */
    const char *kernel; /* "avx512"; for a collective its transport; "-": none */
    const char *block;  /* "h.3"; "" outside of blocks */
    ls_phase phase;
    ls_when when;
    int nin, nout;
    ls_operand in[LS_OPERANDS], out[LS_OPERANDS];
    double flops; /* FLOPs of the kernel, including recomputation inside it */
    size_t bytes; /* bytes read and written */
    size_t live;  /* bytes of the arena in use while it runs */
    int stream;   /* 0: compute, 1: copies of offloaded state, others: one per comm; -1: none; 0 on devices without streams */
    int nwaits;   /* its stream waits for the ends of these instructions of other streams, by their numbers */
    const int *waits;
    /* set for a collective; else zero */
    ls_exchange exchange; /* the start or the wait */
    int collective;       /* ls_collective of comm.h */
    ls_axis axis;
    int ranks, root; /* size of its group; root of a broadcast, peer of a send or receive */
    int id;          /* the same for a start and its wait; a wait in an earlier segment belongs to the next run */
    size_t elements; /* elements of the whole buffer, over all ranks of the group */
} ls_instruction;

/* Number of instructions of all segments, which are numbered in the order in which they run; 0 before compile. */
int ls_program_instructions(const ls_program *p);
/* The i-th, 0 <= i < ls_program_instructions(p). */
void ls_program_instruction(const ls_program *p, int i, ls_instruction *out);
/* The program as text: one line per instruction with shapes, bytes and FLOPs. Free with ls_free. */
ls_status ls_program_text(const ls_program *p, char **text);
void ls_free(void *p);

#ifdef __cplusplus
}
#endif
#endif
