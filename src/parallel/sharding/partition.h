/* partition.h - the inside of the partition pass: a forward for one rank becomes this rank's part of it.
 *
 * partition.c reads the order aloud: the stage is cut out (stage.c), parameters get placements by their dims (param_sharding.c), the
 * forward is walked once and written anew, every instruction by the rule of its op (rules*.c, with the moves of redistribute.c), and
 * checked (partition_check.c). Over one axis a value is one of
 *
 *     R   the same on all ranks, and so is its gradient
 *     ~R  the same on all ranks; each has a partial sum of its gradient       (placement: replicated, partial_gradient)
 *     S   cut along a dim, and so is its gradient
 *     P   each rank has a partial sum; its gradient is the same everywhere. (Or a partial max, which has none.)
 *
 * Values through which no parameter's gradient comes (tokens, tables of rotations) are R and ~R alike. Over tp parameters are cut
 * or R, and ~R where they meet S or ~R; over cp all of them are ~R (the data pass adds their gradients up) and the loss stays P.
 * A rule keeps the ids of its outputs and changes their sizes in place.
 */
#ifndef LS_PARALLEL_SHARDING_PARTITION_H
#define LS_PARALLEL_SHARDING_PARTITION_H

#include "lockstep/parallel.h"
#include "ir/program.h"
#include "runtime/store.h"

/* What ls_partition() was told. */
struct partition_spec {
    ls_partition_options o;
    ls_model m;
    const ls_mesh *mesh;
};

/* How a value lies, beside its placements (struct value's place and this rank's sizes). */
struct sharding {
    size_t size[LS_DIMS];  /* of the whole */
    size_t whole[LS_AXES]; /* of the dim that this axis cuts, before its cut */
    size_t outer[LS_AXES]; /* the dim is that many times `whole`, each cut alike ([B,T] flattened); 0 is 1 */
    bool learns;           /* a parameter's gradient comes through it */
    bool used;             /* of a parameter: was read as R over tp */
    bool enters;           /* of a weight that is whole over tp: its product wants ~R (keys and values of fewer heads than ranks) */
};

/* Versions of a value in other placements, so that several readers in a block share a move. */
struct version {
    int from, to;
    ls_axis axis;
    enum move_kind kind;
    int dim, block;
};

/* A routing of tokens to experts, found by what its instructions hand on (rules_experts.c). index: of ROUTE; rows, counts: of ROUTE_ROWS;
 * there: the counts of the rows that other ranks of ep send here. */
struct routing {
    ls_value index, rows, counts, there;
    size_t experts, chosen, capacity, buffer, expected;
};

struct partitioner {
    ls_program *p;
    const struct partition_spec *d;
    int n[LS_AXES], rank[LS_AXES];
    ls_comm *comm[LS_AXES];    /* NULL: one rank */
    size_t time;               /* T of the whole sequence; 0: no time dim is declared */
    struct sharding *sharding; /* [nshardings], by value id */
    int nshardings;
    struct version *version;
    int nversions, versions_room;
    struct routing *routing;
    int nroutings, routings_room;
    const struct instruction *now; /* whose rule runs, for messages */
};

typedef void rule_fn(struct partitioner *c, struct instruction *i);

/* ---- the parts, in their order ---- */

ls_status shard_parameters(struct partitioner *c); /* store: boxes, placements, speakers; the program's values of parameters */
rule_fn *rule_of(int op);                          /* NULL: the op wants R alone */
ls_status partition_check(const struct partitioner *c);

/* ---- placement.c: how values lie ---- */

struct sharding *sharding_of(struct partitioner *c, ls_value v); /* valid until the next value is made */
ls_placement *place_of(struct partitioner *c, ls_value v, ls_axis a);
bool value_is_sharded(struct partitioner *c, ls_value v, ls_axis a); /* S */
bool value_is_sharded_along(struct partitioner *c, ls_value v, ls_axis a, int dim);
bool value_has_partial_gradient(struct partitioner *c, ls_value v, ls_axis a); /* ~R */
bool value_is_partial(struct partitioner *c, ls_value v, ls_axis a);           /* P, or a partial max */
bool lies_partial_by(struct partitioner *c, ls_value v, ls_axis a, ls_redop redop);
bool op_passes_partial(int op, ls_redop redop); /* op(reduction of x) is the reduction of op(x) */
bool value_is_learned(struct partitioner *c, ls_value v);
int time_dim(struct partitioner *c, ls_value v); /* which counts the tokens of a sequence; -1: none */
bool has_time(struct partitioner *c, ls_value v);
/* First and size of this rank's part of x, which is S over a, in elements of its dim (zigzag: of the first piece). */
size_t part_begin(struct partitioner *c, ls_value x, ls_axis a);
size_t part_size(size_t whole, size_t grain, int zigzag, int r, int n);
/* A new value of v's local size, placement and lie. */
ls_value value_like(struct partitioner *c, const char *what, ls_value v);
void shardings_grow(struct partitioner *c); /* after values that were made by ops */
/* out is laid out as x over all axes, with x's local sizes (both have the same dims). */
void place_like(struct partitioner *c, ls_value out, ls_value x);
void place_as(struct partitioner *c, ls_value out, ls_value x, ls_axis a, int dim); /* placement alone; S: along dim */
void value_resize(struct partitioner *c, ls_value v, int dim, size_t size);         /* contiguous afterwards */

/* ---- redistribute.c ---- */

/* How a dim is cut: as ls_placement; whole 0: the dim's local size. */
struct piece {
    size_t whole, grain;
    int zigzag;
};
/* y (LS_NONE: a new value) = x moved; dim: of the cut. */
ls_value move_value(struct partitioner *c, enum move_kind kind, ls_axis a, ls_value x, int dim, struct piece piece, ls_value y);
ls_value all_to_all_value(struct partitioner *c, ls_axis a, ls_value x, int dim, struct piece piece,
                          ls_value y); /* S -> S along another dim */
/* x as something else, moved where it must be; a version in this block is used again. */
ls_value require_partial_gradient(struct partitioner *c, ls_value x, ls_axis a); /* ~R */
ls_value require_replicated(struct partitioner *c, ls_value x, ls_axis a);       /* R */
ls_value require_sharded(struct partitioner *c, ls_value x, ls_axis a, int dim, struct piece piece);
struct piece piece_of(struct partitioner *c, ls_value x, ls_axis a); /* of x, which is S */
struct piece time_piece(struct partitioner *c, ls_axis a);           /* of the sequence: grain 1, zigzag over cp's ring */
/* The partial sum x over tp becomes y as the residual stream lies: REDUCE_SCATTER along T with sp, else ALL_REDUCE. y LS_NONE: a new value.
 */
ls_value reduce_partial(struct partitioner *c, ls_value x, ls_value y);
/* ---- placement.c: operands together, and writing ---- */

/* A weight (parameter or not) that is beside x over a: R beside R, ~R beside S and ~R. */
void align_weight(struct partitioner *c, struct instruction *i, int k, ls_value x, ls_axis a);
/* Operands of one shape made to lie alike over a. */
void align_operands(struct partitioner *c, struct instruction *i, int n, ls_axis a);
/* The instruction into the new forward; outputs of the program are joined over tp. */
void emit_local(struct partitioner *c, const struct instruction *i);
/* Fails: "OP over AXIS: 'TENSOR' [..] is cut along dim 1: why", of the instruction at hand. */
void partition_error(struct partitioner *c, ls_axis a, ls_value v, const char *why);

/* ---- rules in files of their own ---- */
rule_fn rule_linear, rule_embedding, rule_linear_xent, rule_attention, rule_view;
rule_fn rule_route, rule_route_rows, rule_route_load, rule_router_loss, rule_rows_permute, rule_rows_unpermute,
    rule_grouped_linear; /* rules_experts.c */

#endif
