/* store_world.c - assembles a full parameter from the ranks of a mesh, each of which has a box of it or nothing.
 *
 * All ranks exchange what they have. Of the owners of the same box, the lowest writes its bytes into a zeroed full buffer, and the bytes of
 * all ranks are summed: as each byte comes from one rank, the sum is its value.
 */
#include "runtime/store_parts.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"

/* What each rank reports before any data is transferred. */
struct store_report {
    uint64_t owner, failed, begin[LS_DIMS], local[LS_DIMS], held;
};

static struct store_report report_of(const struct entry *p, bool has, bool ready)
{
    struct store_report t = { .owner = has && !p->not_owner, .failed = !ready, .held = p->held };

    for (int d = 0; d < p->ndim; d++) {
        t.begin[d] = p->begin[d];
        t.local[d] = p->local[d];
    }
    return t;
}

static bool same_box(const struct store_report *a, const struct store_report *b)
{
    return memcmp(a->begin, b->begin, sizeof a->begin) == 0 && memcmp(a->local, b->local, sizeof a->local) == 0;
}

/* Drops ranks whose box an earlier rank contributes. The remaining boxes must cover the full parameter. */
static ls_status store_world_choose(const struct entry *p, const char *kind, int n, struct store_report *all)
{
    size_t held = 0, owners = 0;

    for (int r = 0; r < n; r++) {
        if (all[r].failed) return ls_fail(LS_ENOMEM, "parameter '%s': rank %d has not enough memory for its full %s", p->name, r, kind);
        for (int q = 0; q < r && all[r].owner; q++)
            if (all[q].owner && same_box(&all[q], &all[r])) all[r].owner = 0;
        owners += all[r].owner;
        held += all[r].owner ? all[r].held : 0;
    }
    if (!owners) return ls_fail(LS_EINVAL, "parameter '%s': no rank that owns it has its %s", p->name, kind);
    if (held != p->count)
        return ls_fail(LS_EINVAL, "parameter '%s': the owners of its %s have %zu of %zu elements", p->name, kind, held, p->count);
    return LS_OK;
}

ls_status world_choose(const ls_store *s, size_t i, const char *kind, bool has, bool ready, bool *owner)
{
    int n = ls_comm_size(s->world);
    struct store_report mine = report_of(&s->entry[i], has, ready), *all = mem_array(MEM_OTHER, (size_t)n, sizeof *all);
    ls_status st = all ? ls_all_gather(s->world, &mine, all, sizeof mine / sizeof(int64_t), LS_I64, NULL) : LS_ENOMEM;

    if (st == LS_OK) st = store_world_choose(&s->entry[i], kind, n, all);
    if (st == LS_OK) *owner = all[ls_comm_rank(s->world)].owner;
    mem_free(all);
    return st;
}

static void put_box(const struct entry *p, const char *box, size_t esize, char *full)
{
    for (size_t from = 0, n, global; from < p->held; from += n) {
        n = entry_run(p, from, p->held, &global);
        memcpy(full + global * esize, box + from * esize, n * esize);
    }
}

ls_status world_sum(const ls_store *s, size_t i, const char *kind, const void *box, ls_status got, size_t esize, char *full)
{
    const struct entry *p = &s->entry[i];
    size_t bytes = p->count * esize;
    char message[512];

    snprintf(message, sizeof message, "%s", got < 0 ? ls_errmsg() : "");
    memset(full, 0, bytes + 1);
    if (got < 0)
        full[bytes] = 1;
    else if (box)
        put_box(p, box, esize, full);
    LS_TRY(ls_all_reduce(s->world, full, full, bytes + 1, LS_U8, LS_SUM, NULL));
    if (got < 0) return ls_fail(got, "%s", message);
    return full[bytes] ? ls_fail(LS_EPEER, "parameter '%s': another rank could not read its %s", p->name, kind) : LS_OK;
}
