/* store.c - named parameters, gradients, optimizer state: declared first, allocated together (store_fill.c).
 *
 * An entry describes one parameter. Gradients and states are declared by the programs that need them, so a store used only to generate text
 * holds weights alone. The index by name is a linear scan over hashes: stores have hundreds of parameters and are searched while programs
 * are built, never while they run.
 */
#include "lockstep/store.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/worker.h"
#include "runtime/store_parts.h"

static bool is_half(ls_dtype type) { return type == LS_BF16 || type == LS_F16; }

ls_status ls_store_new(const ls_store_options *options, ls_store **out)
{
    static const ls_store_options defaults = LS_STORE_DEFAULTS;
    const ls_store_options *o = options ? options : &defaults;
    ls_store *s;

    if (!ls_dtype_is_float(o->type))
        return ls_fail(LS_EINVAL, "store: parameters must have a floating-point type, not %s", ls_dtype_name(o->type));
    if (o->half_grads && !is_half(o->type))
        return ls_fail(LS_EINVAL, "store: half_grads with parameters of type %s; use bf16 or f16", ls_dtype_name(o->type));
    const struct device *device = device_find(o->device);
    if (!device) return LS_EUNSUPPORTED;
    s = mem_zalloc(MEM_OTHER, sizeof *s);
    if (!s) return LS_ENOMEM;
    ls_status st = stream_set_new(device, &s->streams);
    if (st < 0) {
        mem_free(s);
        return st;
    }
    s->where = device;
    s->options = *o;
    strncpy(s->device, o->device, sizeof s->device - 1);
    s->options.device = s->device;
    s->options.master = o->master && o->type != LS_F64;
    *out = s;
    return LS_OK;
}

void ls_store_release(ls_store **sp)
{
    ls_store *s = sp ? *sp : NULL;

    if (!s) return;
    ls_store_wait(s);
    s->where->sync(); /* copies may be under way; the result does not matter here */
    store_offload_drop(s);
    worker_close(&s->worker);
    for (size_t i = 0; i < s->count; i++) {
        struct entry *p = &s->entry[i];

        ls_tensor_release(&p->value);
        ls_tensor_release(&p->grad);
        for (int k = 0; k < p->states; k++) ls_tensor_release(&p->state[k].tensor);
        mem_free(p->name);
    }
    for (int g = 0; g < s->units; g++) {
        s->where->event_free(s->unit[g]->gathered);
        flat_unit_free(s->unit[g]);
    }
    gradients_free(s);
    if (s->attached) s->detach(s->attached);
    stream_set_free(s->streams);
    mem_free(s->unit);
    mem_free(s->entry);
    mem_free(s);
    *sp = NULL;
}

void store_attach(ls_store *s, void *ctx, void (*release)(void *ctx))
{
    ASSERT(!s->attached && ctx && release);
    s->attached = ctx;
    s->detach = release;
}

const struct device *store_device(const ls_store *s) { return s->where; }
struct stream_set *store_streams(const ls_store *s) { return s->streams; }

void *store_attached(const ls_store *s) { return s->attached; }

int ls_store_find(const ls_store *s, const char *name)
{
    uint64_t hash = rng_stream(name);

    for (size_t i = 0; i < s->count; i++)
        if (s->entry[i].hash == hash && strcmp(s->entry[i].name, name) == 0) return (int)i;
    return -1;
}

static ls_status check_same(const struct entry *p, ls_dtype type, int ndim, const size_t *size)
{
    bool same = p->ndim == ndim;

    for (int d = 0; same && d < ndim; d++) same = p->size[d] == size[d];
    if (!same)
        return ls_fail(LS_EINVAL, "parameter '%s' was declared with %d dims (first %zu), now with %d (first %zu)", p->name, p->ndim,
                       p->ndim ? p->size[0] : 1, ndim, ndim ? size[0] : 1);
    if (p->type != type)
        return ls_fail(LS_EINVAL, "parameter '%s' was declared as %s, now as %s", p->name, ls_dtype_name(p->type), ls_dtype_name(type));
    return LS_OK;
}

ls_status store_declare(ls_store *s, const char *name, ls_init init, int ndim, const size_t *size, int *index)
{
    return store_declare_as(s, name, init, s->options.type, ndim, size, index);
}

static ls_status check_declared(const ls_store *s, const char *name, ls_dtype type, int ndim, const size_t *size, size_t *count)
{
    *count = 1;
    if (ndim < 0 || ndim > LS_DIMS) return ls_fail(LS_EINVAL, "parameter '%s': %d dims; 0 to %d are possible", name, ndim, LS_DIMS);
    for (int d = 0; d < ndim; d++)
        if (!size_mul(*count, size[d], count) || *count > SIZE_MAX / 16)
            return ls_fail(LS_EINVAL, "parameter '%s': its size overflows at dim %d of %zu", name, d, size[d]);
    if (!ls_dtype_is_float(type) || (type == LS_F64) != (s->options.type == LS_F64))
        return ls_fail(
            LS_EINVAL,
            "parameter '%s': type %s in a store of type %s; a store of type f64 can only have parameters of type f64, others can have "
            "f32, bf16 and f16",
            name, ls_dtype_name(type), ls_dtype_name(s->options.type));
    return LS_OK;
}

ls_status store_declare_as(ls_store *s, const char *name, ls_init init, ls_dtype type, int ndim, const size_t *size, int *index)
{
    int found = ls_store_find(s, name);
    size_t count;

    if (found >= 0) {
        *index = found;
        return check_same(&s->entry[found], type, ndim, size);
    }
    LS_TRY(check_declared(s, name, type, ndim, size, &count));
    if (s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 32;
        struct entry *grown = mem_resize(s->entry, room * sizeof *grown);

        if (!grown) return LS_ENOMEM;
        s->entry = grown;
        s->room = room;
    }
    struct entry *p = &s->entry[s->count];
    memset(p, 0, sizeof *p);
    p->name = mem_strdup(name);
    if (!p->name) return LS_ENOMEM;
    p->hash = rng_stream(name);
    p->ndim = ndim;
    p->count = count;
    p->init = init;
    p->unit = -1;
    p->type = type;
    for (int d = 0; d < ndim; d++) p->size[d] = size[d];
    box_whole(p);
    if (s->options.master && is_half(type)) {
        p->state[0].name = "master";
        p->states = 1;
    }
    *index = (int)s->count++;
    return LS_OK;
}

ls_dtype store_value_type(const ls_store *s, size_t i) { return s->entry[i].type; }

bool store_has_master(const ls_store *s, size_t i) { return s->options.master && is_half(s->entry[i].type) && !s->entry[i].frozen; }

void store_set_sign_rate(ls_store *s, size_t i, double rate) { s->entry[i].sign_rate = rate; }
void store_set_joint(ls_store *s, size_t i) { s->entry[i].joint = true; }
bool store_is_joint(const ls_store *s, size_t i) { return s->entry[i].joint; }
double store_sign_rate(const ls_store *s, size_t i) { return s->entry[i].sign_rate; }

void store_request_grad(ls_store *s, size_t i) { s->entry[i].needs_grad = !s->entry[i].away; }
void store_forget_grad(ls_store *s, size_t i) { s->entry[i].needs_grad = false; }

ls_dtype store_state_type(const ls_store *s) { return s->options.type == LS_F64 ? LS_F64 : LS_F32; }

ls_dtype kind_type(const ls_store *s, ls_dtype value, enum store_kind kind)
{
    bool own = kind == STORE_VALUE || (kind == STORE_GRAD && s->options.half_grads && is_half(value));

    return own ? value : store_state_type(s);
}

ls_dtype store_kind_type(const ls_store *s, size_t i, enum store_kind kind) { return kind_type(s, s->entry[i].type, kind); }

ls_dtype store_unit_type(const ls_store *s, int unit, enum store_kind kind) { return kind_type(s, store_unit_at(s, unit)->type, kind); }

ls_status ls_store_add_state(ls_store *s, size_t i, const char *name)
{
    struct entry *p = &s->entry[i];

    if (p->frozen) return ls_fail(LS_EINVAL, "parameter '%s' is frozen and has no optimizer state '%s'", p->name, name);

    if (p->away) return LS_OK;
    for (int k = 0; k < p->states; k++)
        if (strcmp(p->state[k].name, name) == 0) return LS_OK;
    if (p->states == STATES)
        return ls_fail(LS_EINVAL, "parameter '%s': no room for state '%s' in addition to %d others", p->name, name, STATES);
    p->state[p->states++].name = name;
    return LS_OK;
}

ls_status ls_store_freeze(ls_store *s, size_t i)
{
    struct entry *p = &s->entry[i];

    if (p->value || p->ready || p->needs_grad || p->states > store_has_master(s, i))
        return ls_fail(LS_EINVAL, "parameter '%s' is frozen too late: %s", p->name,
                       p->value || p->ready ? "it is already allocated" : "a program has requested its gradient or optimizer state");
    p->frozen = 1;
    p->states = 0;
    return LS_OK;
}

/* ---- contents of a store ---- */

size_t ls_store_count(const ls_store *s) { return s->count; }
const char *ls_store_name(const ls_store *s, size_t i) { return s->entry[i].name; }
int ls_store_ndim(const ls_store *s, size_t i) { return s->entry[i].ndim; }
size_t ls_store_size(const ls_store *s, size_t i, int dim) { return s->entry[i].size[dim]; }
ls_tensor *ls_store_value(const ls_store *s, size_t i)
{
    ls_store_wait(s); /* if it fails, every later call of the comm reports it */
    return s->entry[i].value;
}

ls_tensor *ls_store_grad(const ls_store *s, size_t i) { return s->entry[i].grad; }
int ls_store_is_frozen(const ls_store *s, size_t i) { return s->entry[i].frozen; }
int ls_store_states(const ls_store *s, size_t i) { return s->entry[i].states; }
const char *ls_store_state_name(const ls_store *s, size_t i, int k) { return s->entry[i].state[k].name; }

ls_store_options ls_store_settings(const ls_store *s) { return s->options; }

size_t ls_store_elements(const ls_store *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->count; i++) n += s->entry[i].count;
    return n;
}

ls_tensor *ls_store_state(const ls_store *s, size_t i, const char *name)
{
    const struct entry *p = &s->entry[i];

    for (int k = 0; k < p->states; k++)
        if (strcmp(p->state[k].name, name) == 0) return p->state[k].tensor;
    return NULL;
}

void store_bytes(const ls_store *s, size_t *parameters, size_t *gradients, size_t *optimizer, size_t *offload, size_t *file)
{
    size_t state = ls_dtype_bytes(store_state_type(s));
    size_t bytes[STORE_KINDS] = { 0 };

    *offload = *file = 0;
    for (size_t i = 0; i < s->count; i++) {
        const struct entry *p = &s->entry[i];

        if (p->unit >= 0) continue;
        bytes[STORE_VALUE] += p->held * ls_dtype_bytes(store_value_type(s, i));
        if (!p->frozen) {
            bytes[STORE_GRAD] += p->needs_grad ? gradient_bytes(s, i) : 0;
            bytes[STORE_STATE] += p->held * state * (size_t)p->states;
        }
    }
    for (int g = 0; g < s->units; g++) flat_unit_bytes(s, s->unit[g], bytes, offload, file);
    *parameters = bytes[STORE_VALUE];
    *gradients = bytes[STORE_GRAD];
    *optimizer = bytes[STORE_STATE];
}
