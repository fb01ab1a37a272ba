/* store_gathers.c - gathers of updated parameters that outlive the run that starts them.
 *
 * An update starts the gather of a unit's values, and the next forward waits for it where it first reads one of them. In between any
 * program of the store may run, and the host may read or write values: a program that does not wait by itself (ls_program.carries), an
 * update, and every access of the host wait for all gathers first. A unit has at most one gather in flight.
 *
 * With streams the gather is enqueued on its comm's stream, followed by an event for which the compute stream waits. Joins of all streams
 * leave it out (stream_set_carry).
 */
#include "runtime/store_parts.h"

#include "base/base.h"
#include "comm/comm.h"
#include "device/device.h"

ls_status store_gather_prepare(ls_store *s, int unit)
{
    struct flat_unit *g = s->unit[unit];

    return s->where->immediate || g->gathered ? LS_OK : s->where->event_new(&g->gathered);
}

ls_status store_gather_start(ls_store *s, int unit, ls_comm *comm, struct device_stream *stream, const struct call_args *call)
{
    struct flat_unit *g = s->unit[unit];

    ASSERT(!g->gathering);
    if (s->where->immediate) {
        LS_TRY(operation_run(comm, call, &g->gather));
    } else {
        LS_TRY(comm_enqueue(comm, s->where, stream, call));
        LS_TRY(s->where->event_record(g->gathered, stream));
    }
    g->gathering = true;
    return LS_OK;
}

ls_status store_gather_wait(ls_store *s, int unit)
{
    struct flat_unit *g = s->unit[unit];
    struct set_stream *compute = &s->streams->stream[STREAM_COMPUTE];

    if (!g->gathering) return LS_OK;
    g->gathering = false;
    if (s->where->immediate) return ls_work_wait(&g->gather);
    compute->busy = true;
    return s->where->event_wait(g->gathered, compute->stream);
}

ls_status store_gathers_wait(ls_store *s)
{
    for (int g = 0; g < s->units; g++) LS_TRY(store_gather_wait(s, g));
    return LS_OK;
}

/* Waits for all, even if one fails: the comms own the buffers until then. Returns the first failure. */
ls_status ls_store_wait(const ls_store *s)
{
    ls_status first = LS_OK;
    bool any = false;

    for (int k = 0; k < s->units; k++) {
        struct flat_unit *g = s->unit[k];
        ls_status st = g->gathering && s->where->immediate ? ls_work_wait(&g->gather) : LS_OK;

        any = any || g->gathering;
        g->gathering = false;
        if (first == LS_OK) first = st;
    }
    return any && !s->where->immediate ? s->where->sync() : first;
}
