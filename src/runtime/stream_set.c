/* stream_set.c - see stream_set.h. */
#include "runtime/stream_set.h"

#include <stdio.h>
#include "base/base.h"

struct stream_key stream_key_of(const ls_comm *comm, ls_collective op, int peer)
{
    return (struct stream_key){ comm, op == LS_COLLECTIVE_SEND ? 1 + 2 * peer : op == LS_COLLECTIVE_RECV ? 2 + 2 * peer : 0 };
}

static ls_status stream_open(struct stream_set *s, struct stream_key key, bool apart)
{
    struct set_stream *grown = mem_resize(s->stream, ((size_t)s->n + 1) * sizeof *grown);
    char name[48];

    if (!grown) return LS_ENOMEM;
    s->stream = grown;
    struct set_stream *x = &s->stream[s->n];
    *x = (struct set_stream){ .key = key, .apart = apart };
    if (!key.comm)
        snprintf(name, sizeof name, "%s", key.lane == STREAM_COMPUTE ? "compute" : "copy");
    else
        snprintf(name, sizeof name, "communication %d%s", s->n - STREAM_FIRST_COMM, !key.lane ? "" : key.lane % 2 ? " send" : " receive");
    LS_TRY(s->device->stream_new(name, &x->stream));
    ls_status st = s->device->event_new(&x->end);
    if (st < 0) {
        s->device->stream_free(x->stream);
        return st;
    }
    s->n++;
    return LS_OK;
}

ls_status stream_set_new(const struct device *d, struct stream_set **out)
{
    struct stream_set *s = mem_zalloc(MEM_OTHER, sizeof *s);

    if (!s) return LS_ENOMEM;
    s->device = d;
    ls_status st = stream_open(s, (struct stream_key){ NULL, STREAM_COMPUTE }, false);
    if (st == LS_OK) st = stream_open(s, (struct stream_key){ NULL, STREAM_COPY }, false);
    if (st < 0)
        stream_set_free(s);
    else
        *out = s;
    return st;
}

void stream_set_free(struct stream_set *s)
{
    if (!s) return;
    s->device->sync();
    for (int k = 0; k < s->n; k++) {
        s->device->event_free(s->stream[k].end);
        s->device->stream_free(s->stream[k].stream);
    }
    mem_free(s->stream);
    mem_free(s);
}

ls_status stream_set_find(struct stream_set *s, struct stream_key key, bool apart, int *index)
{
    for (int k = 0; k < s->n; k++)
        if (s->stream[k].key.comm == key.comm && s->stream[k].key.lane == key.lane && s->stream[k].apart == apart) {
            *index = k;
            return LS_OK;
        }
    *index = s->n;
    return stream_open(s, key, apart);
}

/* The compute stream waits for all others, then they wait for it. */
ls_status stream_set_join(struct stream_set *s)
{
    const struct device *d = s->device;
    struct set_stream *compute = &s->stream[STREAM_COMPUTE];
    bool any = compute->busy;

    s->program = NULL;
    if (d->immediate) return LS_OK;
    for (int k = STREAM_COMPUTE + 1; k < s->n; k++) {
        struct set_stream *x = &s->stream[k];

        if (x->apart || !x->busy) continue;
        if (!x->marked) LS_TRY(d->event_record(x->end, x->stream));
        LS_TRY(d->event_wait(x->end, compute->stream));
        x->busy = false;
        any = true;
    }
    if (!any) return LS_OK;
    LS_TRY(d->event_record(compute->end, compute->stream));
    for (int k = STREAM_COMPUTE + 1; k < s->n; k++)
        if (!s->stream[k].apart) LS_TRY(d->event_wait(compute->end, s->stream[k].stream));
    compute->busy = false;
    return LS_OK;
}

ls_status stream_set_carry(struct stream_set *s, int index)
{
    struct set_stream *x = &s->stream[index];

    if (x->marked) return LS_OK;
    LS_TRY(s->device->event_record(x->end, x->stream));
    x->marked = true;
    return LS_OK;
}

ls_status stream_set_sync(struct stream_set *s)
{
    LS_TRY(stream_set_join(s));
    return s->device->stream_sync(s->stream[STREAM_COMPUTE].stream);
}
