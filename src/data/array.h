/* array.h - growable arrays, and the hash of this floor's tables. */
#ifndef LS_DATA_ARRAY_H
#define LS_DATA_ARRAY_H

#include <string.h>
#include "base/base.h"
#include "base/mem.h"

/* Makes room for `need` elements in the array at *p, at least doubling it; *room is what it holds now. */
static inline ls_status array_grow(void **p, size_t *room, size_t need, size_t size)
{
    size_t bytes, more = MAX(need, *room <= SIZE_MAX / 2 ? 2 * *room : 0);

    if (need <= *room) return LS_OK;
    more = MAX(more, 8);
    if (!size_mul(more, size, &bytes)) return ls_fail(LS_ENOMEM, "out of memory: %zu items of %zu bytes", need, size);
    void *grown = mem_resize(*p, bytes);
    if (!grown) return LS_ENOMEM;
    *p = grown;
    *room = more;
    return LS_OK;
}

struct ids {
    int32_t *at;
    size_t count, room;
}; /* free at with mem_free */

static inline ls_status ids_reserve(struct ids *ids, size_t more)
{
    void *p = ids->at;
    size_t need;

    if (!size_add(ids->count, more, &need)) return ls_fail(LS_ENOMEM, "out of memory: %zu more tokens", more);
    LS_TRY(array_grow(&p, &ids->room, need, sizeof *ids->at));
    ids->at = p;
    return LS_OK;
}

static inline ls_status ids_push(struct ids *ids, int32_t id)
{
    if (ids->count == ids->room) LS_TRY(ids_reserve(ids, 1));
    ids->at[ids->count++] = id;
    return LS_OK;
}

static inline ls_status ids_append(struct ids *ids, const int32_t *from, size_t count)
{
    LS_TRY(ids_reserve(ids, count));
    if (count > 0) memcpy(ids->at + ids->count, from, count * sizeof *from);
    ids->count += count;
    return LS_OK;
}

static inline uint64_t hash_mix(uint64_t h) /* the finalizer of MurmurHash3 */
{
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 33;
}

static inline uint64_t hash_bytes(const unsigned char *p, size_t bytes)
{
    uint64_t h = bytes * 0x9e3779b97f4a7c15u, word;

    for (; bytes >= 8; p += 8, bytes -= 8) {
        memcpy(&word, p, 8);
        h = hash_mix(h ^ word);
    }
    word = 0;
    memcpy(&word, p, bytes);
    return hash_mix(h ^ word);
}

#endif
