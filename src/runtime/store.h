/* store.h - what programs ask of a store beyond its public face. */
#ifndef LS_RUNTIME_STORE_H
#define LS_RUNTIME_STORE_H

#include <stdbool.h>
#include "lockstep/comm.h"
#include "lockstep/program.h"

struct device;
struct device_stream;
struct stream_set;

const struct device *store_device(const ls_store *s);
struct stream_set *store_streams(const ls_store *s);
/* The parameter of that name, declared when it is new; another shape or type than before is LS_EINVAL. The first: of the store's type. */
ls_status store_declare(ls_store *s, const char *name, ls_init init, int ndim, const size_t *size, int *index);
ls_status store_declare_as(ls_store *s, const char *name, ls_init init, ls_dtype type, int ndim, const size_t *size, int *index);
ls_dtype store_value_type(const ls_store *s, size_t i);
bool store_has_master(const ls_store *s, size_t i); /* an f32 copy that the optimizer updates; half types only */
/* Parameter i is moved by -rate * sign(gradient) whatever the optimizer; it counts in no norm. Default 0: as the others. */
void store_set_sign_rate(ls_store *s, size_t i, double rate);
double store_sign_rate(const ls_store *s, size_t i);
/* Several programs of this store add to parameter i's gradient in one step: the one with the optimizer sums it over ranks. */
void store_set_joint(ls_store *s, size_t i);
bool store_is_joint(const ls_store *s, size_t i);
void store_request_grad(ls_store *s, size_t i); /* the next allocation gives parameter i a gradient */
/* Groups: parameters of one type that lie one after another, in the order given, in one flat buffer a kind - one of their values, one of
 * their gradients, one of each state - so that one collective moves them all. A kind that is sharded is held in part: rank r
 * of the comm's n has elements [total*r/n, total*(r+1)/n) of the flat buffer. Its parameters' tensors are views into the
 * flat buffers. A kind that is scattered is held whole, but of what it ends up as only the own block is here (gradients after a
 * reduce-scatter in place): ls_store_read takes each block from its owner. Buffers that a collective reads or writes come from
 * ls_comm_alloc. A parameter is in one group at most, and groups are made before allocation. */
enum store_kind { STORE_VALUE, STORE_GRAD, STORE_STATE, STORE_KINDS };
enum store_backing { BACKING_MEMORY, BACKING_CPU, BACKING_FILE }; /* where states live between updates */

struct store_group {
    int n;
    const int *params;           /* [n] store indices */
    const size_t *at;            /* [n + 1] first element of each in the flat buffer; at[n] == total */
    size_t total, begin, end;    /* of the flat buffer; this rank's block */
    unsigned sharded, scattered; /* bit k: kind k */
    ls_comm *comm;
    ls_dtype type;              /* of the values */
    enum store_backing backing; /* of STORE_STATE: not MEMORY: no tensor, reached by LOAD and SAVE */
};
struct store_group_options {
    unsigned sharded, scattered;
    enum store_backing backing;
    const char *path; /* folder, BACKING_FILE */
};
ls_status store_group(ls_store *s, int n, const int *params, ls_comm *comm, const struct store_group_options *o, int *group);
int store_groups(const ls_store *s); /* how many */
const struct store_group *store_group_at(const ls_store *s, int group);
int store_group_of(const ls_store *s, size_t param);                                           /* -1: none */
void *store_group_data(const ls_store *s, int group, enum store_kind kind, const char *state); /* NULL before allocation */
/* Elements [*begin, *end) of parameter i (row-major) that this rank holds of a kind; all of them where it isn't sharded. */
void store_held(const ls_store *s, size_t i, enum store_kind kind, size_t *begin, size_t *end);
/* The comm over whose ranks a kind of parameter i is sharded; NULL: all of it is here. */
ls_comm *store_sharded(const ls_store *s, size_t i, enum store_kind kind);
/* ---- a part of each parameter ----
 *
 * A rank of a mesh may have a box of a parameter (tensor and expert parallelism cut dims) or nothing of it (another stage of the pipeline
 * has it). Names, shapes and order are the whole model's on every rank: ls_store_size() is the whole's; values, gradients and states
 * are of the box, their elements counted row-major in it (store_held too). Groups, and what the data-parallel ranks hold of them, are
 * cut from boxes. Before allocation and groups; the same again later changes nothing. */
void store_cut(ls_store *s, size_t i, int dim, size_t begin, size_t size); /* of the whole's dim, only [begin, begin + size) */
void store_leave_out(ls_store *s, size_t i); /* no value, gradient or state; who declares one of them is not heard */
bool store_is_here(const ls_store *s, size_t i);
size_t store_local_size(const ls_store *s, size_t i, int dim);
size_t store_local_begin(const ls_store *s, size_t i, int dim);
size_t store_local_count(const ls_store *s, size_t i);      /* 0 where it is left out */
ls_placement *store_placement(const ls_store *s, size_t i); /* [LS_AXES], all replicated at first; the caller may change it */
/* Where boxes are used: all ranks that share the parameters. ls_store_read() is then collective over it. */
void store_set_world(ls_store *s, ls_comm *world);
ls_comm *store_world(const ls_store *s); /* NULL: none was set */
/* Of the ranks that have the same box along the axes that cut the model, one speaks: it counts in norms, is read, writes checkpoints.
 * True until the partition says otherwise; false where parameter i is left out. Ranks that differ in the data-parallel axes alone speak
 * alike: reads and checkpoints take the lowest of those that have the same, norms count a kind that is not sharded on index 0. */
void store_set_owner(ls_store *s, size_t i, bool owner);
bool store_is_owner(const ls_store *s, size_t i);
/* Of elements [from, end) of a box [begin, begin + local) of a whole, from < end, how many at the front lie one after another in the
 * whole too; *global: where the first of them does. */
size_t store_box_run(int ndim, const size_t *whole, const size_t *begin, const size_t *local, size_t from, size_t end, size_t *global);
/* Elements [from, from + n) of the box, all of them held here. */
ls_status store_read_part(const ls_store *s, size_t i, enum store_kind kind, const char *state, size_t from, size_t n, void *host,
                          ls_dtype type);
ls_status store_write_part(ls_store *s, size_t i, enum store_kind kind, const char *state, size_t from, size_t n, const void *host,
                           ls_dtype type);

/* False before allocation, and when parameter i has none of that kind. state: of STORE_STATE. */
bool store_is_allocated(const ls_store *s, size_t i, enum store_kind kind, const char *state);
ls_dtype store_type(const ls_store *s, enum store_kind kind); /* of STORE_GRAD and STORE_STATE: f32, or f64 */
ls_dtype store_group_type(const ls_store *s, int group, enum store_kind kind);
/* Whole held part of an offloaded state <-> memory of that size. */
ls_status store_load(ls_store *s, struct device_stream *stream, int group, const char *state, void *to);
ls_status store_save(ls_store *s, struct device_stream *stream, int group, const char *state, const void *from);

/* What a higher floor keeps with a store, one thing: release(ctx) is called when the store is gone, after its groups. */
void store_attach(ls_store *s, void *ctx, void (*release)(void *ctx));
void *store_attached(const ls_store *s); /* NULL: nothing */

/* Bytes that the ledger will show once everything declared is allocated; states in files are in none of them. */
void store_bytes(const ls_store *s, size_t *parameters, size_t *gradients, size_t *optimizer, size_t *offload);

#endif
