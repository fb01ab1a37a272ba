/* store_fill.c - allocation of what was declared, and initial values: element i of a full parameter is a function of (seed, name, i), so
 * a rank generates only the part that it holds.
 */
#include "runtime/store_parts.h"

#include "base/base.h"
#include "base/pulse.h"
#include "base/rng.h"
#include "base/threads.h"
#include "tensor/tensor_over.h"

struct fill {
    uint64_t seed;
    const struct slot *p;
    double *chunk;
    size_t from;
}; /* chunk[0] is element `from` of the box */

/* out[n] = elements from .. of the full parameter. */
static void fill_run(const struct fill *f, size_t from, size_t n, double *out)
{
    const ls_init *init = &f->p->init;

    if (init->kind == LS_INIT_NORMAL) {
        rng_normals(f->seed, f->p->hash, from, n, out);
        for (size_t i = 0; i < n; i++) out[i] *= init->scale;
    } else {
        for (size_t i = 0; i < n; i++) out[i] = init->scale * (2.0 * rng_uniform(f->seed, f->p->hash, from + i) - 1.0);
    }
}

static void fill_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct fill *f = ctx;

    (void)thread;
    for (size_t i = begin, n; i < end; i += n) {
        size_t global;

        n = slot_run(f->p, f->from + i, f->from + end, &global);
        fill_run(f, global, n, f->chunk + i);
    }
}

/* Fills elements [at, at + n) of the box, as far as this rank holds them. */
static ls_status put_held(const struct part *p, size_t at, size_t n, const double *chunk)
{
    size_t begin = MAX(at, p->begin), end = MIN(at + n, p->end);

    return begin < end ? part_write(p, begin, end - begin, chunk + (begin - at), LS_F64) : LS_OK;
}

static void fill_chunk(struct fill *f, size_t n)
{
    if (f->p->init.kind == LS_INIT_ONES)
        for (size_t i = 0; i < n; i++) f->chunk[i] = 1.0;
    else
        threads_for(n, 64, fill_range, f);
}

/* Fills the value and the master copy, if there is one, from the same numbers. */
static ls_status initialise(ls_store *s, size_t i)
{
    enum { CHUNK = 1 << 16 };
    const struct slot *p = &s->slot[i];
    struct fill f = { s->options.seed, p, NULL, 0 };
    struct part value, master = { 0 };
    size_t begin, end;
    ls_status st = LS_OK;

    if (p->init.kind == LS_INIT_ZEROS) return LS_OK;
    LS_TRY(part_find(s, i, STORE_VALUE, NULL, &value));
    begin = value.begin;
    end = value.end;
    if (store_has_master(s, i)) {
        LS_TRY(part_find(s, i, STORE_STATE, "master", &master));
        begin = value.begin < value.end ? MIN(begin, master.begin) : master.begin;
        end = MAX(end, master.end);
    }
    f.chunk = mem_alloc(MEM_OTHER, CHUNK * sizeof *f.chunk);
    if (!f.chunk) return LS_ENOMEM;
    for (f.from = begin; f.from < end && st == LS_OK; f.from += CHUNK) {
        size_t n = MIN((size_t)CHUNK, end - f.from);

        pulse();
        fill_chunk(&f, n);
        if (master.base || master.g) /* the value is the master's rounded copy */
            for (size_t k = 0; k < n; k++) f.chunk[k] = (float)f.chunk[k];
        st = put_held(&value, f.from, n, f.chunk);
        if (st == LS_OK) st = put_held(&master, f.from, n, f.chunk);
    }
    mem_free(f.chunk);
    return st;
}

/* ---- gradients outside of groups ---- */

size_t gradient_bytes(const ls_store *s, size_t i)
{
    enum { ALIGN = 64 };
    size_t bytes = s->slot[i].held * ls_dtype_bytes(store_type(s, STORE_GRAD));

    return s->where->immediate ? bytes : (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static bool needs_gradient(const struct slot *p) { return p->group < 0 && !p->away && p->needs_grad && !p->frozen && !p->grad; }

/* Of all parameters that need one, beside each other, so that they are cleared at once. */
static ls_status allocate_gradients(ls_store *s)
{
    struct gradients *x;
    size_t at = 0;

    for (size_t i = 0; i < s->count; i++) at += needs_gradient(&s->slot[i]) ? gradient_bytes(s, i) : 0;
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
        struct slot *p = &s->slot[i];

        if (!needs_gradient(p)) continue;
        LS_TRY(tensor_over(s->where, x->data + at, store_type(s, STORE_GRAD), p->ndim, p->local, &p->grad));
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

static ls_status allocate_slot(ls_store *s, size_t i)
{
    struct slot *p = &s->slot[i];

    if (!p->value) LS_TRY(ls_tensor_new(s->device, store_value_type(s, i), p->ndim, p->local, LS_PARAMETERS, &p->value));
    if (p->needs_grad && !p->frozen && !p->grad)
        LS_TRY(ls_tensor_new(s->device, store_type(s, STORE_GRAD), p->ndim, p->local, LS_GRADIENTS, &p->grad));
    for (int k = 0; k < p->states; k++)
        if (!p->state[k].tensor)
            LS_TRY(ls_tensor_new(s->device, store_type(s, STORE_STATE), p->ndim, p->local, LS_OPTIMIZER, &p->state[k].tensor));
    return LS_OK;
}

ls_status ls_store_allocate(ls_store *s)
{
    for (int g = 0; g < s->groups; g++) LS_TRY(group_allocate(s, s->group[g]));
    LS_TRY(allocate_gradients(s));
    for (size_t i = 0; i < s->count; i++) {
        if (s->slot[i].away) continue;
        if (s->slot[i].group < 0) LS_TRY(allocate_slot(s, i));
        if (!s->slot[i].ready) LS_TRY(initialise(s, i));
        s->slot[i].ready = 1;
    }
    return LS_OK;
}
