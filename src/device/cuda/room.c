/* room.c - how many operations a stream may be given before its first ones have ended. See cuda.h. */
#include "device/cuda/cuda.h"

#include "base/pulse.h"

ls_status flight_event(cudaEvent_t *e)
{
    return *e ? LS_OK : cuda_check(cudaEventCreateWithFlags(e, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

ls_status flight_room(struct device_stream *s)
{
    unsigned mark = s->queued / MARK_EVERY % STREAM_MARKS;

    LS_TRY(cuda_failed());
    if (cuda.capturing) return graph_note(s);
    if (s->queued % 8 == 0) flights_move();
    if (s->queued++ % MARK_EVERY) return LS_OK;
    if (s->mark[mark]) LS_TRY(flights_wait(s->mark[mark]));
    LS_TRY(flight_event(&s->mark[mark]));
    pulse();
    return cuda_check(cudaEventRecord(s->mark[mark], s->handle), "cudaEventRecord");
}

ls_status flight_room_for(struct device_stream *s, unsigned operations)
{
    unsigned n = MIN(MAX(operations, 1u), (unsigned)MARK_EVERY), before_mark = (MARK_EVERY - s->queued % MARK_EVERY) % MARK_EVERY;

    if (n <= before_mark) {
        s->queued += n - 1;
        return flight_room(s);
    }
    s->queued += before_mark;
    LS_TRY(flight_room(s));
    s->queued += n - before_mark - 1;
    return LS_OK;
}
