/* restore.c - loads a checkpoint's folder into a store and a training state: first everything is verified, then everything is copied.
 *
 * What each tensor of the store gets (rule 3 of checkpoint.h), with P the saved parameter and M the saved master copy:
 *   source value                 M if there is one, else P
 *   parameter of the saved type  P, bit for bit
 *   parameter of another type    the source value, rounded to nearest even
 *   master                       the source value
 *   another state                the saved state of that name, only with LS_LOAD_OPTIMIZER
 *
 * Each rank gets what it holds: a range of the elements of its box, assembled from the saved shards, whichever ranks saved them, by all
 * threads where the store holds it; for a device, one chunk at a time.
 */
#include "lockstep/checkpoint.h"

#include <stdatomic.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "base/threads.h"
#include "checkpoint/reader.h"
#include "runtime/store.h"

/* Elements that are copied at once, and of a thread's range. The system clears new memory one huge page at a time, and clears a page twice
 * if two threads touch it first at the same time; so a range of f32 has the size of a huge page. */
enum { CHUNK = 1 << 18, DIRECT_GRAIN = 1 << 19 };

struct loader {
    struct saved saved;
    ls_store *store;
    int flags;
    void *chunk; /* [at most CHUNK]; NULL while hashes are compared */
};

/* A tensor that is read to where the store holds it, by all threads. */
struct direct {
    const struct saved *saved;
    const char *kind, *name;
    const struct box *box;
    size_t begin, end;
    char *to; /* element `begin` of the box */
    ls_dtype type;
    atomic_int st; /* everything was verified before: not LS_OK only if the file changed */
};

static void read_direct(void *ctx, size_t from, size_t to, int thread)
{
    struct direct *d = ctx;

    (void)thread;
    for (size_t at = from, n; at < to; at += n) {
        n = MIN((size_t)CHUNK, to - at);
        pulse();
        ls_status st = saved_read(d->saved, d->kind, d->name, d->box, d->begin + at, n, d->to + at * ls_dtype_bytes(d->type), d->type);
        if (st != LS_OK) atomic_store(&d->st, st);
    }
}

/* Loads the saved `kind` of parameter i into the store's `to`; chunk NULL: only verifies what would be read. */
static ls_status copy_tensor(const struct loader *l, const char *kind, size_t i, const char *to)
{
    enum store_kind k = strcmp(to, KIND_PARAMETER) == 0 ? STORE_VALUE : STORE_STATE;
    ls_dtype type = store_kind_type(l->store, i, k);
    struct box box = { { 0 }, { 0 } };
    size_t begin, end, n;

    for (int d = 0; d < ls_store_ndim(l->store, i); d++) {
        box.offset[d] = store_local_begin(l->store, i, d);
        box.extent[d] = store_local_size(l->store, i, d);
    }
    store_held(l->store, i, k, &begin, &end);
    if (!l->chunk) return saved_read(&l->saved, kind, ls_store_name(l->store, i), &box, begin, end - begin, NULL, type);
    struct direct d = { &l->saved, kind, ls_store_name(l->store, i), &box, begin, end, NULL, type, LS_OK };
    d.to = begin < end ? store_part_data(l->store, i, k, to, begin) : NULL;
    if (d.to) {
        threads_each(end - begin, DIRECT_GRAIN, read_direct, &d);
        return atomic_load(&d.st) == LS_OK ? LS_OK : ls_fail((ls_status)d.st, "parameter '%s': its %s cannot be read again", d.name, kind);
    }
    for (size_t from = begin; from < end; from += n) {
        n = MIN((size_t)CHUNK, end - from);
        pulse();
        LS_TRY(saved_read(&l->saved, kind, ls_store_name(l->store, i), &box, from, n, l->chunk, type));
        LS_TRY(store_write_part(l->store, i, k, to, from, n, l->chunk, type));
    }
    return LS_OK;
}

static ls_dtype saved_type(const struct loader *l, size_t i)
{
    size_t n;

    return manifest_find(l->saved.manifest, KIND_PARAMETER, ls_store_name(l->store, i), &n)[0]->type;
}

static ls_status copy_parameter(const struct loader *l, size_t i)
{
    const char *truth = saved_truth(&l->saved, ls_store_name(l->store, i));
    bool same = store_value_type(l->store, i) == saved_type(l, i);

    if (!store_is_here(l->store, i)) return LS_OK;
    LS_TRY(copy_tensor(l, same ? KIND_PARAMETER : truth, i, KIND_PARAMETER));
    for (int k = 0; k < ls_store_states(l->store, i); k++) {
        const char *kind = ls_store_state_name(l->store, i, k);

        if (strcmp(kind, KIND_MASTER) == 0)
            LS_TRY(copy_tensor(l, truth, i, kind));
        else if (l->flags & LS_LOAD_OPTIMIZER)
            LS_TRY(copy_tensor(l, kind, i, kind));
    }
    if (l->chunk) store_set_loaded(l->store, i);
    return LS_OK;
}

static ls_status copy_all(const struct loader *l)
{
    for (size_t i = 0; i < ls_store_count(l->store); i++) LS_TRY(copy_parameter(l, i));
    return LS_OK;
}

/* Goes over the tensors twice: verifies what this rank reads first, so that damage leaves the store unchanged. */
static ls_status restore_load(struct loader *l, const char *path)
{
    size_t most = 1;

    LS_TRY(saved_open(path, &l->saved));
    LS_TRY(saved_check_store(&l->saved, l->store, l->flags & LS_LOAD_OPTIMIZER));
    LS_TRY(saved_check_files(&l->saved));
    LS_TRY(copy_all(l));
    for (size_t i = 0; i < ls_store_count(l->store); i++) most = MAX(most, store_local_count(l->store, i));
    l->chunk = mem_alloc(MEM_OTHER, MIN((size_t)CHUNK, most) * sizeof(double));
    if (!l->chunk) return LS_ENOMEM;
    LS_TRY(store_allocate_to_load(l->store));
    return copy_all(l);
}

ls_status ls_checkpoint_load(const char *path, ls_store *store, int flags, ls_train_state *state)
{
    struct loader l = { .store = store, .flags = flags };
    ls_status st = restore_load(&l, path);

    if (st == LS_OK && state) *state = l.saved.manifest->info.state;
    mem_free(l.chunk);
    saved_close(&l.saved);
    return st;
}
