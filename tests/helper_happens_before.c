/* helper_happens_before.c */
#include "helper_happens_before.h"

#include <stdlib.h>
#include "helper_ranks.h"
#include "base/base.h"

/* ---- the record ---- */

static int history_find(const void **known, int *n, int most, const void *x)
{
    int k = 0;

    if (!x)
        return -1;
    while (k < *n && known[k] != x)
        k++;
    RANKS_CHECK(k < most);
    if (k == *n)
        known[(*n)++] = x;
    return k;
}

static void *history_grow(void *at, int n, int *room, size_t each)
{
    if (n < *room)
        return at;
    *room = *room ? 2 * *room : 1024;
    at = realloc(at, (size_t)*room * each);
    RANKS_CHECK(at);
    return at;
}

bool history_note(void *ctx, const struct check_action *a)
{
    struct history *h = ctx;
    struct happening x = { .kind = a->kind, .first_access = h->accesses, .implied = a->implied };

    x.stream = history_find((const void **)h->stream, &h->streams, CHECK_STREAMS, a->stream);
    x.event = history_find((const void **)h->event, &h->events, HISTORY_EVENTS, a->event);
    for (int k = 0; a->operation && k < a->operation->accesses; k++, x.accesses++) {
        h->access = history_grow(h->access, h->accesses, &h->access_room, sizeof *h->access);
        h->access[h->accesses++] = a->operation->access[k];
    }
    h->at = history_grow(h->at, h->n, &h->room, sizeof *h->at);
    h->at[h->n++] = x;
    return true;
}

void history_free(struct history *h)
{
    free(h->at);
    free(h->access);
    free(h->conflict);
    *h = (struct history){ 0 };
}

/* ---- conflicts ---- */

static bool history_conflict(const struct history *h, const struct happening *x, const struct happening *y)
{
    for (int a = x->first_access; a < x->first_access + x->accesses; a++)
        for (int b = y->first_access; b < y->first_access + y->accesses; b++) {
            const struct device_access *p = &h->access[a], *q = &h->access[b];

            if ((p->write || q->write) && (const char *)p->data < (const char *)q->data + q->bytes &&
                (const char *)q->data < (const char *)p->data + p->bytes)
                return true;
        }
    return false;
}

void history_find_conflicts(struct history *h)
{
    for (int later = 0; later < h->n; later++)
        for (int earlier = 0; earlier < later; earlier++) {
            if (h->at[earlier].stream == h->at[later].stream || !history_conflict(h, &h->at[earlier], &h->at[later]))
                continue;
            h->conflict = history_grow(h->conflict, h->conflicts, &h->conflict_room, sizeof *h->conflict);
            h->conflict[h->conflicts++] = (struct conflict){ earlier, later };
        }
}

/* ---- clocks ---- */

/* of[t]: 1 + the last operation of stream t that comes before. */
struct moment { int of[CHECK_STREAMS]; };
struct clocks { struct moment stream[CHECK_STREAMS], event[HISTORY_EVENTS], host; };

static void moment_merge(struct moment *to, const struct moment *from)
{
    for (int t = 0; t < CHECK_STREAMS; t++)
        to->of[t] = MAX(to->of[t], from->of[t]);
}

static bool moment_covers(const struct moment *m, const struct moment *what)
{
    for (int t = 0; t < CHECK_STREAMS; t++)
        if (what->of[t] > m->of[t])
            return false;
    return true;
}

static void clocks_host_waits(struct clocks *c, const struct history *h, const struct happening *x)
{
    for (int s = 0; s < h->streams; s++)
        if (x->event < 0 && (x->stream < 0 || x->stream == s))
            moment_merge(&c->host, &c->stream[s]);
    if (x->event >= 0)
        moment_merge(&c->host, &c->event[x->event]);
}

/* Applies record i to the clocks. */
static void clocks_go(struct clocks *c, const struct history *h, int i)
{
    const struct happening *x = &h->at[i];

    if (x->kind == CHECK_HOST_WAIT) {
        clocks_host_waits(c, h, x);
        return;
    }
    moment_merge(&c->stream[x->stream], &c->host);
    if (x->kind == CHECK_OPERATION)
        c->stream[x->stream].of[x->stream] = i + 1;
    else if (x->kind == CHECK_RECORD)
        c->event[x->event] = c->stream[x->stream];
    else
        moment_merge(&c->stream[x->stream], &c->event[x->event]);
}

bool history_is_ordered(const struct history *h, int without)
{
    static struct clocks c;
    int k = 0;

    c = (struct clocks){ 0 };
    for (int i = 0; i < h->n; i++) {
        if (i != without)
            clocks_go(&c, h, i);
        for (; k < h->conflicts && h->conflict[k].later == i; k++)
            if (c.stream[h->at[i].stream].of[h->at[h->conflict[k].earlier].stream] <= h->conflict[k].earlier)
                return false;
    }
    return true;
}

bool history_implies(const struct history *h, int k)
{
    static struct clocks c;

    c = (struct clocks){ 0 };
    for (int i = 0; i < k; i++)
        clocks_go(&c, h, i);
    moment_merge(&c.stream[h->at[k].stream], &c.host);
    return moment_covers(&c.stream[h->at[k].stream], &c.event[h->at[k].event]);
}
