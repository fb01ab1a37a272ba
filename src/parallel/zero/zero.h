/* zero.h - internals of the data-parallel pass.
 *
 * The pass (zero.c lists the steps in order) works on units: each is a unit of the store (store.h), whose parameters are communicated
 * together. For zero 0 to 2 a unit is a bucket of gradients that become final one after another; for zero 3 and offloaded parameters it
 * is a block of the model, or several. bucketing.c builds the units (fsdp_units.c holds their properties), gather.c gathers parameters,
 * reduce.c reduces gradients, update.c restricts the optimizer segment to the elements this rank updates (carry.c: gathers that overlap the
 * next forward), offload.c loads and saves what is offloaded, batch_stats.c handles batch norms, and reduction_check.c verifies that every
 * sum over ranks is computed exactly once.
 *
 * On a mesh, a unit is distributed over DATA, or for experts over EXPERT_DATA. Gradients that are also partial sums over tp, or that
 * the first and the last stage share, are reduced over those ranks once per step, before the optimizer (model_axis_grads.c).
 *
 * A value has one placement. The result of an in-place collective is therefore another value, a view of the same bytes: the gradient
 * "partial over dp" cannot be confused with the gradient "replicated" or "sharded".
 */
#ifndef LS_PARALLEL_ZERO_ZERO_H
#define LS_PARALLEL_ZERO_ZERO_H

#include "parallel/layout.h"
#include "ir/program.h"
#include "runtime/store.h"

/* The ranks over which parameters of one kind are distributed; NULL: only this rank. */
struct zero_groups {
    ls_comm *all;      /* gradients are summed over it */
    ls_comm *shard;    /* the ranks that together hold one copy; may equal `all` */
    ls_comm *replicas; /* the ranks that hold the same shard */
};
enum { GROUPS_DENSE, GROUPS_EXPERTS, GROUPS_KINDS };

/* What a method does: a row of method.c for each ls_method. */
struct method {
    bool rooted; /* rank 0 of the comm holds all elements of whatever is sharded */
    int zero;    /* for rooted methods: the ZeRO stage whose placement it takes */
    bool keeps;  /* gathered parameters are kept from forward to backward, and nothing overlaps */
    bool apart;  /* the program communicates nothing */
};

/* Data-parallel state shared by all programs of a store; the store owns it. */
struct data_parallel {
    ls_data_parallel_options requested, o; /* as requested, and effective: zero is 0 where a copy is on one rank or the method's,
                                            * offload_path is path */
    const struct method *method;
    char *path;          /* owned */
    const ls_mesh *mesh; /* NULL: ls_data_parallel() */
    ls_comm *world;      /* all ranks; NULL: one rank */
    struct zero_groups groups[GROUPS_KINDS];
    bool owns;  /* groups[GROUPS_DENSE].shard and .replicas were created here */
    bool mixed; /* ranks hold different parameters, so norms are summed over the world */
};

/* A collective in flight, with what its wait has to repeat. */
struct pending {
    struct exchange x;
    ls_when when;
    ls_value in, out;
    bool open;
};

/* A unit's parameters are all of one class: their gradients are summed over the same ranks. NOT_OWNER: another rank counts them in norms;
 * SIGN: updated by the sign of something that is not a gradient, never counted in norms; JOINT: several programs add to their gradients. */
enum unit_class {
    CLASS_NOT_OWNER = 1,
    CLASS_TP = 2,
    CLASS_ENDS = 4,
    CLASS_EXPERT = 8,
    CLASS_SIGN = 16,
    CLASS_JOINT = 32,
    CLASS_TYPE = 8 /* the value dtype is encoded from this bit on */
};

/* A kind of a unit in a communication value between its load and the end of its save. */
struct loaded {
    enum store_kind kind;
    const char *state; /* for STORE_STATE */
    ls_value at;
    bool loading, saving; /* a transfer has no wait yet */
};
enum { LOADED = STORE_STATE + 4 };

struct unit {
    int index; /* of the store's unit */
    unsigned class;
    const struct zero_groups *groups;
    int block;         /* block of the program that first uses its parameters; 0: none */
    int last_block;    /* the last one in the order of blocks that forward runs */
    ls_value gathered; /* zero 3: the parameters as last gathered [total] */
    ls_value full;     /* the gradient of one micro-batch [total], if the store holds a shard */
    ls_value reduced;  /* the gradient that the optimizer reads: elements [begin, end) of the unit, or all of them */
    int first, last;   /* first and last instruction that writes its gradients in the segment that completes them, counted over
                        * SEG_BACKWARD and SEG_WEIGHTS; -1: none */
    struct pending reduction, gather;
    bool awaited;   /* the wait for its carried gather has been inserted */
    ls_value shard; /* offloaded parameters as last loaded for forward or backward: what this rank holds */
    bool loading;   /* and their load has no wait yet */
    struct loaded loaded[LOADED];
    int nloaded;
};

struct pass {
    ls_program *p;
    struct data_parallel *d;
    struct unit *unit; /* [nunits], by index */
    int nunits;
    int *order; /* [nunits], the order in which their gradients are reduced */
    int ordered;
    struct unit *saving; /* the unit whose gradients are being saved */
    ls_value *view;      /* by value id: the view into the gathered unit */
    int nviews;
    ls_value *early; /* by parameter: its gradient as an earlier segment than the one that completes its unit has computed it */
};

const struct method *method_of(ls_method m);          /* method.c */
ls_layout data_layout(const struct data_parallel *d); /* the part of the layout that is known here */

/* ---- the steps, in order ---- */

ls_status units_form(struct pass *a); /* bucketing.c: creates units in the store; fills a->unit */
ls_status gather_parameters(struct pass *a);
ls_status reduce_gradients(struct pass *a);
ls_status join_batch_norms(struct pass *a);
ls_status wait_at_first_use(struct pass *a);         /* carry.c: inserts the waits for carried gathers */
ls_status update_shards(struct pass *a);             /* calls the next two functions */
bool gathers_carry(const struct pass *a);            /* carry.c: gathers of updated parameters overlap the next forward */
void order_by_use(const struct pass *a, int *order); /* carry.c: order[a->ordered]: the units as forward and backward first read them */
void reduce_wait(struct pass *a);                    /* reduce.c: waits in the optimizer's segment for reductions that nothing waited for */
void reduce_joint(struct pass *a);                   /* reduce.c: gradients to which several programs have added */
void sum_over_mesh(struct pass *a);                  /* model_axis_grads.c: gradients summed over more than data */
ls_status check_placements(const struct pass *a);

/* ---- shared helpers ---- */

const struct store_unit *unit_stored(const struct pass *a, const struct unit *u);
struct unit *unit_of(const struct pass *a, const struct value *root); /* root: a parameter, gradient or state; NULL: in no unit */
unsigned unit_class(const struct pass *a, size_t i);                  /* the class of parameter i's unit */
const struct zero_groups *unit_groups(const struct pass *a, unsigned class);
bool data_parallel_shards(const struct pass *a, const struct zero_groups *groups, enum store_kind kind); /* true if that kind is sharded */
bool data_is_distributed(const struct pass *a);                                                          /* more than one rank */
bool data_has_units(const struct pass *a); /* units are blocks of the model, whose parameters are gathered or loaded while they are used */
int unit_zero(const struct pass *a, const struct unit *u);     /* the zero stage; 0 if one rank holds a full copy */
bool unit_counts(const struct pass *a, const struct unit *u);  /* this rank counts its elements in norms; on a mesh no other rank does */
size_t unit_begin(const struct pass *a, const struct unit *u); /* the elements of the flat buffer that this rank updates */
size_t unit_end(const struct pass *a, const struct unit *u);
/* The flat gradient in the store. Its placement is marked with the sums that are still missing; unit_mark_sums marks x's. */
ls_value unit_gradient(struct pass *a, const struct unit *u);
void unit_mark_sums(ls_program *p, const struct unit *u, ls_value x);
size_t *unit_counts_of_ranks(struct pass *a, const struct unit *u); /* elements of each rank's block; NULL: divided evenly */
/* A communication value "UNIT/what" of `count` elements. */
ls_value unit_value(struct pass *a, const struct unit *u, const char *what, ls_dtype type, size_t count);

/* update.c: the unit's gradient as the optimizer reads it: the elements that this rank updates. */
ls_value unit_reduced(struct pass *a, struct unit *u);

/* emit.c: rewriting a segment. Everything emitted between begin and end goes to a new list. */
struct rewrite {
    struct list old;
    struct cursor before;
};
struct rewrite rewrite_begin(ls_program *p, enum segment s, ls_phase phase);
void rewrite_end(ls_program *p, struct rewrite *w);
void emit_call(ls_program *p, int op, ls_when when, ls_value in, ls_value out); /* one input (or none), one output */
/* Elements [begin, begin + count) of the one-dim value x as a view with another placement. */
ls_value emit_part(ls_program *p, ls_value x, size_t begin, size_t count, ls_placement_kind place);
ls_value emit_flat(ls_program *p, ls_value x, ls_placement_kind place); /* x, which is contiguous, reshaped to [count] */
void emit_start(ls_program *p, struct pending *f, const struct exchange *x, ls_when when, ls_value in, ls_value out);
void emit_wait(ls_program *p, struct pending *f);
/* Starts and immediately waits for an in-place sum of x over `comm`; returns the replicated result. */
ls_value emit_sum(ls_program *p, ls_comm *comm, ls_value x);
ls_placement_kind value_place(const ls_program *p, ls_value x); /* placement over dp */
void value_set_place(ls_program *p, ls_value x, ls_placement_kind kind);
void value_set_place_on(ls_program *p, ls_value x, ls_axis axis, ls_placement_kind kind);

/* offload.c: what is offloaded, between load and save. */
bool offload_has(const struct pass *a, const struct unit *u, enum store_kind kind); /* true if that kind is offloaded */
/* Starts to load what this rank holds of a kind unless it has been loaded; `read` false: its contents do not matter. Returns its value,
 * which may be read after offload_wait(). */
ls_value offload_load(struct pass *a, struct unit *u, enum store_kind kind, const char *state, bool read);
ls_value offload_value(const struct unit *u, enum store_kind kind, const char *state); /* LS_NONE: not loaded */
void offload_wait(struct pass *a, struct unit *u);                                     /* for all its loads */
void offload_save(struct pass *a, struct unit *u, enum store_kind kind, const char *state);
void offload_end(struct pass *a, struct unit *u); /* waits for its saves and forgets its values */

#endif
