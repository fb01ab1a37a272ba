/* store.h - named parameters, with their gradients and optimizer state.
 *
 * A store outlives the programs that read and write it. As in PyTorch, a gradient belongs to its parameter and has its shape; backward
 * ADDS; ls_store_zero_grad() clears; the optimizer sees parameters and gradients, never the loss.
 *   1. Declaring a parameter (ls_param in ops.h) records name, shape and initialization, and allocates nothing.
 *   2. ls_store_allocate() - called by the first compile - allocates and initializes what is new, except what a loader gives a
 *      value anyway (ls_store_await_load).
 *   3. Element i of a parameter is a pure function of (seed, its name, i): it is the same under every layout.
 *   4. Tensors handed out are borrowed and valid until the store is released.
 *   5. On several ranks (parallel.h) a rank may have a box of a parameter, or nothing of it (then its tensors are NULL and it has no
 *      states). Of the box it may hold only a shard of the value, gradient or state: then the tensor has one dim, the elements held (maybe
 *      none). Names and sizes are always those of the full parameter, and ls_store_read gives the full parameter.
 * Each parameter has its own type (ls_param_as); gradients and states are f32, or f64 in an f64 store, whose parameters are f64 alone. With
 * half_grads the gradient of a bf16 or f16 parameter has the parameter's type.
 * With master set, the optimizer updates f32 master copies (state "master") of the parameters of type bf16 and f16, which are their rounded
 * copies.
 */
#ifndef LS_STORE_H
#define LS_STORE_H

#include "lockstep/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_store ls_store;

typedef struct ls_store_options {
    const char *device; /* where parameters and values are: "cpu"; option run.device lists the names */
    ls_dtype type;      /* type of parameters declared without a type of their own: f32, bf16, f16, f64 */
    int master;         /* keep f32 master weights of parameters of type bf16 or f16; with type f32 and f64: none */
    uint64_t seed;      /* seed of the initialization */
    int half_grads; /* with type bf16 or f16: gradients of half parameters have their type; whatever adds to one sums in f32 and rounds */
} ls_store_options;
#define LS_STORE_DEFAULTS      \
    {                          \
        "cpu", LS_F32, 1, 0, 0 \
    }

typedef enum ls_init_kind { LS_INIT_ZEROS, LS_INIT_ONES, LS_INIT_NORMAL, LS_INIT_UNIFORM } ls_init_kind;
/* NORMAL: mean 0, deviation `scale`. UNIFORM: in [-scale, scale). */
typedef struct ls_init {
    ls_init_kind kind;
    double scale;
} ls_init;

ls_status ls_store_new(const ls_store_options *options, ls_store **out); /* options NULL: the defaults */
void ls_store_release(ls_store **s);
ls_status ls_store_allocate(ls_store *s);
/* The values will come from ls_checkpoint_load(), ls_hf_import() or ls_store_set(): from now on allocation initializes none. Running a
 * program, reading and saving are LS_EINVAL until every parameter has been given its value. */
void ls_store_await_load(ls_store *s);

size_t ls_store_count(const ls_store *s); /* parameters, in order of declaration */
const char *ls_store_name(const ls_store *s, size_t i);
int ls_store_find(const ls_store *s, const char *name); /* index, or -1 */
int ls_store_ndim(const ls_store *s, size_t i);
size_t ls_store_size(const ls_store *s, size_t i, int dim);
size_t ls_store_elements(const ls_store *s); /* elements of all parameters */
ls_store_options ls_store_settings(const ls_store *s);

/* Waits for parameters that an update is still gathering (overlap in parallel.h). The functions below that return, read or write values
 * do so by themselves. LS_EPEER, LS_ETIMEOUT: a rank was lost. */
ls_status ls_store_wait(const ls_store *s);
ls_tensor *ls_store_value(const ls_store *s, size_t i); /* NULL before allocation, and if offloaded; f32 of a buffer (ops.h) */
ls_tensor *ls_store_grad(const ls_store *s, size_t i);  /* f32 (f64 with type f64; half_grads); NULL if frozen or before allocation */
/* Optimizer state by its name ("m", "v", "master"); NULL if there is none. */
ls_tensor *ls_store_state(const ls_store *s, size_t i, const char *name);
/* Declares a state of every parameter's shape, zeros, f32 (f64 with type f64), for parameter i. */
ls_status ls_store_add_state(ls_store *s, size_t i, const char *name);
int ls_store_states(const ls_store *s, size_t i); /* number of states of parameter i */
const char *ls_store_state_name(const ls_store *s, size_t i, int k);

/* A frozen parameter has no gradient and no optimizer state. Before allocation only. */
ls_status ls_store_freeze(ls_store *s, size_t i);
int ls_store_is_frozen(const ls_store *s, size_t i);
/* host[count] = all of parameter i, whatever this rank holds of it: kind "parameter", "gradient", or a state's name. If it is sharded, all
 * ranks of its comm must call in the same order (it is a gather); for a model divided into boxes, all ranks. LS_EINVAL if there is none of
 * that kind. */
ls_status ls_store_read(const ls_store *s, size_t i, const char *kind, void *host, ls_dtype type, size_t count);
/* The inverse: this rank keeps its part of host[count], which is the full parameter on every rank. No communication. */
ls_status ls_store_write(ls_store *s, size_t i, const char *kind, const void *host, ls_dtype type, size_t count);
/* Overwrites parameter i from host[count] (row-major, converted), and its master copy with it. */
ls_status ls_store_set(ls_store *s, size_t i, const void *host, ls_dtype type, size_t count);
void ls_store_zero_grad(ls_store *s);

#ifdef __cplusplus
}
#endif
#endif
