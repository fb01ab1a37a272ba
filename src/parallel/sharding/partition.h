/* partition.h - internals of the partition pass: it turns a forward written for one rank into this rank's part of it.
 *
 * partition.c lists the steps in order: the pipeline stage is extracted (stage.c), parameters are sharded by what their dims mean
 * (param_sharding.c), the forward is rewritten in one walk, each instruction by the rule of its op (rules*.c, with the collectives of
 * redistribute.c), and the result is verified (partition_check.c). On one axis a value is one of
 *
 *     R   replicated, and so is its gradient
 *     ~R  replicated; each rank has a partial sum of its gradient             (placement: replicated, partial_gradient)
 *     S   sharded along a dim, and so is its gradient
 *     P   a partial sum on each rank; its gradient is replicated. (Or a partial max, which has no gradient.)
 *
 * Values through which no parameter's gradient flows (tokens, rotary tables) are both R and ~R. Over tp, parameters are S or R, or ~R
 * if they are used with S or ~R activations; over cp all of them are ~R (the data-parallel pass sums their gradients) and the loss stays
 * P. A rule keeps the ids of its outputs and changes their sizes in place.
 */
#ifndef LS_PARALLEL_SHARDING_PARTITION_H
#define LS_PARALLEL_SHARDING_PARTITION_H

#include "lockstep/parallel.h"
#include "ir/program.h"
#include "runtime/store.h"

/* The arguments of ls_partition(). */
struct partition_spec {
    ls_partition_options o;
    ls_model m;
    const ls_mesh *mesh;
};

/* The sharding of a value, in addition to its placements (struct value: place, and this rank's sizes). */
struct sharding {
    size_t size[LS_DIMS];  /* sizes of the unsharded value */
    size_t full[LS_AXES];  /* the size of the dim that this axis shards, before this axis shards it */
    size_t outer[LS_AXES]; /* the dim is that many repetitions of `full`, each sharded alike ([B,T] flattened); 0 means 1 */
    bool needs_grad;       /* a parameter's gradient flows through it */
    bool used;             /* a parameter that has been read as R over tp */
    bool partial_gradient; /* a weight replicated over tp whose matmul needs ~R: keys and values with fewer heads than ranks */
};

/* A value in another placement, kept so that several readers in a block share one redistribution. */
struct version {
    int from, to;
    ls_axis axis;
    enum move_kind kind;
    int dim, block;
};

/* A routing of tokens to experts, identified by the values it produces (rules_experts.c). index: output of ROUTE; rows, counts: of
 * ROUTE_ROWS; there: how many rows other ranks of ep send to this one. */
struct routing {
    ls_value index, rows, counts, there;
    size_t experts, chosen, capacity, buffer, expected;
};

struct partitioner {
    ls_program *p;
    const struct partition_spec *d;
    int n[LS_AXES], rank[LS_AXES];
    ls_comm *comm[LS_AXES];    /* NULL: one rank */
    size_t time;               /* T, the length of the full sequence; 0: no time dim is declared */
    struct sharding *sharding; /* [nshardings], by value id */
    int nshardings, shardings_room;
    struct version *version;
    int nversions, versions_room;
    struct routing *routing;
    int nroutings, routings_room;
    const struct instruction *now; /* the instruction being partitioned, for messages */
};

typedef void rule_fn(struct partitioner *c, struct instruction *i);

/* ---- the steps, in order ---- */

ls_status
shard_parameters(struct partitioner *c); /* sets boxes, placements and owners in the store, and the sizes of the program's parameters */
rule_fn *rule_of(int op);                /* NULL: the op requires R operands */
ls_status partition_check(const struct partitioner *c);

/* ---- placement.c: queries ---- */

struct sharding *sharding_of(struct partitioner *c, ls_value v); /* valid until the next value is made */
ls_placement *place_of(struct partitioner *c, ls_value v, ls_axis a);
bool value_is_sharded(struct partitioner *c, ls_value v, ls_axis a); /* S */
bool value_is_sharded_along(struct partitioner *c, ls_value v, ls_axis a, int dim);
bool value_has_partial_gradient(struct partitioner *c, ls_value v, ls_axis a); /* ~R */
bool value_is_partial(struct partitioner *c, ls_value v, ls_axis a);           /* P, or a partial max */
bool value_is_partial_by(struct partitioner *c, ls_value v, ls_axis a, ls_redop redop);
bool op_passes_partial(int op, ls_redop redop); /* op(reduction of x) is the reduction of op(x) */
bool value_needs_grad(struct partitioner *c, ls_value v);
int time_dim(struct partitioner *c, ls_value v); /* the dim that counts the tokens of a sequence; -1: none */
bool has_time(struct partitioner *c, ls_value v);
/* Begin and size of this rank's shard of x, which is S over a, in elements of its dim (zigzag: of the first split). */
size_t value_shard_begin(struct partitioner *c, ls_value x, ls_axis a);
size_t shard_size(size_t full, size_t grain, int zigzag, int r, int n);
/* A new value with v's local size, placement and sharding. */
ls_value value_like(struct partitioner *c, const char *what, ls_value v);
void shardings_grow(struct partitioner *c); /* call after ops have created values */
/* Gives out the placement of x on all axes and x's local sizes (both have the same dims). */
void place_like(struct partitioner *c, ls_value out, ls_value x);
void place_as(struct partitioner *c, ls_value out, ls_value x, ls_axis a,
              int dim);                                                     /* the placement only; if x is S, out is sharded along dim */
void value_resize(struct partitioner *c, ls_value v, int dim, size_t size); /* x is contiguous afterwards */

/* ---- redistribute.c ---- */

/* How a dim is sharded, as in ls_placement; full 0: the dim's local size. */
struct dim_split {
    size_t full, grain;
    int zigzag;
};
/* y (LS_NONE: a new value) = x redistributed; dim: the sharded dim. */
ls_value move_value(struct partitioner *c, enum move_kind kind, ls_axis a, ls_value x, int dim, struct dim_split split, ls_value y);
ls_value all_to_all_value(struct partitioner *c, ls_axis a, ls_value x, int dim, struct dim_split split,
                          ls_value y); /* S -> S along another dim */
/* x with the required placement, redistributed if necessary; a version made earlier in this block is reused. */
ls_value require_partial_gradient(struct partitioner *c, ls_value x, ls_axis a); /* ~R */
ls_value require_replicated(struct partitioner *c, ls_value x, ls_axis a);       /* R */
ls_value require_sharded(struct partitioner *c, ls_value x, ls_axis a, int dim, struct dim_split split);
struct dim_split dim_split_of(struct partitioner *c, ls_value x, ls_axis a); /* x is S */
struct dim_split time_split(struct partitioner *c, ls_axis a); /* how the sequence is sharded: grain 1, zigzag over cp's ring */
/* Reduces x, a partial sum over tp, to y with the placement of the residual stream: REDUCE_SCATTER along T with sp, else ALL_REDUCE. y
 * LS_NONE: a new value. */
ls_value reduce_partial(struct partitioner *c, ls_value x, ls_value y);
/* ---- placement.c: combining operands, emitting ---- */

/* Makes operand k, a weight (parameter or not), compatible with x over a: R with R, ~R with S and ~R. */
void align_weight(struct partitioner *c, struct instruction *i, int k, ls_value x, ls_axis a);
/* Gives operands of one shape the same placement over a. */
void align_operands(struct partitioner *c, struct instruction *i, int n, ls_axis a);
/* Appends the instruction to the new forward; program outputs are all-gathered over tp. */
void emit_local(struct partitioner *c, const struct instruction *i);
/* Fails with "OP over AXIS: 'TENSOR' [..] is sharded along dim 1: why" for the current instruction. */
void partition_error(struct partitioner *c, ls_axis a, ls_value v, const char *why);

/* ---- rules in other files ---- */
rule_fn rule_linear, rule_embedding, rule_linear_xent, rule_attention, rule_view;
rule_fn rule_route, rule_route_rows, rule_route_load, rule_router_loss, rule_rows_permute, rule_rows_unpermute,
    rule_grouped_linear; /* rules_experts.c */

#endif
