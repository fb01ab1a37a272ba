/* store_part.c - reading and writing what this rank holds of one parameter, in tensors or in a unit's file. */
#include "runtime/store_parts.h"

#include <string.h>
#include "base/base.h"
#include "base/threads.h"

enum { CONVERT_GRAIN = 1 << 13 }; /* elements, at least for each thread */

static ls_tensor *tensor_of(const struct entry *p, enum store_kind kind, const char *state)
{
    if (kind == STORE_VALUE) return p->value;
    if (kind == STORE_GRAD) return p->grad;
    for (int k = 0; k < p->states; k++)
        if (strcmp(p->state[k].name, state) == 0) return p->state[k].tensor;
    return NULL;
}

/* The unit's buffer that contains that kind of the parameter; NULL: none. */
static struct flat *flat_of(const ls_store *s, const struct entry *p, enum store_kind kind, const char *state)
{
    bool has = kind == STORE_VALUE ? !p->away : kind == STORE_GRAD && p->needs_grad && !p->frozen;

    for (int k = 0; kind == STORE_STATE && k < p->states; k++) has = has || strcmp(p->state[k].name, state) == 0;
    return has && p->unit >= 0 ? flat_unit_find(s->unit[p->unit], kind, state) : NULL;
}

bool store_is_allocated(const ls_store *s, size_t i, enum store_kind kind, const char *state)
{
    return tensor_of(&s->entry[i], kind, state) || flat_of(s, &s->entry[i], kind, state);
}

ls_status part_find(const ls_store *s, size_t i, enum store_kind kind, const char *state, struct part *out)
{
    const struct entry *p = &s->entry[i];
    struct part part = { .base = tensor_of(p, kind, state), .kind = kind, .type = store_kind_type(s, i, kind) };
    struct flat *f = flat_of(s, p, kind, state);
    size_t first;

    LS_TRY(ls_store_wait(s));
    LS_TRY(s->where->sync()); /* an offloaded state is in host memory, to which a queued copy may still write */
    if (!part.base && !f)
        return ls_fail(LS_EINVAL, "parameter '%s' has no %s, or it is not allocated", p->name,
                       kind == STORE_VALUE  ? "value"
                       : kind == STORE_GRAD ? "gradient"
                                            : state);
    part.writable = part.base && s->where->immediate;
    store_held(s, i, kind, &part.begin, &part.end);
    if (f) {
        part.g = s->unit[p->unit];
        LS_TRY(flat_settle((ls_store *)(uintptr_t)s, part.g, f));
        flat_unit_held(part.g, kind, &first);
        part.shift = (ptrdiff_t)part.g->at[p->member] - (ptrdiff_t)first;
        part.base = f->tensor;
        part.writable = part.base && f->home.device->immediate;
        part.at = f->at;
    }
    *out = part;
    return LS_OK;
}

static ls_status move_file(const struct part *p, size_t from, size_t n, void *host, ls_dtype type, bool write)
{
    size_t esize = ls_dtype_bytes(p->type);
    off_t at = p->at + ((off_t)from + p->shift) * (off_t)esize;
    void *own = mem_alloc(MEM_OTHER, n * esize);
    ls_status st;

    if (!own) return LS_ENOMEM;
    if (write) {
        ls_convert(own, p->type, host, type, n);
        st = backing_write(p->g, at, own, n * esize, NULL);
    } else {
        st = backing_read(p->g, at, own, n * esize, NULL);
        if (st == LS_OK) ls_convert(host, type, own, p->type, n);
    }
    mem_free(own);
    return st;
}

char *part_data(const struct part *p, size_t from)
{
    if (!p->writable) return NULL;
    return (char *)ls_tensor_data(p->base) + ((ptrdiff_t)from + p->shift) * (ptrdiff_t)ls_dtype_bytes(p->type);
}

struct converting {
    char *to;
    const char *from;
    ls_dtype to_type, from_type;
};

static void convert_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct converting *c = ctx;

    (void)thread;
    ls_convert(c->to + begin * ls_dtype_bytes(c->to_type), c->to_type, c->from + begin * ls_dtype_bytes(c->from_type), c->from_type,
               end - begin);
}

static ls_status move(const struct part *p, size_t from, size_t n, void *host, ls_dtype type, bool write)
{
    ls_tensor *view;
    ptrdiff_t one = 1;

    ASSERT(from >= p->begin && from + n <= p->end);
    if (!n) return LS_OK;
    if (!p->base) return move_file(p, from, n, host, type, write);
    if (p->writable && write) {
        struct converting c = { part_data(p, from), host, p->type, type };

        threads_for(n, CONVERT_GRAIN, convert_range, &c);
        return LS_OK;
    }
    LS_TRY(ls_tensor_view(p->base, 1, &n, &one, (ptrdiff_t)from + p->shift, &view));
    ls_status st = write ? ls_tensor_write(view, host, type, n) : ls_tensor_read(view, host, type, n);
    ls_tensor_release(&view);
    return st;
}

ls_status part_read(const struct part *p, size_t from, size_t n, void *host, ls_dtype type) { return move(p, from, n, host, type, false); }

ls_status part_write(const struct part *p, size_t from, size_t n, const void *host, ls_dtype type)
{
    return move(p, from, n, (void *)host, type, true);
}
