/* store.c - named parameters, gradients, optimizer state: declared first, allocated together.
 *
 * A slot holds what is known of one parameter. Gradients and states are declared by the programs that need them, so a
 * store that only generates text holds weights alone. The index by name is a linear scan over hashes: stores have
 * hundreds of parameters and are searched while programs are made, never while they run.
 */
#include "lockstep/store.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/threads.h"
#include "program/store_parts.h"

ls_status ls_store_new(const ls_store_options *options, ls_store **out)
{
    static const ls_store_options defaults = LS_STORE_DEFAULTS;
    const ls_store_options *o = options ? options : &defaults;
    ls_store *s;

    if (!ls_dtype_is_float(o->type))
        return ls_fail(LS_EINVAL, "store: parameters are of a floating type, not %s", ls_dtype_name(o->type));
    if (!device_find(o->device))
        return LS_EUNSUPPORTED;
    s = mem_zalloc(MEM_OTHER, sizeof *s);
    if (!s)
        return LS_ENOMEM;
    s->options = *o;
    strncpy(s->device, o->device, sizeof s->device - 1);
    s->options.device = s->device;
    s->options.master = o->master && (o->type == LS_BF16 || o->type == LS_F16);
    *out = s;
    return LS_OK;
}

void ls_store_release(ls_store **sp)
{
    ls_store *s = sp ? *sp : NULL;

    if (!s)
        return;
    for (size_t i = 0; i < s->count; i++) {
        struct slot *p = &s->slot[i];

        ls_tensor_release(&p->value);
        ls_tensor_release(&p->grad);
        for (int k = 0; k < p->states; k++)
            ls_tensor_release(&p->state[k].tensor);
        mem_free(p->name);
    }
    for (int g = 0; g < s->groups; g++)
        group_free(s->group[g]);
    if (s->attached)
        s->detach(s->attached);
    mem_free(s->group);
    mem_free(s->slot);
    mem_free(s);
    *sp = NULL;
}

void store_attach(ls_store *s, void *ctx, void (*release)(void *ctx))
{
    ASSERT(!s->attached && ctx && release);
    s->attached = ctx;
    s->detach = release;
}

void *store_attached(const ls_store *s) { return s->attached; }

int ls_store_find(const ls_store *s, const char *name)
{
    uint64_t hash = rng_stream(name);

    for (size_t i = 0; i < s->count; i++)
        if (s->slot[i].hash == hash && strcmp(s->slot[i].name, name) == 0)
            return (int)i;
    return -1;
}

static ls_status check_same(const struct slot *p, int ndim, const size_t *size)
{
    bool same = p->ndim == ndim;

    for (int d = 0; same && d < ndim; d++)
        same = p->size[d] == size[d];
    if (!same)
        return ls_fail(LS_EINVAL, "parameter '%s' was declared with %d dims (first %zu), now with %d (first %zu)",
                       p->name, p->ndim, p->ndim ? p->size[0] : 1, ndim, ndim ? size[0] : 1);
    return LS_OK;
}

ls_status store_declare(ls_store *s, const char *name, ls_init init, int ndim, const size_t *size, int *index)
{
    struct slot *p;
    int found = ls_store_find(s, name);
    size_t count = 1;

    if (found >= 0) {
        *index = found;
        return check_same(&s->slot[found], ndim, size);
    }
    if (ndim < 0 || ndim > LS_DIMS)
        return ls_fail(LS_EINVAL, "parameter '%s': %d dims; 0 to %d are possible", name, ndim, LS_DIMS);
    for (int d = 0; d < ndim; d++)
        if (!size_mul(count, size[d], &count) || count > SIZE_MAX / 16)
            return ls_fail(LS_EINVAL, "parameter '%s': its size overflows at dim %d of %zu", name, d, size[d]);
    if (s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 32;
        struct slot *grown = mem_resize(s->slot, room * sizeof *grown);

        if (!grown)
            return LS_ENOMEM;
        s->slot = grown;
        s->room = room;
    }
    p = &s->slot[s->count];
    memset(p, 0, sizeof *p);
    p->name = mem_strdup(name);
    if (!p->name)
        return LS_ENOMEM;
    p->hash = rng_stream(name);
    p->ndim = ndim;
    p->count = count;
    p->init = init;
    p->group = -1;
    for (int d = 0; d < ndim; d++)
        p->size[d] = size[d];
    if (s->options.master) {
        p->state[0].name = "master";
        p->states = 1;
    }
    *index = (int)s->count++;
    return LS_OK;
}

void store_want_grad(ls_store *s, size_t i) { s->slot[i].wants_grad = 1; }

ls_dtype store_type(const ls_store *s, enum store_kind kind)
{
    return kind == STORE_VALUE || s->options.type == LS_F64 ? s->options.type : LS_F32;
}

ls_status ls_store_add_state(ls_store *s, size_t i, const char *name)
{
    struct slot *p = &s->slot[i];

    if (p->frozen)
        return ls_fail(LS_EINVAL, "parameter '%s' is frozen and has no optimizer state '%s'", p->name, name);

    for (int k = 0; k < p->states; k++)
        if (strcmp(p->state[k].name, name) == 0)
            return LS_OK;
    if (p->states == STATES)
        return ls_fail(LS_EINVAL, "parameter '%s': no room for state '%s' beside %d others", p->name, name, STATES);
    p->state[p->states++].name = name;
    return LS_OK;
}

/* ---- allocation and initialisation ---- */

struct fill { uint64_t seed, stream; ls_init init; double *chunk; size_t from; };

static void fill_range(void *ctx, size_t begin, size_t end, int thread)
{
    struct fill *f = ctx;

    (void)thread;
    if (f->init.kind == LS_INIT_NORMAL) {
        rng_normals(f->seed, f->stream, f->from + begin, end - begin, f->chunk + begin);
        for (size_t i = begin; i < end; i++)
            f->chunk[i] *= f->init.scale;
    } else {
        for (size_t i = begin; i < end; i++)
            f->chunk[i] = f->init.scale * (2.0 * rng_uniform(f->seed, f->stream, f->from + i) - 1.0);
    }
}

/* Elements [at, at + n) of the parameter, as far as this rank holds them. */
static ls_status put_held(const struct part *p, size_t at, size_t n, const double *chunk)
{
    size_t begin = MAX(at, p->begin), end = MIN(at + n, p->end);

    return begin < end ? part_write(p, begin, end - begin, chunk + (begin - at), LS_F64) : LS_OK;
}

static void fill_chunk(struct fill *f, size_t n)
{
    if (f->init.kind == LS_INIT_ONES)
        for (size_t i = 0; i < n; i++)
            f->chunk[i] = 1.0;
    else
        threads_for(n, 64, fill_range, f);
}

/* Both the value and the master copy, where there is one, from one making of the numbers. */
static ls_status initialise(ls_store *s, size_t i)
{
    enum { CHUNK = 1 << 16 };
    const struct slot *p = &s->slot[i];
    struct fill f = { s->options.seed, p->hash, p->init, NULL, 0 };
    struct part value, master = { 0 };
    size_t begin, end;
    ls_status st = LS_OK;

    if (p->init.kind == LS_INIT_ZEROS)
        return LS_OK;
    LS_TRY(part_find(s, i, STORE_VALUE, NULL, &value));
    begin = value.begin;
    end = value.end;
    if (s->options.master && !p->frozen) {
        LS_TRY(part_find(s, i, STORE_STATE, "master", &master));
        begin = value.begin < value.end ? MIN(begin, master.begin) : master.begin;
        end = MAX(end, master.end);
    }
    f.chunk = mem_alloc(MEM_OTHER, CHUNK * sizeof *f.chunk);
    if (!f.chunk)
        return LS_ENOMEM;
    for (f.from = begin; f.from < end && st == LS_OK; f.from += CHUNK) {
        size_t n = MIN((size_t)CHUNK, end - f.from);

        fill_chunk(&f, n);
        st = put_held(&value, f.from, n, f.chunk);
        if (st == LS_OK)
            st = put_held(&master, f.from, n, f.chunk);
    }
    mem_free(f.chunk);
    return st;
}

static ls_status allocate_slot(ls_store *s, struct slot *p)
{
    if (!p->value)
        LS_TRY(ls_tensor_new(s->device, s->options.type, p->ndim, p->size, LS_PARAMETERS, &p->value));
    if (p->wants_grad && !p->frozen && !p->grad)
        LS_TRY(ls_tensor_new(s->device, store_type(s, STORE_GRAD), p->ndim, p->size, LS_GRADIENTS, &p->grad));
    for (int k = 0; k < p->states; k++)
        if (!p->state[k].tensor)
            LS_TRY(ls_tensor_new(s->device, store_type(s, STORE_STATE), p->ndim, p->size, LS_OPTIMIZER, &p->state[k].tensor));
    return LS_OK;
}

ls_status ls_store_allocate(ls_store *s)
{
    for (int g = 0; g < s->groups; g++)
        LS_TRY(group_allocate(s, s->group[g]));
    for (size_t i = 0; i < s->count; i++) {
        if (s->slot[i].group < 0)
            LS_TRY(allocate_slot(s, &s->slot[i]));
        if (!s->slot[i].ready)
            LS_TRY(initialise(s, i));
        s->slot[i].ready = 1;
    }
    return LS_OK;
}

ls_status ls_store_freeze(ls_store *s, size_t i)
{
    struct slot *p = &s->slot[i];

    if (p->value || p->wants_grad || p->states > s->options.master)
        return ls_fail(LS_EINVAL, "parameter '%s' is frozen too late: %s", p->name,
                       p->value ? "it is allocated already" : "a program has asked for its gradient or optimizer state");
    p->frozen = 1;
    p->states = 0;
    return LS_OK;
}

/* ---- what a store holds ---- */

size_t      ls_store_count(const ls_store *s) { return s->count; }
const char *ls_store_name(const ls_store *s, size_t i) { return s->slot[i].name; }
int         ls_store_ndim(const ls_store *s, size_t i) { return s->slot[i].ndim; }
size_t      ls_store_size(const ls_store *s, size_t i, int dim) { return s->slot[i].size[dim]; }
ls_tensor  *ls_store_value(const ls_store *s, size_t i) { return s->slot[i].value; }
ls_tensor  *ls_store_grad(const ls_store *s, size_t i) { return s->slot[i].grad; }
int         ls_store_is_frozen(const ls_store *s, size_t i) { return s->slot[i].frozen; }
int         ls_store_states(const ls_store *s, size_t i) { return s->slot[i].states; }
const char *ls_store_state_name(const ls_store *s, size_t i, int k) { return s->slot[i].state[k].name; }

ls_store_options ls_store_settings(const ls_store *s) { return s->options; }

size_t ls_store_elements(const ls_store *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->count; i++)
        n += s->slot[i].count;
    return n;
}

ls_tensor *ls_store_state(const ls_store *s, size_t i, const char *name)
{
    const struct slot *p = &s->slot[i];

    for (int k = 0; k < p->states; k++)
        if (strcmp(p->state[k].name, name) == 0)
            return p->state[k].tensor;
    return NULL;
}

void store_bytes(const ls_store *s, size_t *parameters, size_t *gradients, size_t *optimizer, size_t *offload)
{
    size_t value = ls_dtype_bytes(s->options.type), state = ls_dtype_bytes(store_type(s, STORE_STATE));
    size_t bytes[STORE_KINDS] = { 0 };

    *offload = 0;
    for (size_t i = 0; i < s->count; i++) {
        const struct slot *p = &s->slot[i];

        if (p->group >= 0)
            continue;
        bytes[STORE_VALUE] += p->count * value;
        if (!p->frozen) {
            bytes[STORE_GRAD] += p->wants_grad ? p->count * state : 0;
            bytes[STORE_STATE] += p->count * state * (size_t)p->states;
        }
    }
    for (int g = 0; g < s->groups; g++)
        group_bytes(s, s->group[g], bytes, offload);
    *parameters = bytes[STORE_VALUE];
    *gradients = bytes[STORE_GRAD];
    *optimizer = bytes[STORE_STATE];
}
