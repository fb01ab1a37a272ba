/* stream_set.h - the streams of a store's device: all programs of a store share them.
 *
 * Stream 0 computes, stream 1 copies optimizer state to and from where it is offloaded; each comm has one for its collectives and one for
 * the messages to, and one for those from, each peer: the order of calls on a comm is the order of its stream, and a message that is
 * waited for holds up no other. On an immediate device all of them are null and nothing here does anything.
 */
#ifndef LS_RUNTIME_STREAM_SET_H
#define LS_RUNTIME_STREAM_SET_H

#include "device/device.h"
#include "lockstep/comm.h"

enum { STREAM_COMPUTE, STREAM_COPY, STREAM_FIRST_COMM };

/* Whose calls a stream takes. comm NULL: lane is STREAM_COMPUTE or STREAM_COPY. */
struct stream_key {
    const ls_comm *comm;
    int lane;
};
struct stream_key stream_key_of(const ls_comm *comm, ls_collective op, int peer);

struct set_stream {
    struct stream_key key;
    struct device_stream *stream;
    struct device_event *end; /* the end of what was given to it before the last join */
    bool busy;                /* it was given something since */
    bool marked;              /* `end` has been recorded; what was given to it since is left out of joins */
    bool apart;               /* its user orders it */
};

struct stream_set {
    const struct device *device;
    struct set_stream *stream;
    int n;
    /* the run that joined last: of which program, up to which segment, in the last micro-batch of a step or not */
    const void *program;
    int segment;
    bool last;
};

ls_status stream_set_new(const struct device *d, struct stream_set **out);
void stream_set_free(struct stream_set *s); /* NULL is a no-op */
/* The index of the stream for that key, made if there is none. apart: joins leave it alone. */
ls_status stream_set_find(struct stream_set *s, struct stream_key key, bool apart, int *index);
/* What is given to any stream from here on runs after all that was given to any stream. */
ls_status stream_set_join(struct stream_set *s);
/* What the stream is given next is left out of joins; its user waits for it. */
ls_status stream_set_carry(struct stream_set *s, int index);
/* The host waits for all that any stream, those apart aside, was given. */
ls_status stream_set_sync(struct stream_set *s);

#endif
