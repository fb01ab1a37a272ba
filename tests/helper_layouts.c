/* helper_layouts.c - see helper_layouts.h. */
#include "helper_layouts.h"

#include <string.h>
#include "base/base.h"
#include "base/rng.h"
#include "comm/algorithms/steps.h"

const struct layout layouts[LAYOUTS] = {
    { "one rank", 1, 1, 1, 1, 1, 0, BACKING_MEMORY },
    { "states over 2", 1, 2, 1, 1, 1, SHARD_STATES, BACKING_MEMORY },
    { "all over 3", 1, 3, 1, 1, 1, SHARD_VALUES | SHARD_STATES, BACKING_MEMORY },
    { "all over 4, states in a file", 1, 4, 1, 1, 1, SHARD_VALUES | SHARD_STATES, BACKING_FILE },
    { "tp 2", 1, 1, 2, 1, 1, 0, BACKING_MEMORY },
    { "tp 3, uneven", 1, 1, 3, 1, 1, 0, BACKING_MEMORY },
    { "pp 2", 2, 1, 1, 1, 1, 0, BACKING_MEMORY },
    { "pp 3, states over 2", 3, 2, 1, 1, 1, SHARD_STATES, BACKING_MEMORY },
    { "tp 2, all over 3", 1, 3, 2, 1, 1, SHARD_VALUES | SHARD_STATES, BACKING_MEMORY },
    { "all over 2, 2 replicas", 1, 4, 1, 1, 2, SHARD_VALUES | SHARD_STATES, BACKING_CPU },
    { "experts over 2, tp 3", 1, 2, 3, 2, 1, SHARD_STATES, BACKING_MEMORY },
    { "pp 2, experts over 2, tp 2", 2, 2, 2, 2, 1, SHARD_VALUES | SHARD_STATES, BACKING_MEMORY },
};

enum { EXPERTS = 5, FROZEN = 6 };
/* sharded: the dim that is sharded over tp; -1: replicated. */
static const struct { const char *name; int ndim; size_t size[3]; int sharded; } layouts_shapes[LAYOUT_PARAMETERS] = {
    { "a", 2, { 7, 5 }, 0 },  { "b", 1, { 3 }, -1 },        { "c", 3, { 4, 3, 7 }, 1 }, { "d", 1, { 1 }, -1 },
    { "e", 2, { 5, 11 }, 1 }, { "experts", 3, { 5, 12, 7 }, 1 }, { "frozen", 1, { 11 }, 0 },
};

int layout_ranks(const struct layout *l) { return l->pp * l->dp * l->tp; }

static void layouts_shard(ls_store *s, size_t i, int dim, int rank, int n)
{
    size_t begin = block_at(layouts_shapes[i].size[dim], rank, n);

    store_set_shard(s, i, dim, begin, block_at(layouts_shapes[i].size[dim], rank + 1, n) - begin);
}

static void parameter_place(const struct layout *l, int rank, ls_store *s, size_t i)
{
    int tp = rank % l->tp, dp = rank / l->tp % l->dp, pp = rank / l->tp / l->dp;

    if (i != FROZEN && (int)i % l->pp != pp) {
        store_leave_out(s, i);
        return;
    }
    if (layouts_shapes[i].sharded >= 0)
        layouts_shard(s, i, layouts_shapes[i].sharded, tp, l->tp);
    if (i == EXPERTS)
        layouts_shard(s, i, 0, dp % l->ep, l->ep);
    store_set_owner(s, i, (layouts_shapes[i].sharded >= 0 || tp == 0) && (i != FROZEN || pp == 0));
}

void layout_open(const struct layout *l, ls_comm *world, ls_dtype type, struct laid *out)
{
    struct store_unit_options o = { .sharded = l->sharded, .backing = { [STORE_STATE] = l->backing }, .path = "/tmp" };
    int rank = world ? ls_comm_rank(world) : 0, n = 0, members[LAYOUT_PARAMETERS], index, group;
    int shards = l->dp / l->replicate, dp = rank / l->tp % l->dp;
    ls_store *s;

    *out = (struct laid){ 0 };
    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", type, 1, 7, 0 }, &s));
    for (size_t i = 0; i < LAYOUT_PARAMETERS; i++) {
        RANKS_TRY(store_declare_as(s, layouts_shapes[i].name, (ls_init){ LS_INIT_ZEROS, 0 }, i == FROZEN ? store_state_type(s) : type,
                                   layouts_shapes[i].ndim, layouts_shapes[i].size, &index));
        if (i == FROZEN) {
            RANKS_TRY(ls_store_freeze(s, i));
        } else {
            RANKS_TRY(ls_store_add_state(s, i, "m"));
            RANKS_TRY(ls_store_add_state(s, i, "v"));
        }
        parameter_place(l, rank, s, i);
        if (store_is_here(s, i) && i != FROZEN && (i != EXPERTS || l->ep == 1))
            members[n++] = (int)i;
    }
    store_set_world(s, world);
    if (world)  /* ranks of one box, and of one replica */
        RANKS_TRY(ls_comm_split(world, (rank / l->tp / l->dp * l->replicate + dp / shards) * l->tp + rank % l->tp, rank, &out->data));
    if (n)
        RANKS_TRY(store_unit(s, n, members, out->data, &o, &group));
    RANKS_TRY(ls_store_allocate(s));
    out->store = s;
}

void layout_close(struct laid *laid)
{
    ls_store_release(&laid->store);
    ls_comm_close(&laid->data);
}

/* Any bits, including those of NaNs. */
static void bits_of(size_t i, const char *kind, size_t global, size_t esize, void *to)
{
    uint64_t stream = rng_stream(layouts_shapes[i].name) ^ rng_stream(kind);
    uint32_t word[2] = { rng_u32(3, stream, 2 * global), rng_u32(3, stream, 2 * global + 1) };

    memcpy(to, word, esize);
}

/* host = elements [from, to) of the box. */
static void bytes_make(const ls_store *s, size_t i, const char *kind, size_t esize, size_t from, size_t to, char *host)
{
    size_t local[3] = { 1, 1, 1 }, begin[3] = { 0 }, whole[3] = { 1, 1, 1 };

    for (int d = 0; d < layouts_shapes[i].ndim; d++) {
        local[d] = store_local_size(s, i, d);
        begin[d] = store_local_begin(s, i, d);
        whole[d] = layouts_shapes[i].size[d];
    }
    for (size_t e = from; e < to; e++) {
        size_t x = e / (local[1] * local[2]), y = e / local[2] % local[1], z = e % local[2];
        size_t global = ((begin[0] + x) * whole[1] + begin[1] + y) * whole[2] + begin[2] + z;

        bits_of(i, kind, global, esize, host + (e - from) * esize);
    }
}

static void each(ls_store *s, bool fill)
{
    for (size_t i = 0; i < LAYOUT_PARAMETERS; i++)
        for (int k = -1; store_is_here(s, i) && k < ls_store_states(s, i); k++) {
            enum store_kind kind = k < 0 ? STORE_VALUE : STORE_STATE;
            const char *name = k < 0 ? "parameter" : ls_store_state_name(s, i, k);
            ls_dtype type = store_kind_type(s, i, kind);
            char want[LAYOUT_MOST * 8], got[LAYOUT_MOST * 8];
            size_t begin, end, esize = ls_dtype_bytes(type);

            store_held(s, i, kind, &begin, &end);
            bytes_make(s, i, name, esize, begin, end, want);
            if (fill) {
                RANKS_TRY(store_write_part(s, i, kind, name, begin, end - begin, want, type));
                continue;
            }
            RANKS_TRY(store_read_part(s, i, kind, name, begin, end - begin, got, type));
            if (memcmp(got, want, (end - begin) * esize) != 0)
                ranks_fail("%s of '%s' differs in [%zu, %zu)", name, layouts_shapes[i].name, begin, end);
        }
}

void layout_fill(ls_store *s) { each(s, true); }
void layout_check(const ls_store *s) { each((ls_store *)s, false); }
