/* zero.h - the inside of the data-parallel pass.
 *
 * The pass (zero.c reads its order aloud) works on units: parameters that lie one after another in a group of the store
 * and travel together. Up to zero 2 a unit is a bucket of gradients that become final one after another, with zero 3 a block
 * of the model. The parts: bucketing.c makes units (fsdp_units.c: what they are), gather.c brings parameters, reduce.c gradients, update.c
 * cuts the optimizer segment to what a rank holds (offload.c: with states that live elsewhere), batch_stats.c looks after batch norms,
 * reduction_check.c checks in the end that every sum over ranks is formed once.
 *
 * On a mesh a unit's ranks are those of its kind: DATA, or for experts EXPERT_DATA. Gradients that are partial sums over tp too, or that
 * the first and the last stage share, are summed over those once a step, before the optimizer (model_axis_grads.c).
 *
 * A value has one placement. What a collective makes in place is therefore another value, a view of the same bytes: the
 * gradient "partial over dp" and the gradient "replicated" or "sharded" can't be taken for each other.
 */
#ifndef LS_PARALLEL_ZERO_ZERO_H
#define LS_PARALLEL_ZERO_ZERO_H

#include "parallel/layout.h"
#include "ir/program.h"
#include "runtime/store.h"

/* The ranks that a kind of parameter is spread over; NULL: this one alone. */
struct zero_groups {
    ls_comm *all;      /* gradients are sums over it */
    ls_comm *shard;    /* of those, the ranks that one copy is laid out over; may be all */
    ls_comm *replicas; /* of those, the ranks with the same shard */
};
enum { GROUPS_DENSE, GROUPS_EXPERTS, OVERS };

/* What the programs of a store share; the store keeps it. */
struct data {
    ls_data_options requested, o; /* o: zero is 0 where a copy is on one rank, offload_path is path */
    char *path;                   /* owned */
    const ls_mesh *mesh;          /* NULL: ls_data_parallel() */
    ls_comm *world;               /* all ranks; NULL: one rank */
    struct zero_groups groups[OVERS];
    bool owns;  /* over[GROUPS_DENSE].shard and replicas were split off here */
    bool mixed; /* ranks hold different parameters: norms are sums over the world */
};

/* A collective under way: what its wait repeats. */
struct pending {
    struct exchange x;
    ls_when when;
    ls_value in, out;
    bool open;
};

/* Parameters of one class travel together: what they are summed over is the same. SILENT: another rank counts them; SIGN: they are
 * moved by the sign of what is no gradient, and count nowhere; JOINT: several programs add to their gradients. */
enum unit_class {
    CLASS_NOT_OWNER = 1,
    CLASS_TP = 2,
    CLASS_ENDS = 4,
    CLASS_EXPERT = 8,
    CLASS_SIGN = 16,
    CLASS_JOINT = 32,
    CLASS_TYPE = 8 /* from this bit on: the type of the values */
};

struct unit {
    int group; /* of the store */
    unsigned class;
    const struct zero_groups *groups;
    int block;        /* of the program, where its parameters are used first; 0: none */
    ls_value whole;   /* zero 3: parameters gathered last [total] */
    ls_value full;    /* gradient of one micro-batch [total], where the store holds a shard */
    ls_value reduced; /* gradient that the optimizer reads: elements [begin, end) of the group, or all of them */
    int first, last;  /* writers of its gradients, numbered through SEG_BACKWARD and SEG_WEIGHTS; -1: none */
    struct pending reduction, gather;
    ls_value state[4]; /* loaded from where they are offloaded */
};

struct pass {
    ls_program *p;
    struct data *d;
    struct unit *unit; /* [nunits], by group */
    int nunits;
    int *order; /* [nunits], in which their gradients are reduced */
    int ordered;
    ls_value *view; /* by value id: through a gathered unit */
    int nviews;
};

ls_layout data_layout(const struct data *d); /* what is known of the layout */

/* ---- the parts, in their order ---- */

ls_status units_form(struct pass *a); /* bucketing.c: groups in the store; fills a->unit */
ls_status gather_parameters(struct pass *a);
ls_status reduce_gradients(struct pass *a);
ls_status join_batch_norms(struct pass *a);
ls_status update_shards(struct pass *a); /* calls the next two */
void reduce_joint(struct pass *a);       /* reduce.c: what several programs have added to */
void sum_over_mesh(struct pass *a);      /* model_axis_grads.c: what is summed over more than data */
ls_status check_placements(const struct pass *a);

/* ---- what they share ---- */

const struct store_group *unit_group(const struct pass *a, const struct unit *u);
struct unit *unit_of(const struct pass *a, const struct value *root); /* of a parameter, gradient or state; NULL: none */
unsigned unit_class(const struct pass *a, size_t i);                  /* of parameter i */
const struct zero_groups *unit_groups(const struct pass *a, unsigned class);
bool data_shards(const struct pass *a, const struct zero_groups *groups, enum store_kind kind); /* held in part */
bool data_is_distributed(const struct pass *a);                                                 /* more than one rank */
int unit_zero(const struct pass *a, const struct unit *u);     /* the options' zero; 0 where its copy is on one rank */
bool unit_counts(const struct pass *a, const struct unit *u);  /* its elements count in norms; on a mesh on no other rank */
size_t unit_begin(const struct pass *a, const struct unit *u); /* elements of the flat buffer that this rank updates */
size_t unit_end(const struct pass *a, const struct unit *u);
/* The flat gradient in the store; what its unit is still to be summed over is marked in its placement, or in x's. */
ls_value unit_gradient(struct pass *a, const struct unit *u);
void unit_mark_sums(ls_program *p, const struct unit *u, ls_value x);
/* A communication value "UNIT/what" of `count` elements. */
ls_value unit_value(struct pass *a, const struct unit *u, const char *what, ls_dtype type, size_t count);

/* update.c: the unit's gradient as the optimizer reads it, elements that this rank updates. */
ls_value unit_reduced(struct pass *a, struct unit *u);

/* emit.c: writing a segment anew. From begin to end everything that is emitted goes to a new list. */
struct rewrite {
    struct list old;
    struct cursor before;
};
struct rewrite rewrite_begin(ls_program *p, enum segment s, ls_phase phase);
void rewrite_end(ls_program *p, struct rewrite *w);
void emit_call(ls_program *p, int op, ls_when when, ls_value in, ls_value out); /* one in (or none), one out */
/* The bytes of x, elements [begin, begin + count) of a value of one dim, as a value of another placement. */
ls_value emit_part(ls_program *p, ls_value x, size_t begin, size_t count, ls_placement_kind place);
ls_value emit_flat(ls_program *p, ls_value x, ls_placement_kind place); /* x, contiguous, as [count] */
void emit_start(ls_program *p, struct pending *f, const struct exchange *x, ls_when when, ls_value in, ls_value out);
void emit_wait(ls_program *p, struct pending *f);
/* Start and wait at once of a sum in place over `comm`: x as a value that is replicated. */
ls_value emit_sum(ls_program *p, ls_comm *comm, ls_value x);
ls_placement_kind value_place(const ls_program *p, ls_value x); /* over dp */
void value_set_place(ls_program *p, ls_value x, ls_placement_kind kind);
void value_set_place_on(ls_program *p, ls_value x, ls_axis axis, ls_placement_kind kind);

/* offload.c: states of a unit for the instructions between the two. */
ls_value offload_state(struct pass *a, struct unit *u, const char *state); /* loads it, when it isn't there */
void offload_save(struct pass *a, struct unit *u, bool (*written)(const void *ctx, const char *state), const void *ctx);

#endif
