/* store_io.c - parameters, gradients and states between a store and its user, whole, whatever this rank holds of them. */
#include "program/store_parts.h"

#include <string.h>
#include "base/base.h"
#include "comm/steps.h"

static ls_status find(const ls_store *s, size_t i, const char *kind, ls_dtype type, size_t count, struct part *out)
{
    const struct slot *p = &s->slot[i];

    if (i >= s->count)
        return ls_fail(LS_EINVAL, "store: parameter %zu of %zu", i, s->count);
    if ((unsigned)type >= LS_DTYPES)
        return ls_fail(LS_EINVAL, "parameter '%s': element type %d does not exist", p->name, (int)type);
    if (count != p->count)
        return ls_fail(LS_EINVAL, "parameter '%s' has %zu elements, %zu were given", p->name, p->count, count);
    if (strcmp(kind, "parameter") == 0)
        return part_find(s, i, STORE_VALUE, NULL, out);
    if (strcmp(kind, "gradient") == 0)
        return part_find(s, i, STORE_GRAD, NULL, out);
    return part_find(s, i, STORE_STATE, kind, out);
}

/* all[count] = this rank's part at its place, then everybody's. */
static ls_status gather(const struct part *p, size_t at, size_t count, char *all)
{
    const struct store_group *g = &p->g->face;
    int n = ls_comm_size(g->comm);
    size_t *counts = mem_array(MEM_OTHER, (size_t)n, sizeof *counts), esize = ls_dtype_bytes(p->type);
    ls_status st;

    if (!counts)
        return LS_ENOMEM;
    for (int r = 0; r < n; r++) {
        size_t begin = block_at(g->total, r, n), end = block_at(g->total, r + 1, n);

        begin = MAX(begin, at);
        end = MIN(end, at + count);
        counts[r] = end > begin ? end - begin : 0;
    }
    st = part_read(p, p->begin, p->end - p->begin, all + p->begin * esize, p->type);
    if (st == LS_OK)
        st = ls_all_gather_v(g->comm, all + p->begin * esize, all, counts, p->type, NULL);
    mem_free(counts);
    return st;
}

/* To the own block, of a part that is whole; at: of the parameter's count elements in the flat buffer. */
static void narrow(struct part *p, size_t at, size_t count)
{
    size_t begin = MAX(p->g->face.begin, at), end = MIN(p->g->face.end, at + count);

    p->begin = end > begin ? begin - at : 0;
    p->end = end > begin ? end - at : 0;
}

ls_status ls_store_read(const ls_store *s, size_t i, const char *kind, void *host, ls_dtype type, size_t count)
{
    struct part p;
    void *all;
    size_t at;
    ls_status st;

    LS_TRY(find(s, i, kind, type, count, &p));
    if (p.g && (p.g->face.scattered >> p.kind & 1) && p.g->face.comm && ls_comm_size(p.g->face.comm) > 1)
        narrow(&p, p.g->at[s->slot[i].member], count);
    else if (!store_sharded(s, i, p.kind))
        return part_read(&p, 0, count, host, type);
    at = p.g->at[s->slot[i].member];
    if (type == p.type)
        return gather(&p, at, count, host);
    all = mem_alloc(MEM_OTHER, count * ls_dtype_bytes(p.type));
    if (!all)
        return LS_ENOMEM;
    st = gather(&p, at, count, all);
    if (st == LS_OK)
        ls_convert(host, type, all, p.type, count);
    mem_free(all);
    return st;
}

static ls_status write_part(const struct part *p, const void *host, ls_dtype type)
{
    return part_write(p, p->begin, p->end - p->begin, (const char *)host + p->begin * ls_dtype_bytes(type), type);
}

ls_status ls_store_write(ls_store *s, size_t i, const char *kind, const void *host, ls_dtype type, size_t count)
{
    struct part p;

    LS_TRY(find(s, i, kind, type, count, &p));
    return write_part(&p, host, type);
}

ls_status ls_store_set(ls_store *s, size_t i, const void *host, ls_dtype type, size_t count)
{
    const struct slot *p = &s->slot[i];

    LS_TRY(ls_store_write(s, i, "parameter", host, type, count));
    for (int k = 0; k < p->states; k++)
        if (strcmp(p->state[k].name, "master") == 0)
            return ls_store_write(s, i, "master", host, type, count);
    return LS_OK;
}

void ls_store_zero_grad(ls_store *s)
{
    const struct device *device = device_find(s->device);

    for (size_t i = 0; i < s->count; i++) {
        ls_tensor *g = s->slot[i].grad;

        if (g)
            device->fill(ls_tensor_data(g), 0, ls_tensor_count(g) * ls_dtype_bytes(ls_tensor_dtype(g)));
    }
}
