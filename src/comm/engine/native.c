/* native.c - the groups of a device's library that belong to a comm: opened by all its ranks together, closed with it.
 *
 * The ids of the groups go over the comm itself. While a group is being opened the ranks are in a barrier of the comm, as the engine sees
 * it, so a rank that has died, is stopped or does not come is named as in any other call.
 */
#include "comm/engine/engine.h"

#include <string.h>
#include <time.h>
#include "base/mem.h"
#include "device/collectives.h"

static void native_nap(void)
{
    static const struct timespec moment = { .tv_nsec = 100000 };

    nanosleep(&moment, NULL);
}

/* ---- opening ---- */

static ls_status group_wait(ls_comm *c, struct device_group *g, ls_work **barrier)
{
    ls_status st;

    while ((st = c->native.table->opened(g)) == LS_BUSY) {
        ls_status watched = engine_ask(barrier);

        if (watched < 0) return watched;
        native_nap();
    }
    return st < 0 ? engine_broken(c, st) : LS_OK;
}

static ls_status group_open(ls_comm *c, const char *id, int rank, int n, bool messages, struct device_group **out, ls_work **barrier)
{
    ls_status st = c->native.table->open(id, rank, n, messages, out);

    return st < 0 ? engine_broken(c, st) : group_wait(c, *out, barrier);
}

typedef ls_status native_open_fn(ls_comm *c, const char *ids, ls_work **barrier);

/* The group for collectives; rank 0 made its id. */
static ls_status open_all(ls_comm *c, const char *ids, ls_work **barrier)
{
    return group_open(c, ids, c->rank, c->n, false, &c->native.all, barrier);
}

/* ids: number r is that of the group for messages from rank r to r + step. All ranks open theirs in the order of these numbers. */
static ls_status open_messages(ls_comm *c, const char *ids, ls_work **barrier)
{
    int step = (c->native.step + c->n) % c->n, from = (c->rank - step + c->n) % c->n;

    for (int r = 0; r < c->n; r++) {
        const char *id = ids + (size_t)r * DEVICE_GROUP_ID;

        if (r == c->rank) LS_TRY(group_open(c, id, 0, 2, true, &c->native.out, barrier));
        if (r == from) LS_TRY(group_open(c, id, 1, 2, true, &c->native.in, barrier));
    }
    return LS_OK;
}

/* Every rank's id[DEVICE_GROUP_ID] to every rank. */
static ls_status gather_ids(ls_comm *c, char *ids, bool make)
{
    char *own = ids + (size_t)c->rank * DEVICE_GROUP_ID;
    ls_status st = make ? c->native.table->id(own) : LS_OK;

    if (st < 0) return engine_broken(c, st);
    return operation_run(
        c,
        &(struct call_args){
            .op = LS_COLLECTIVE_ALL_GATHER, .send = own, .recv = ids, .count = DEVICE_GROUP_ID, .type = LS_U8, .hidden = true },
        NULL);
}

/* Within a barrier of the comm. */
static ls_status native_open(ls_comm *c, char *ids, bool make, native_open_fn *open)
{
    ls_work *barrier = NULL, *w;
    ls_status st;

    LS_TRY(gather_ids(c, ids, make));
    LS_TRY(operation_native(c, &(struct call_args){ .op = LS_COLLECTIVE_BARRIER, .type = LS_U8, .hidden = true }, &w));
    barrier = w;
    LS_TRY(operation_post_native(w));
    engine_show_wait(w, true);
    st = open(c, ids, &barrier);
    engine_show_wait(w, false);
    if (!barrier) return st;
    engine_passed(w, st == LS_OK);
    return st < 0 ? st : ls_work_wait(&barrier);
}

ls_status comm_open_native(ls_comm *c, const struct device *d, int step)
{
    char *ids;
    ls_status st;

    if (c->n == 1 || !d->collectives || c->native.table) return LS_OK;
    LS_TRY(d->sync());
    if (!(ids = mem_zalloc(MEM_OTHER, (size_t)c->n * DEVICE_GROUP_ID))) return LS_ENOMEM;
    c->native.table = d->collectives;
    c->native.step = step;
    st = native_open(c, ids, c->rank == 0, open_all);
    if (st == LS_OK && step) st = native_open(c, ids, true, open_messages);
    mem_free(ids);
    return st;
}

/* ---- closing ---- */

/* True: a group is not finished, and its ranks are alive. */
static bool still_closing(ls_comm *c, struct device_group *const *groups, size_t n)
{
    bool busy = false;
    ls_status st;

    for (size_t k = 0; k < n; k++)
        if (groups[k] && c->native.table->finish(groups[k]) == LS_BUSY) busy = true;
    if (!busy) return false;
    engine_enter();
    st = c->transport->failed(c->link);
    if (st == LS_OK) st = c->transport->idle(c->link, 0);
    engine_leave();
    return st == LS_OK;
}

/* All ranks close their groups together: what fails, or takes longer than the comm's timeout, is aborted. */
void native_close(ls_comm *c)
{
    struct device_group *groups[] = { c->native.out, c->native.in, c->native.all };
    double began = base_now();

    if (!c->native.table) return;
    while (still_closing(c, groups, COUNT_OF(groups)) && base_now() - began < c->timeout) native_nap();
    for (size_t k = 0; k < COUNT_OF(groups); k++) c->native.table->close(groups[k]);
    c->native = (struct native){ 0 };
}
