/* native.c - the groups of a device's library that belong to a comm: opened by all its ranks together, closed with it.
 *
 * The ids of the groups go over the comm itself. While a group is being opened its ranks are in a barrier of the comm, as the engine sees
 * it, so a rank that has died, is stopped or does not arrive is named as in any other call. Each rank ends its barrier itself: no rank
 * waits for one that is not in the group.
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

/* A group of which this rank holds an end, and where it is kept. */
struct native_end {
    const char *id;
    struct device_group_spec spec;
    struct device_group **group;
};

static struct native_end native_end_of(const ls_comm *c, const char *id, int rank, int n, enum device_group_kind kind)
{
    const struct native_spec *s = &c->native.spec;

    return (struct native_end){ .id = id, .spec = { .kind = kind, .rank = rank, .n = n, .share = s->share, .shares = s->shares } };
}

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

/* The next group of the comm; e NULL: this rank is not in it. The barrier is called once this rank has begun to open the group, so
 * a rank that never begins is reported as one that did not call the barrier. */
static ls_status group_open(ls_comm *c, const struct native_end *e)
{
    ls_status st = e ? c->native.table->open(e->id, &e->spec, e->group) : LS_OK;
    ls_work *w;

    if (st < 0) return engine_broken(c, st);
    LS_TRY(operation_native(c, &(struct call_args){ .op = LS_COLLECTIVE_BARRIER, .type = LS_U8, .hidden = true }, &w));
    ls_work *barrier = w;
    LS_TRY(operation_post_native(w));
    engine_show_wait(c, w);
    if (e) st = group_wait(c, *e->group, &barrier);
    engine_show_wait(c, NULL);
    if (!barrier) return st;
    engine_passed(w, st == LS_OK);
    return st < 0 ? st : ls_work_wait(&barrier);
}

/* The group for collectives; rank 0 made its id. */
static ls_status open_all(ls_comm *c, const char *ids)
{
    enum device_group_kind kind = c->native.spec.exchanges ? DEVICE_GROUP_EXCHANGES : DEVICE_GROUP_COLLECTIVES;
    struct native_end e = native_end_of(c, ids, c->rank, c->n, kind);

    e.group = &c->native.all;
    return group_open(c, &e);
}

/* ids: number r is that of the group for messages from rank r to r + step. All ranks open theirs in the order of these numbers. */
static ls_status open_messages(ls_comm *c, const char *ids)
{
    int step = (c->native.spec.step + c->n) % c->n, from = (c->rank - step + c->n) % c->n;

    for (int r = 0; r < c->n; r++) {
        struct native_end e = native_end_of(c, ids + (size_t)r * DEVICE_GROUP_ID, r != c->rank, 2, DEVICE_GROUP_MESSAGES);

        e.group = r == c->rank ? &c->native.out : &c->native.in;
        LS_TRY(group_open(c, r == c->rank || r == from ? &e : NULL));
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

ls_status comm_open_native(ls_comm *c, const struct device *d, const struct device_collectives *by, const struct native_spec *s)
{
    bool collectives = s->collectives || s->exchanges;
    char *ids;
    ls_status st = LS_OK;

    if (c->n == 1 || c->native.table) return LS_OK;
    LS_TRY(d->sync());
    if (!(ids = mem_zalloc(MEM_OTHER, (size_t)c->n * DEVICE_GROUP_ID))) return LS_ENOMEM;
    c->native.table = by;
    c->native.spec = *s;
    if (collectives) st = gather_ids(c, ids, c->rank == 0);
    if (st == LS_OK && collectives) st = open_all(c, ids);
    if (st == LS_OK && s->step) st = gather_ids(c, ids, true);
    if (st == LS_OK && s->step) st = open_messages(c, ids);
    mem_free(ids);
    return st;
}

/* ---- closing ---- */

/* True if a group is not finished, and its ranks are alive. */
static bool still_closing(ls_comm *c, struct device_group *const *groups, size_t n)
{
    bool busy = false;

    for (size_t k = 0; k < n; k++)
        if (groups[k] && c->native.table->finish(groups[k]) == LS_BUSY) busy = true;
    if (!busy) return false;
    engine_enter();
    ls_status st = c->transport->failed(c->link);
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
