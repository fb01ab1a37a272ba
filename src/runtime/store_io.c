/* store_io.c - reading and writing complete parameters, gradients and states, whatever part of them this rank holds. */
#include "runtime/store_parts.h"

#include <string.h>
#include "base/base.h"
#include "base/pulse.h"

static ls_status check_ask(const ls_store *s, size_t i, ls_dtype type, size_t count)
{
    if (i >= s->count) return ls_fail(LS_EINVAL, "store: parameter %zu does not exist; there are %zu", i, s->count);
    if ((unsigned)type >= LS_DTYPES)
        return ls_fail(LS_EINVAL, "parameter '%s': element type %d does not exist", s->entry[i].name, (int)type);
    if (count != s->entry[i].count)
        return ls_fail(LS_EINVAL, "parameter '%s' has %zu elements, but %zu were given", s->entry[i].name, s->entry[i].count, count);
    return LS_OK;
}

static enum store_kind kind_named(const char *kind)
{
    return strcmp(kind, "parameter") == 0 ? STORE_VALUE : strcmp(kind, "gradient") == 0 ? STORE_GRAD : STORE_STATE;
}

static ls_status part_of(const ls_store *s, size_t i, const char *kind, struct part *out)
{
    return part_find(s, i, kind_named(kind), kind_named(kind) == STORE_STATE ? kind : NULL, out);
}

/* Fills all[count]: copies this rank's part to its place, then gathers the parts of all ranks. */
static ls_status store_io_gather(const struct part *p, size_t at, size_t count, char *all)
{
    const struct store_unit *g = &p->g->face;
    int n = ls_comm_size(g->comm);
    size_t *counts = mem_array(MEM_OTHER, (size_t)n, sizeof *counts), esize = ls_dtype_bytes(p->type);

    if (!counts) return LS_ENOMEM;
    for (int r = 0; r < n; r++) {
        size_t begin, end;

        store_unit_block(g->rooted, g->total, r, n, &begin, &end);
        begin = MAX(begin, at);
        end = MIN(end, at + count);
        counts[r] = end > begin ? end - begin : 0;
    }
    ls_status st = part_read(p, p->begin, p->end - p->begin, all + p->begin * esize, p->type);
    if (st == LS_OK) st = ls_all_gather_v(g->comm, all + p->begin * esize, all, counts, p->type, NULL);
    mem_free(counts);
    return st;
}

/* Restricts a complete part to the own block; at: offset of the parameter's count elements in the flat buffer. */
static void narrow(struct part *p, size_t at, size_t count)
{
    size_t begin = MAX(p->g->face.begin, at), end = MIN(p->g->face.end, at + count);

    p->begin = end > begin ? begin - at : 0;
    p->end = end > begin ? end - at : 0;
}

/* Reads the box into box[held], in its own type, from the ranks that have its blocks. Collective over the unit's comm. */
static ls_status read_box(const ls_store *s, size_t i, struct part *p, void *box)
{
    const struct entry *entry = &s->entry[i];

    if (p->g && (p->g->face.scattered >> p->kind & 1) && p->g->face.comm && ls_comm_size(p->g->face.comm) > 1)
        narrow(p, p->g->at[entry->member], entry->held);
    else if (!store_sharded(s, i, p->kind))
        return part_read(p, 0, entry->held, box, p->type);
    return store_io_gather(p, p->g->at[entry->member], entry->held, box);
}

static ls_status read_alone(const ls_store *s, size_t i, struct part *p, void *host, ls_dtype type)
{
    size_t count = s->entry[i].count;

    if (type == p->type) return read_box(s, i, p, host);
    void *all = mem_alloc(MEM_OTHER, count * ls_dtype_bytes(p->type));
    if (!all) return LS_ENOMEM;
    ls_status st = read_box(s, i, p, all);
    if (st == LS_OK) ls_convert(host, type, all, p->type, count);
    mem_free(all);
    return st;
}

/* A rank without the kind, or the parameter, takes part and contributes nothing. */
static ls_status read_together(const ls_store *s, size_t i, const char *kind, void *host, ls_dtype type)
{
    const struct entry *entry = &s->entry[i];
    ls_dtype own = store_kind_type(s, i, kind_named(kind));
    size_t esize = ls_dtype_bytes(own);
    char *box = mem_alloc(MEM_OTHER, (entry->held + entry->count) * esize + 1), *full = box ? box + entry->held * esize : NULL;
    struct part p;
    bool has = !entry->away && part_of(s, i, kind, &p) == LS_OK, owner;
    ls_status st = world_choose(s, i, kind, has, box != NULL, &owner);

    if (st == LS_OK) {
        ls_status got = has ? read_box(s, i, &p, box) : LS_OK;

        st = world_sum(s, i, kind, owner ? box : NULL, got, esize, full);
    }
    if (st == LS_OK) ls_convert(host, type, full, own, entry->count);
    mem_free(box);
    return st;
}

ls_status ls_store_read(const ls_store *s, size_t i, const char *kind, void *host, ls_dtype type, size_t count)
{
    struct part p;

    LS_TRY(check_ask(s, i, type, count));
    LS_TRY(entry_check_loaded(&s->entry[i]));
    LS_TRY(ls_store_wait(s));
    if (s->world && ls_comm_size(s->world) > 1) return read_together(s, i, kind, host, type);
    if (!box_is_whole(&s->entry[i]))
        return ls_fail(LS_EINVAL, "parameter '%s': this rank has %zu of its %zu elements, and the store knows no other ranks",
                       s->entry[i].name, s->entry[i].held, count);
    LS_TRY(part_of(s, i, kind, &p));
    return read_alone(s, i, &p, host, type);
}

/* Copies elements [p->begin, p->end) of the box out of the full parameter. */
static ls_status write_part(const struct entry *entry, const struct part *p, const char *host, ls_dtype type)
{
    enum { CHUNK = 1 << 14 };
    size_t esize = ls_dtype_bytes(type), end, global;
    ls_status st = LS_OK;

    if (box_is_whole(entry)) return part_write(p, p->begin, p->end - p->begin, host + p->begin * esize, type);
    char *chunk = mem_alloc(MEM_OTHER, CHUNK * esize);
    if (!chunk) return LS_ENOMEM;
    for (size_t from = p->begin; from < p->end && st == LS_OK; from = end) {
        end = MIN(p->end, from + CHUNK);
        pulse();
        for (size_t at = from, n; at < end; at += n) {
            n = entry_run(entry, at, end, &global);
            memcpy(chunk + (at - from) * esize, host + global * esize, n * esize);
        }
        st = part_write(p, from, end - from, chunk, type);
    }
    mem_free(chunk);
    return st;
}

static ls_status write_kind(ls_store *s, size_t i, const char *kind, const void *host, ls_dtype type, size_t count)
{
    struct part p;

    LS_TRY(check_ask(s, i, type, count));
    if (s->entry[i].away) return LS_OK;
    LS_TRY(part_of(s, i, kind, &p));
    return write_part(&s->entry[i], &p, host, type);
}

ls_status ls_store_write(ls_store *s, size_t i, const char *kind, const void *host, ls_dtype type, size_t count)
{
    LS_TRY(entry_check_loaded(&s->entry[i])); /* the kind alone would leave another one without a value */
    return write_kind(s, i, kind, host, type, count);
}

ls_status ls_store_set(ls_store *s, size_t i, const void *host, ls_dtype type, size_t count)
{
    const struct entry *p = &s->entry[i];

    LS_TRY(write_kind(s, i, "parameter", host, type, count));
    for (int k = 0; k < p->states; k++)
        if (strcmp(p->state[k].name, "master") == 0) LS_TRY(write_kind(s, i, "master", host, type, count));
    store_set_loaded(s, i);
    return LS_OK;
}

ls_status store_read_part(const ls_store *s, size_t i, enum store_kind kind, const char *state, size_t from, size_t n, void *host,
                          ls_dtype type)
{
    struct part p;

    LS_TRY(entry_check_loaded(&s->entry[i]));
    LS_TRY(part_find(s, i, kind, state, &p));
    return part_read(&p, from, n, host, type);
}

ls_status store_write_part(ls_store *s, size_t i, enum store_kind kind, const char *state, size_t from, size_t n, const void *host,
                           ls_dtype type)
{
    struct part p;

    LS_TRY(part_find(s, i, kind, state, &p));
    return part_write(&p, from, n, host, type);
}

char *store_part_data(const ls_store *s, size_t i, enum store_kind kind, const char *state, size_t from)
{
    struct part p;

    return part_find(s, i, kind, state, &p) == LS_OK ? part_data(&p, from) : NULL;
}

static ls_status zero_own_gradient(const ls_store *s, const struct entry *p, struct device_stream *compute)
{
    ls_tensor *g = p->unit < 0 ? p->grad : NULL;

    return g ? s->where->fill(compute, ls_tensor_data(g), 0, ls_tensor_count(g) * ls_dtype_bytes(ls_tensor_dtype(g))) : LS_OK;
}

/* Clears adjacent gradients at once. */
static ls_status zero_gradients(ls_store *s, struct device_stream *compute)
{
    for (int g = 0; g < s->units; g++) {
        struct flat *f = flat_unit_find(s->unit[g], STORE_GRAD, NULL);

        if (f && s->unit[g]->face.backing[STORE_GRAD] != BACKING_MEMORY)
            f->zero = true; /* copies that are under way have read or written it by the time it is loaded or saved */
        else if (f)
            LS_TRY(s->where->fill(compute, f->data, 0, f->bytes));
    }
    for (const struct gradients *x = s->gradients; x; x = x->next) LS_TRY(s->where->fill(compute, x->data, 0, x->bytes));
    for (size_t i = 0; s->where->immediate && i < s->count; i++) LS_TRY(zero_own_gradient(s, &s->entry[i], compute));
    return LS_OK;
}

void ls_store_zero_grad(ls_store *s)
{
    struct set_stream *compute = &s->streams->stream[STREAM_COMPUTE];

    if (stream_set_join(s->streams) < 0 || zero_gradients(s, compute->stream) < 0) return; /* the device reports the failure later */
    compute->busy = true;
}
