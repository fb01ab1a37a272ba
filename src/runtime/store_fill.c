/* store_fill.c - allocation of what was declared, and initial values: element i of a full parameter is a function of (seed, name, i), so
 * a rank generates only the part that it holds. A store that awaits a load generates nothing.
 */
#include "runtime/store_parts.h"

#include <stdatomic.h>
#include "base/base.h"
#include "base/pulse.h"
#include "base/rng.h"
#include "base/threads.h"
#include "kernels/cpu/normals.h"
#include "tensor/tensor_over.h"

enum { CHUNK = 1 << 16, FILL_GRAIN = 1 << 12 }; /* elements: at once, and at least for each thread */

struct fill {
    uint64_t seed;
    const struct entry *p;
    bool is_double;  /* values are f64: the bits of rng.h; all others are rounded, and the numbers of normals.h do */
    bool has_master; /* an f32 copy, of which the value is rounded */
    double *chunk;   /* [n] */
    size_t from, n;  /* chunk[0] is element `from` of the box */
};

static atomic_uint_fast64_t drawn;

uint64_t store_drawn(void) { return atomic_load(&drawn); }

/* out[n] = elements from .. of the full parameter. */
static void fill_run(const struct fill *f, size_t from, size_t n, double *out)
{
    const ls_init *init = &f->p->init;

    if (init->kind == LS_INIT_ONES) {
        for (size_t i = 0; i < n; i++) out[i] = 1.0;
    } else if (init->kind == LS_INIT_UNIFORM) {
        for (size_t i = 0; i < n; i++) out[i] = init->scale * (2.0 * rng_uniform(f->seed, f->p->hash, from + i) - 1.0);
    } else if (f->is_double) {
        rng_normals(f->seed, f->p->hash, from, n, out);
        for (size_t i = 0; i < n; i++) out[i] *= init->scale;
    } else {
        normals(f->seed, f->p->hash, from, n, init->scale, out);
    }
}

static void fill_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct fill *f = ctx;

    (void)thread;
    for (size_t i = begin, n; i < end; i += n) {
        size_t global;

        n = entry_run(f->p, f->from + i, f->from + end, &global);
        fill_run(f, global, n, f->chunk + i);
    }
    for (size_t i = begin; f->has_master && i < end; i++) f->chunk[i] = (float)f->chunk[i];
}

/* Copies the chunk as far as this rank holds its elements. */
static ls_status put_held(const struct fill *f, const struct part *part)
{
    size_t begin = MAX(f->from, part->begin), end = MIN(f->from + f->n, part->end);

    return begin < end ? part_write(part, begin, end - begin, f->chunk + (begin - f->from), LS_F64) : LS_OK;
}

/* Fills the value and the master copy, if there is one, from the same numbers. */
static ls_status initialize(ls_store *s, size_t i)
{
    const struct entry *p = &s->entry[i];
    struct fill f = { .seed = s->options.seed, .p = p, .is_double = store_value_type(s, i) == LS_F64 };
    struct part value, master = { 0 };
    ls_status st = LS_OK;

    if (p->init.kind == LS_INIT_ZEROS) return LS_OK;
    LS_TRY(part_find(s, i, STORE_VALUE, NULL, &value));
    size_t begin = value.begin;
    size_t end = value.end;
    f.has_master = store_has_master(s, i);
    if (f.has_master) {
        LS_TRY(part_find(s, i, STORE_STATE, "master", &master));
        begin = value.begin < value.end ? MIN(begin, master.begin) : master.begin;
        end = MAX(end, master.end);
    }
    f.chunk = mem_alloc(MEM_OTHER, CHUNK * sizeof *f.chunk);
    if (!f.chunk) return LS_ENOMEM;
    for (f.from = begin; f.from < end && st == LS_OK; f.from += CHUNK) {
        f.n = MIN((size_t)CHUNK, end - f.from);
        pulse();
        threads_for(f.n, FILL_GRAIN, fill_range, &f);
        st = put_held(&f, &value);
        if (st == LS_OK) st = put_held(&f, &master);
    }
    atomic_fetch_add(&drawn, end - begin);
    mem_free(f.chunk);
    return st;
}

/* ---- values that are loaded ---- */

void ls_store_await_load(ls_store *s) { s->awaits = true; }

void store_set_loaded(ls_store *s, size_t i)
{
    s->awaited -= s->entry[i].ready == VALUE_AWAITED;
    s->entry[i].ready = VALUE_READY;
}

ls_status entry_check_loaded(const struct entry *p)
{
    if (p->ready != VALUE_AWAITED) return LS_OK;
    return ls_fail(LS_EINVAL, "parameter '%s' has no value: the store awaits a checkpoint or a Hugging Face folder; load it first",
                   p->name);
}

ls_status store_check_loaded(const ls_store *s)
{
    for (size_t i = 0; s->awaited && i < s->count; i++) LS_TRY(entry_check_loaded(&s->entry[i]));
    return LS_OK;
}

static ls_status fill_entry(ls_store *s, size_t i, bool awaits)
{
    struct entry *p = &s->entry[i];

    if (p->ready) return LS_OK;
    if (!awaits) LS_TRY(initialize(s, i));
    s->awaited += awaits;
    p->ready = awaits ? VALUE_AWAITED : VALUE_READY;
    return LS_OK;
}

/* ---- gradients outside of units ---- */

size_t gradient_bytes(const ls_store *s, size_t i)
{
    enum { ALIGN = 64 };
    size_t bytes = s->entry[i].held * ls_dtype_bytes(store_kind_type(s, i, STORE_GRAD));

    return s->where->immediate ? bytes : (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static bool needs_gradient(const struct entry *p) { return p->unit < 0 && !p->away && p->needs_grad && !p->frozen && !p->grad; }

/* Allocates those of all parameters that need one, adjacent, so that they are cleared at once. */
static ls_status allocate_gradients(ls_store *s)
{
    struct gradients *x;
    size_t at = 0;

    for (size_t i = 0; i < s->count; i++) at += needs_gradient(&s->entry[i]) ? gradient_bytes(s, i) : 0;
    if (s->where->immediate || !at) return LS_OK;
    x = mem_zalloc(MEM_OTHER, sizeof *x);
    if (!x) return LS_ENOMEM;
    x->home = (struct bytes_home){ s->where, NULL, MEM_GRADIENTS };
    x->bytes = at;
    x->next = s->gradients;
    s->gradients = x;
    x->data = bytes_alloc(&x->home, x->bytes);
    if (!x->data) {
        s->gradients = x->next;
        mem_free(x);
        return device_no_memory(s->where);
    }
    at = 0;
    for (size_t i = 0; i < s->count; i++) {
        struct entry *p = &s->entry[i];

        if (!needs_gradient(p)) continue;
        LS_TRY(tensor_over(s->where, x->data + at, store_kind_type(s, i, STORE_GRAD), p->ndim, p->local, &p->grad));
        at += gradient_bytes(s, i);
    }
    return LS_OK;
}

void gradients_free(ls_store *s)
{
    for (struct gradients *x = s->gradients, *next; x; x = next) {
        next = x->next;
        bytes_free(&x->home, x->data, x->bytes);
        mem_free(x);
    }
    s->gradients = NULL;
}

static ls_status allocate_entry(ls_store *s, size_t i)
{
    struct entry *p = &s->entry[i];

    if (!p->value) LS_TRY(ls_tensor_new(s->device, store_value_type(s, i), p->ndim, p->local, LS_PARAMETERS, &p->value));
    if (p->needs_grad && !p->frozen && !p->grad)
        LS_TRY(ls_tensor_new(s->device, store_kind_type(s, i, STORE_GRAD), p->ndim, p->local, LS_GRADIENTS, &p->grad));
    for (int k = 0; k < p->states; k++)
        if (!p->state[k].tensor)
            LS_TRY(ls_tensor_new(s->device, store_state_type(s), p->ndim, p->local, LS_OPTIMIZER, &p->state[k].tensor));
    return LS_OK;
}

static ls_status store_fill_allocate(ls_store *s, bool awaits)
{
    for (int g = 0; g < s->units; g++) LS_TRY(flat_unit_allocate(s, s->unit[g]));
    LS_TRY(allocate_gradients(s));
    for (size_t i = 0; i < s->count; i++) {
        if (s->entry[i].away) continue;
        if (s->entry[i].unit < 0) LS_TRY(allocate_entry(s, i));
        LS_TRY(fill_entry(s, i, awaits));
    }
    return LS_OK;
}

ls_status ls_store_allocate(ls_store *s) { return store_fill_allocate(s, s->awaits); }
ls_status store_allocate_to_load(ls_store *s) { return store_fill_allocate(s, true); }
