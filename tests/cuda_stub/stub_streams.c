/* stub_streams.c - streams and events of the stub: calls on a stream, or captured from it. See stub.h. */
#include "stub_graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "device/check.h"

static const struct device *const stub_streams_queue = &device_check;
static struct CUstream_st *streams;
static struct CUevent_st *events;

static cudaError_t stub_streams_ended(cudaError_t e) { return stub_set_last(e), e; }

/* A call of the checking device can only fail for lack of memory. */
static cudaError_t stub_streams_given(ls_status st) { return st < 0 ? stub_streams_ended(cudaErrorMemoryAllocation) : cudaSuccess; }

struct CUstream_st *stub_stream_of(cudaStream_t s, const char *call)
{
    struct CUstream_st *x = streams;

    while (x && x != s) x = x->next;
    if (!x) stub_die("%s: %p is not a stream; lockstep uses no default stream", call, (void *)s);
    if (!x->alive) stub_die("%s: the stream was destroyed", call);
    return x;
}

struct device_stream *stub_stream(cudaStream_t s, const char *call) { return stub_stream_of(s, call)->stream; }

struct CUstream_st *stub_streams(void) { return streams; }

static struct CUevent_st *event_of(cudaEvent_t e, const char *call)
{
    struct CUevent_st *x = events;

    while (x && x != e) x = x->next;
    if (!x) stub_die("%s: %p is not an event", call, (void *)e);
    if (!x->alive) stub_die("%s: the event was destroyed", call);
    return x;
}

/* An event that is queried. */
static struct CUevent_st *event_asked(cudaEvent_t e, const char *call)
{
    struct CUevent_st *x = event_of(e, call);

    if (x->capture) stub_die("%s: the event was last recorded in a capture (cudaErrorCapturedEvent)", call);
    return x;
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    cudaError_t e = stub_call("cudaStreamCreateWithFlags", false);
    struct CUstream_st *s;
    char name[32];
    static int made;

    stub_need_context("cudaStreamCreateWithFlags");
    if (e != cudaSuccess) return e;
    stub_wait_for_all("cudaStreamCreateWithFlags");
    if (flags != cudaStreamNonBlocking) stub_die("cudaStreamCreateWithFlags: flags %u", flags);
    snprintf(name, sizeof name, "stream %d", made++);
    if (!(s = calloc(1, sizeof *s)) || stub_streams_queue->stream_new(name, &s->stream) < 0)
        return free(s), stub_streams_ended(cudaErrorMemoryAllocation);
    s->alive = true;
    s->next = streams;
    streams = *out = s;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    struct device_stream *s = stub_stream(stream, "cudaStreamDestroy");
    cudaError_t e = stub_call("cudaStreamDestroy", false);

    if (e != cudaSuccess) return e;
    stub_wait_for_all("cudaStreamDestroy");
    stub_streams_queue->stream_free(s);
    stream->alive = false;
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    struct device_stream *s = stub_stream(stream, "cudaStreamQuery");
    cudaError_t e = stub_call("cudaStreamQuery", false);

    if (e == cudaSuccess && !check_poll(s, NULL)) e = cudaErrorNotReady;
    if (e == cudaSuccess) stream->ended = stream->given;
    return stub_fails() != cudaSuccess ? stub_fails() : e;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    struct CUstream_st *s = stub_stream_of(stream, "cudaStreamWaitEvent");
    struct CUevent_st *x = event_of(event, "cudaStreamWaitEvent");
    cudaError_t e = stub_call("cudaStreamWaitEvent", false);

    if (flags != cudaEventWaitDefault && flags != cudaEventWaitExternal) stub_die("cudaStreamWaitEvent: flags %u", flags);
    if (e != cudaSuccess || stub_capture_wait(s, x, flags == cudaEventWaitExternal)) return e;
    return x->recorded ? stub_streams_given(stub_streams_queue->event_wait(x->event, s->stream)) : e;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    cudaError_t e = stub_call("cudaEventCreateWithFlags", false);
    struct CUevent_st *x;

    stub_need_context("cudaEventCreateWithFlags");
    if (e != cudaSuccess) return e;
    if (flags != cudaEventDisableTiming && flags != cudaEventDefault) stub_die("cudaEventCreateWithFlags: flags %u", flags);
    if (!(x = calloc(1, sizeof *x)) || stub_streams_queue->event_new(&x->event) < 0)
        return free(x), stub_streams_ended(cudaErrorMemoryAllocation);
    x->alive = true;
    x->timed = flags == cudaEventDefault;
    x->next = events;
    events = *out = x;
    return cudaSuccess;
}

/* Streams may still name it: the checking device's event stays. */
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    struct CUevent_st *x = event_of(event, "cudaEventDestroy");
    cudaError_t e = stub_call("cudaEventDestroy", false);

    if (e == cudaSuccess) x->alive = false;
    return e;
}

static cudaError_t record(const char *call, cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    struct CUstream_st *s = stub_stream_of(stream, call);
    struct CUevent_st *x = event_of(event, call);
    cudaError_t e = stub_call(call, false);

    if (flags != cudaEventRecordDefault && flags != cudaEventRecordExternal) stub_die("%s: flags %u", call, flags);
    if (e != cudaSuccess || stub_capture_record(s, x, flags == cudaEventRecordExternal)) return e;
    x->recorded = true;
    x->stream = s;
    x->given = s->given;
    x->at = stub_time_passes(0);
    return stub_streams_given(stub_streams_queue->event_record(x->event, s->stream));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return record("cudaEventRecord", event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    return record("cudaEventRecordWithFlags", event, stream, flags);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t e = stub_call("cudaEventQuery", false);
    struct CUevent_st *x = event_asked(event, "cudaEventQuery");

    if (e == cudaSuccess && !check_poll(NULL, x->event)) e = cudaErrorNotReady;
    if (e == cudaSuccess && x->stream) x->stream->ended = MAX(x->stream->ended, x->given);
    return stub_fails() != cudaSuccess ? stub_fails() : e;
}

uint64_t stub_time_passes(unsigned microseconds)
{
    static uint64_t now;

    return now += microseconds;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end)
{
    cudaError_t e = stub_call("cudaEventElapsedTime", false);
    struct CUevent_st *from = event_asked(begin, "cudaEventElapsedTime"), *to = event_asked(end, "cudaEventElapsedTime");

    if (!from->timed || !to->timed) stub_die("cudaEventElapsedTime: an event was made with cudaEventDisableTiming");
    if (!from->recorded || !to->recorded) stub_die("cudaEventElapsedTime: an event was not recorded");
    if (e == cudaSuccess && !(check_poll(NULL, from->event) && check_poll(NULL, to->event))) return cudaErrorNotReady;
    *milliseconds = (float)(to->at - from->at) / 1000;
    return e;
}
