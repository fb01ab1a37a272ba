/* ranks.c - the ranks of a training run. */
#include "train/run/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/text.h"
#include "comm/algorithms/steps.h"
#include "device/device.h"
#include "parallel/layout.h"
#include "parallel/mesh/mesh.h"
#include "train/run/rank_devices.h"

static ls_status open_mesh(const ls_layout *l, struct ranks *r)
{
    ls_mesh_shape shape = ls_layout_mesh(l);

    return ls_mesh_open(r->comm, &shape, &r->mesh);
}

/* ---- options ---- */

/* Ranks that another launcher started have options of their own. */
static ls_status send_hidden(ls_comm *comm, void *x, size_t words, int root)
{
    return operation_run(
        comm,
        &(struct call_args){
            .op = LS_COLLECTIVE_BROADCAST, .send = x, .recv = x, .count = words, .type = LS_I64, .root = root, .hidden = true },
        NULL);
}

/* Options that say what a step computes. Paths and memory may differ by machine. */
static bool must_agree(const struct option *o)
{
    static const char *const sections[] = { "model.", "data.", "train.", "optim.", "parallel.", "precision.", "recompute." };

    for (size_t i = 0; i < COUNT_OF(sections); i++)
        if (strncmp(o->name, sections[i], strlen(sections[i])) == 0) return o->kind != OPTION_KIND_STRING;
    return false;
}

/* A line "name value" for each of them, padded to whole words with NULs. */
static ls_status put_agreed(const struct config *c, struct text *out)
{
    const struct option_table *t = config_table();

    for (size_t i = 0; i < t->count; i++) {
        if (!must_agree(&t->rows[i])) continue;
        text_put(out, "%s ", t->rows[i].name);
        options_put_value(&t->rows[i], c, out);
        text_put(out, "\n");
    }
    do text_add(out, "", 1);
    while (out->bytes % sizeof(int64_t));
    return text_status(out);
}

/* "rank 1 has optim.lr 0.5, but rank 0 0.003" of the first line that differs; "" if none does. */
static void compare_options(const char *mine, const char *first, int rank, char *why, size_t room)
{
    why[0] = '\0';
    while (*mine && *first) {
        int m = (int)strcspn(mine, "\n"), f = (int)strcspn(first, "\n");

        if (m != f || memcmp(mine, first, (size_t)m) != 0) {
            snprintf(why, room, "rank %d has %.*s, but rank 0 %.*s; start all ranks with the same options", rank, m, mine,
                     (int)strcspn(strchr(first, ' '), "\n") - 1, strchr(first, ' ') + 1);
            return;
        }
        mine += m + 1;
        first += f + 1;
    }
}

/* Gives all ranks the message about the lowest rank whose options differ from rank 0's. Collective. */
static ls_status ranks_check_options(const struct config *c, const struct ranks *r)
{
    enum { WHY_WORDS = 64 };
    int64_t why[WHY_WORDS] = { 0 };
    struct text mine = { 0 };
    double first = 0;

    LS_TRY(put_agreed(c, &mine));
    int64_t words = (int64_t)(mine.bytes / sizeof(int64_t));
    ls_status st = send_hidden(r->comm, &words, 1, 0);
    int64_t *theirs = st == LS_OK ? mem_array(MEM_OTHER, (size_t)words, sizeof *theirs) : NULL;
    if (st == LS_OK && !theirs) st = LS_ENOMEM;
    if (st == LS_OK && r->rank == 0) memcpy(theirs, mine.data, mine.bytes);
    if (st == LS_OK) st = send_hidden(r->comm, theirs, (size_t)words, 0);
    if (st == LS_OK) {
        compare_options(mine.data, (const char *)theirs, r->rank, (char *)why, sizeof why);
        if (why[0]) first = r->size - r->rank;
        st = operation_run(r->comm,
                           &(struct call_args){ .op = LS_COLLECTIVE_ALL_REDUCE,
                                                .send = &first,
                                                .recv = &first,
                                                .count = 1,
                                                .type = LS_F64,
                                                .redop = LS_MAX,
                                                .hidden = true },
                           NULL);
    }
    if (st == LS_OK && first > 0) {
        st = send_hidden(r->comm, why, WHY_WORDS, r->size - (int)first);
        if (st == LS_OK) st = ls_fail(LS_EINVAL, "%s", (const char *)why);
    }
    mem_free(theirs);
    text_free(&mine);
    return st;
}

/* ---- opening ---- */

static int color_of(void *unused, int rank)
{
    (void)unused;
    (void)rank;
    return 0;
}

/* The calls of a comm run one after another: what steps agree on would wait for gathers that overlap the next forward. */
static ls_status open_control(const ls_layout *l, struct ranks *r)
{
    r->control = r->comm;
    if (!layout_carries_gathers(l) || ls_mesh_comm(r->mesh, LS_GROUP_SHARD) != r->comm) return LS_OK;
    r->control = NULL;
    LS_TRY(comm_split_by(r->comm, color_of, NULL, &r->control));
    comm_name(r->control, "control");
    return LS_OK;
}

static ls_status open_on_device(const struct config *c, const struct world *w, const ls_layout *l, struct ranks *r)
{
    LS_TRY(rank_devices_compare(c, w, r)); /* first: what is chosen automatically, such as precision.compute, depends on the device */
    LS_TRY(ranks_check_options(c, r));
    LS_TRY(open_mesh(l, r));
    LS_TRY(open_control(l, r));
    return r->native ? mesh_open_native(r->mesh, device_find(config_device(c)), r->native, l->cp_method == LS_CP_ALL_TO_ALL) : LS_OK;
}

ls_status ranks_open(const struct config *c, struct ranks *out)
{
    struct ranks r = RANKS_ALONE;
    struct world world;
    ls_layout layout;

    LS_TRY(world_find(&world));
    LS_TRY(config_layout(c, &layout));
    if (world.size > 1) {
        if (c->launch.comm_table[0]) LS_TRY(algorithm_load_table(c->launch.comm_table));
        LS_TRY(comm_open_within(world.where, world.rank, world.size, c->launch.timeout, &r.comm));
        ls_comm_set_timeout(r.comm, c->launch.timeout);
        r.rank = world.rank;
        r.size = world.size;
        ls_status st = open_on_device(c, &world, &layout, &r);
        if (st < 0) {
            if (st == LS_EPEER) comm_fail(r.comm, st); /* a device has failed: the other ranks end with its line */
            ranks_close(&r);
            return st;
        }
    }
    *out = r;
    return LS_OK;
}

ls_status ranks_plan(const ls_layout *l, int rank, struct ranks *out)
{
    int n = (int)MIN(ls_layout_ranks(l), INT32_MAX); /* ls_mesh_open() refuses too many */
    struct ranks r = RANKS_ALONE;

    if (n > 1) {
        LS_TRY(ls_comm_open("plan:", rank, n, &r.comm));
        r.control = r.comm;
        r.rank = rank;
        r.size = n;
        ls_status st = open_mesh(l, &r);
        if (st < 0) {
            ranks_close(&r);
            return st;
        }
    }
    *out = r;
    return LS_OK;
}

void ranks_close(struct ranks *r)
{
    if (r->control != r->comm) ls_comm_close(&r->control);
    ls_mesh_close(&r->mesh);
    ls_comm_close(&r->comm);
    *r = (struct ranks)RANKS_ALONE;
}

void ranks_block(size_t count, int index, int n, size_t *begin, size_t *end)
{
    *begin = block_at(count, index, n);
    *end = block_at(count, index + 1, n);
}

void ranks_share(const struct ranks *r, size_t count, size_t *begin, size_t *end)
{
    int index = ls_mesh_index(r->mesh, LS_GROUP_DP), n = ls_mesh_size(r->mesh, LS_GROUP_DP);

    ranks_block(count, index, n, begin, end);
}

bool ranks_shard_model(const struct ranks *r) { return ls_mesh_size(r->mesh, LS_GROUP_DP) < r->size; }

bool ranks_counts(const struct ranks *r)
{
    return ls_mesh_index(r->mesh, LS_GROUP_PP) + ls_mesh_index(r->mesh, LS_GROUP_CP) + ls_mesh_index(r->mesh, LS_GROUP_TP) == 0;
}

ls_status ranks_sum(const struct ranks *r, double *x, size_t count)
{
    return r->comm ? ls_all_reduce(r->control, x, x, count, LS_F64, LS_SUM, NULL) : LS_OK;
}

ls_status ranks_sum_int(const struct ranks *r, int64_t *x, size_t count)
{
    return r->comm ? ls_all_reduce(r->control, x, x, count, LS_I64, LS_SUM, NULL) : LS_OK;
}

ls_status ranks_most(const struct ranks *r, double *x, size_t count)
{
    return r->comm ? ls_all_reduce(r->control, x, x, count, LS_F64, LS_MAX, NULL) : LS_OK;
}

ls_status ranks_agree(const struct ranks *r, ls_status st)
{
    int64_t status = st;

    if (!r->comm) return st;
    char why[1024];
    snprintf(why, sizeof why, "%s", st < 0 ? ls_errmsg() : "");
    ls_status sent = ls_broadcast(r->comm, &status, 1, LS_I64, 0, NULL);
    if (r->rank == 0 && st < 0) return ls_fail(st, "%s", why); /* also if a rank has exited since it received the status */
    LS_TRY(sent);
    if (r->rank == 0 || status >= 0) return st;
    return ls_fail((ls_status)status, "stopped by rank 0, which reports the cause");
}

ls_status ranks_settle(const struct ranks *r, ls_status st)
{
    double first = st < 0 ? r->size - r->rank : 0;
    int64_t status = st;

    if (!r->comm) return st;
    char why[1024];
    snprintf(why, sizeof why, "%s", st < 0 ? ls_errmsg() : "");
    ls_status sent = ranks_most(r, &first, 1);
    if (sent < 0 && st < 0) { /* its device has failed, so it cannot take part: the others end with its line */
        ls_fail(st, "%s", why);
        comm_fail(r->comm, st);
        return ls_fail(st, "%s", why);
    }
    if (sent < 0) return sent;
    if (first <= 0) return LS_OK;
    int failed = r->size - (int)first;
    sent = ls_broadcast(r->comm, &status, 1, LS_I64, failed, NULL);
    if (r->rank == failed) return ls_fail(st, "%s", why);
    return sent < 0 ? sent : ls_fail((ls_status)status, "stopped by rank %d, which reports the cause", failed);
}
