/* save_plan.c - see save_plan.h. */
#include "checkpoint/save_plan.h"

#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/rng.h"
#include "checkpoint/collective_status.h"
#include "checkpoint/manifest.h"
#include "runtime/store.h"

/* ---- claims of this rank ---- */

static size_t elements(const ls_store *s, size_t i)
{
    size_t n = 1;

    for (int d = 0; d < ls_store_ndim(s, i); d++) n *= ls_store_size(s, i, d);
    return n;
}

/* An empty parameter is claimed, too, so that it is listed. */
static ls_status claim(const ls_store *s, size_t i, const char *kind, uint64_t order, struct claims *out)
{
    enum store_kind k = order ? STORE_STATE : STORE_VALUE;
    struct claim c = { .param = i, .order = order };
    size_t from, to;

    if (!store_is_allocated(s, i, STORE_VALUE, NULL) || !store_is_allocated(s, i, k, kind))
        return ls_fail(LS_EINVAL, "checkpoint: %s of '%s' is not allocated", kind, ls_store_name(s, i));
    if (strlen(kind) >= CLAIM_KIND)
        return ls_fail(LS_EINVAL, "checkpoint: the name of state '%s' of '%s' is too long: %zu letters; at most %d", kind,
                       ls_store_name(s, i), strlen(kind), CLAIM_KIND - 1);
    strcpy(c.kind, kind);
    c.type = store_kind_type(s, i, k);
    for (int d = 0; d < ls_store_ndim(s, i); d++) {
        c.box.offset[d] = store_local_begin(s, i, d);
        c.box.extent[d] = store_local_size(s, i, d);
    }
    store_held(s, i, k, &from, &to);
    if (from == to && elements(s, i) > 0) return LS_OK;
    c.from = from;
    c.to = to;
    out->item[out->n++] = c;
    return LS_OK;
}

static ls_status claim_own(const ls_store *s, struct claims *out)
{
    size_t n = ls_store_count(s), most = n;

    for (size_t i = 0; i < n; i++) most += (size_t)ls_store_states(s, i);
    out->item = mem_array(MEM_OTHER, most, sizeof *out->item);
    if (!out->item) return LS_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        if (!store_is_owner(s, i)) continue;
        LS_TRY(claim(s, i, KIND_PARAMETER, 0, out));
        for (int k = 0; k < ls_store_states(s, i); k++) LS_TRY(claim(s, i, ls_store_state_name(s, i, k), (uint64_t)k + 1, out));
    }
    return LS_OK;
}

/* ---- claims of all ranks ---- */

/* Names and shapes, which must be the same on all ranks. */
static uint64_t digest(const ls_store *s)
{
    uint64_t h = ls_store_count(s);

    for (size_t i = 0; i < ls_store_count(s); i++) {
        h = h * 0x9e3779b97f4a7c15u + rng_stream(ls_store_name(s, i));
        for (int d = 0; d < ls_store_ndim(s, i); d++) h = h * 0x9e3779b97f4a7c15u + ls_store_size(s, i, d);
    }
    return h;
}

struct save_head {
    uint64_t n, digest;
};

static ls_status compare_heads(int n, const struct save_head *all, size_t *counts, size_t *total)
{
    *total = 0;
    for (int r = 0; r < n; r++) {
        if (all[r].digest != all[0].digest)
            return ls_fail(LS_EINVAL, "checkpoint: the parameters of rank %d differ from those of rank 0", r);
        counts[r] = all[r].n * (sizeof(struct claim) / sizeof(int64_t));
        *total += all[r].n;
    }
    return LS_OK;
}

/* Gathers the claims of all ranks, in the order of ranks. */
static ls_status save_plan_gather(ls_comm *comm, const ls_store *s, struct claims *mine)
{
    int n = ls_comm_size(comm);
    struct save_head head = { mine->n, digest(s) }, *heads = mem_array(MEM_OTHER, (size_t)n, sizeof *heads);
    size_t *counts = mem_array(MEM_OTHER, (size_t)n, sizeof *counts), total = 0;
    struct claim *all = NULL;
    ls_status st = agree(comm, heads && counts ? LS_OK : LS_ENOMEM);

    if (st == LS_OK) st = ls_all_gather(comm, &head, heads, 2, LS_I64, NULL);
    if (st == LS_OK) st = compare_heads(n, heads, counts, &total);
    if (st == LS_OK) {
        all = mem_array(MEM_OTHER, total, sizeof *all);
        st = agree(comm, all ? LS_OK : LS_ENOMEM);
    }
    if (st == LS_OK) st = ls_all_gather_v(comm, mine->item, all, counts, LS_I64, NULL);
    if (st == LS_OK) {
        mem_free(mine->item);
        *mine = (struct claims){ all, total };
        all = NULL;
    }
    mem_free(all);
    mem_free(counts);
    mem_free(heads);
    return st;
}

/* ---- one owner for equal claims ---- */

static int save_plan_compare(uint64_t a, uint64_t b) { return (a > b) - (a < b); }

static int compare_claimed(const struct claim *x, const struct claim *y)
{
    int order = save_plan_compare(x->param, y->param);

    if (order == 0) order = strcmp(x->kind, y->kind);
    if (order == 0) order = memcmp(&x->box, &y->box, sizeof x->box);
    if (order == 0) order = save_plan_compare(x->from, y->from);
    return order ? order : save_plan_compare(x->to, y->to);
}

static int by_claimed(const void *a, const void *b)
{
    int order = compare_claimed(a, b);

    return order ? order : save_plan_compare(((const struct claim *)a)->rank, ((const struct claim *)b)->rank);
}

static int by_file(const void *a, const void *b)
{
    const struct claim *x = a, *y = b;
    int order = save_plan_compare(x->order > 0, y->order > 0);

    if (order == 0) order = save_plan_compare(x->rank, y->rank);
    if (order == 0) order = save_plan_compare(x->param, y->param);
    return order ? order : save_plan_compare(x->order, y->order);
}

static void save_plan_choose(struct claims *c)
{
    size_t n = 0;

    if (!c->n) return;
    qsort(c->item, c->n, sizeof *c->item, by_claimed);
    for (size_t i = 0; i < c->n; i++)
        if (i == 0 || compare_claimed(&c->item[n - 1], &c->item[i]) != 0) c->item[n++] = c->item[i];
    c->n = n;
    qsort(c->item, c->n, sizeof *c->item, by_file);
}

ls_status claims_of(ls_comm *comm, const ls_store *store, struct claims *out)
{
    uint64_t rank = comm ? (uint64_t)ls_comm_rank(comm) : 0;

    *out = (struct claims){ 0 };
    LS_TRY(agree(comm, claim_own(store, out)));
    for (size_t i = 0; i < out->n; i++) out->item[i].rank = rank;
    if (comm && ls_comm_size(comm) > 1) LS_TRY(save_plan_gather(comm, store, out));
    save_plan_choose(out);
    return LS_OK;
}
