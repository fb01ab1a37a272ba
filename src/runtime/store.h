/* store.h - internal interface of the store, for programs and passes. */
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
/* Declares a parameter, or finds it if it exists with the same shape and type (else LS_EINVAL). store_declare uses the store's type. */
ls_status store_declare(ls_store *s, const char *name, ls_init init, int ndim, const size_t *size, int *index);
ls_status store_declare_as(ls_store *s, const char *name, ls_init init, ls_dtype type, int ndim, const size_t *size, int *index);
ls_dtype store_value_type(const ls_store *s, size_t i);
bool store_has_master(const ls_store *s, size_t i); /* an f32 copy that the optimizer updates; only for half types */
/* Parameter i is updated by -rate * sign(gradient) whatever the optimizer, and not counted in norms. Default 0: updated like the others. */
void store_set_sign_rate(ls_store *s, size_t i, double rate);
double store_sign_rate(const ls_store *s, size_t i);
/* Several programs of this store add to parameter i's gradient in one step: the one with the optimizer reduces it over ranks. */
void store_set_joint(ls_store *s, size_t i);
bool store_is_joint(const ls_store *s, size_t i);
void store_request_grad(ls_store *s, size_t i); /* the next allocation includes a gradient for parameter i */
void store_forget_grad(ls_store *s, size_t i);  /* it does not, even if it was requested before */
/* Units: parameters of one type that are adjacent, in the order given, in one flat buffer per kind (one for values, one for gradients, one
 * per state), so that one collective transfers them all. A sharded kind is held in part: rank r of the comm's n has elements [total*r/n,
 * total*(r+1)/n) of the flat buffer, or in a rooted unit rank 0 has all of it. The tensors of its parameters are views of the flat
 * buffers. A scattered kind is allocated in full, but only the own block has the final values (gradients after a reduce-scatter in place):
 * ls_store_read takes each block from its owner. Buffers that a collective reads or writes come from ls_comm_alloc. A parameter is in at
 * most one unit, and units are created before allocation. */
enum { LS_PAGE = 4096 }; /* alignment of what files and memory exchange without the page cache */
enum store_kind { STORE_VALUE, STORE_GRAD, STORE_STATE, STORE_KINDS };
enum store_backing { BACKING_MEMORY, BACKING_CPU, BACKING_FILE }; /* where a kind is stored while no program uses it */

struct store_unit {
    int n;
    const int *params;           /* [n] store indices */
    const size_t *at;            /* [n + 1] offset of each in the flat buffer; at[n] == total */
    size_t total, begin, end;    /* size of the flat buffer; begin and end of this rank's block */
    unsigned sharded, scattered; /* bit k: kind k */
    ls_comm *comm;
    ls_dtype type;                           /* type of the values */
    enum store_backing backing[STORE_KINDS]; /* if not MEMORY there is no tensor, and LOAD and SAVE access it */
    bool rooted;                             /* rank 0 of the comm has the complete buffer as its block, and the other blocks are empty */
};
struct store_unit_options {
    unsigned sharded, scattered;
    enum store_backing backing[STORE_KINDS];
    const char *path; /* folder, for BACKING_FILE */
    bool rooted;
};
ls_status store_unit(ls_store *s, int n, const int *params, ls_comm *comm, const struct store_unit_options *o, int *unit);
/* The block of `rank` of n: elements [*begin, *end) of a flat buffer of `total`. */
void store_unit_block(bool rooted, size_t total, int rank, int n, size_t *begin, size_t *end);
int store_units(const ls_store *s); /* the number of units */
const struct store_unit *store_unit_at(const ls_store *s, int unit);
int store_unit_of(const ls_store *s, size_t param);                                          /* -1: none */
void *store_unit_data(const ls_store *s, int unit, enum store_kind kind, const char *state); /* NULL before allocation */
/* The elements [*begin, *end) of parameter i (row-major) that this rank holds of a kind; all of them if it is not sharded. */
void store_held(const ls_store *s, size_t i, enum store_kind kind, size_t *begin, size_t *end);
/* The comm over which a kind of parameter i is sharded; NULL: it is complete on this rank. */
ls_comm *store_sharded(const ls_store *s, size_t i, enum store_kind kind);
/* ---- boxes ----
 *
 * A rank of a mesh may have a box of a parameter (tensor and expert parallelism shard dims) or nothing of it (it belongs to another
 * pipeline stage). Names, shapes and order are those of the complete model on every rank: ls_store_size() is the full size. Values,
 * gradients and states cover the box, with elements counted row-major in it (in store_held too). Units, and the data-parallel shards
 * of them, are made of boxes. Boxes are set before allocation and units; setting the same box again has no effect. */
void store_set_shard(ls_store *s, size_t i, int dim, size_t begin, size_t size); /* this rank has only [begin, begin + size) of the dim */
void store_leave_out(ls_store *s, size_t i); /* no value, gradient or state; later declarations are ignored */
bool store_is_here(const ls_store *s, size_t i);
size_t store_local_size(const ls_store *s, size_t i, int dim);
size_t store_local_begin(const ls_store *s, size_t i, int dim);
size_t store_local_count(const ls_store *s, size_t i);      /* 0 if it is left out */
ls_placement *store_placement(const ls_store *s, size_t i); /* [LS_AXES], initially all replicated; the caller may change it */
/* With boxes: sets the comm of all ranks that share the parameters. ls_store_read() is then collective over it. */
void store_set_world(ls_store *s, ls_comm *world);
ls_comm *store_world(const ls_store *s); /* NULL: this rank has everything */
/* Of the ranks that have the same box along the axes that shard the model, one is the owner: its copy is counted in norms, read, and
 * written to checkpoints. True until the partition sets it; false if parameter i is left out. Ranks that differ only in the data-parallel
 * axes have the same setting: reads and checkpoints use the lowest of those with the same data, norms count a kind that is not sharded on
 * index 0. */
void store_set_owner(ls_store *s, size_t i, bool owner);
bool store_is_owner(const ls_store *s, size_t i);
/* The number of elements at the start of [from, end) of a box [begin, begin + local), from < end, that are contiguous in the full tensor
 * too; *global: the position of the first one there. */
size_t store_box_run(int ndim, const size_t *global_size, const size_t *begin, const size_t *local, size_t from, size_t end,
                     size_t *global);
/* Where the box of parameter i is in the complete parameter: element j of the box is element begin + j / run * stride + j % run. False if a
 * box has no such form: it has a part of two dims after the first. */
bool store_box_lines(const ls_store *s, size_t i, size_t *begin, size_t *run, size_t *stride);
/* Elements [from, from + n) of the box, all of them held by this rank. */
ls_status store_read_part(const ls_store *s, size_t i, enum store_kind kind, const char *state, size_t from, size_t n, void *host,
                          ls_dtype type);
ls_status store_write_part(ls_store *s, size_t i, enum store_kind kind, const char *state, size_t from, size_t n, const void *host,
                           ls_dtype type);

/* Where element `from` of the box of a kind is, in memory that any thread of the host may read and write; NULL: nowhere. */
char *store_part_data(const ls_store *s, size_t i, enum store_kind kind, const char *state, size_t from);

/* ls_store_allocate(), but nothing is initialized: the caller writes every parameter and calls store_set_loaded() for it. */
ls_status store_allocate_to_load(ls_store *s);
void store_set_loaded(ls_store *s, size_t i);
ls_status store_check_loaded(const ls_store *s); /* LS_EINVAL names the first parameter that awaits its value */
uint64_t store_drawn(void);                      /* elements of parameters that this process has initialized, other than with zeros */

/* False before allocation, or if parameter i has none of that kind. state: for STORE_STATE. */
bool store_is_allocated(const ls_store *s, size_t i, enum store_kind kind, const char *state);
ls_dtype store_state_type(const ls_store *s);                                /* f32, or f64 */
ls_dtype store_kind_type(const ls_store *s, size_t i, enum store_kind kind); /* type of parameter i's value, gradient or states */
ls_dtype store_unit_type(const ls_store *s, int unit, enum store_kind kind);

/* ---- what is offloaded: store_offload.c ---- */

/* Starts a copy of everything held of an offloaded kind to or from memory of that size. With streams it is enqueued; else the memory is the
 * store's until store_offload_wait(), and a kind has at most one copy under way. */
struct unit_state;
ls_status store_load(ls_store *s, struct device_stream *stream, const struct unit_state *of, void *to);
ls_status store_save(ls_store *s, struct device_stream *stream, const struct unit_state *of, const void *from);
ls_status store_offload_wait(ls_store *s, const struct unit_state *of);
void store_offload_drop(ls_store *s); /* waits for all copies under way, ignoring failures */
/* What loads and saves have moved since the store was made [bytes], and how long programs have waited for them [seconds]; 0 on devices with
 * streams, where the host does not wait. */
struct offload_count {
    uint64_t loaded, saved;
    double waited;
};
struct offload_count store_offload_count(const ls_store *s);

/* ---- gathers that outlive the run that starts them: store_gathers.c ---- */

struct call_args;
/* What a program that carries gathers needs before its first run. */
ls_status store_gather_prepare(ls_store *s, int unit);
/* Starts the gather of the unit's values; with streams it is enqueued on `stream`. The unit has none in flight. */
ls_status store_gather_start(ls_store *s, int unit, ls_comm *comm, struct device_stream *stream, const struct call_args *call);
/* What is computed from here on runs after the unit's gather, if one is in flight. */
ls_status store_gather_wait(ls_store *s, int unit);
ls_status store_gathers_wait(ls_store *s); /* the same for all units */

/* One object that a higher layer attaches to a store: release(ctx) is called when the store is closed, after its units. */
void store_attach(ls_store *s, void *ctx, void (*release)(void *ctx));
void *store_attached(const ls_store *s); /* NULL: nothing */

/* The bytes that the ledger will show once everything declared is allocated, and those in files. */
void store_bytes(const ls_store *s, size_t *parameters, size_t *gradients, size_t *optimizer, size_t *offload, size_t *file);

#endif
