/* helper_happens_before.h - the order of operations on the checking device's streams, computed from a record of what the host enqueued
 * and waited for, with clocks of its own, over all pairs that touch the same bytes, for comparison with the device's verdict.
 */
#ifndef HELPER_HAPPENS_BEFORE_H
#define HELPER_HAPPENS_BEFORE_H

#include "device/check.h"

enum { HISTORY_EVENTS = 1000 };

/* Streams and events by the order in which they appear; -1: none. */
struct happening { enum check_kind kind; int stream, event, first_access, accesses; bool implied; };
/* Operation `later` touches bytes that `earlier`, of another stream, touches, and one of them writes. */
struct conflict { int earlier, later; };

struct history {
    struct happening *at;
    int n, room;
    struct device_access *access;
    int accesses, access_room;
    const struct device_stream *stream[CHECK_STREAMS];
    const struct device_event *event[HISTORY_EVENTS];
    int streams, events;
    struct conflict *conflict;
    int conflicts, conflict_room;
};

/* A check_action_fn: ctx is a zeroed history. It begins when the host has waited for all streams. */
bool history_note(void *ctx, const struct check_action *a);
void history_find_conflicts(struct history *h);
/* True if the operations of every conflict are in order when wait `without` (its place in at[]; -1: none) is not made. */
bool history_is_ordered(const struct history *h, int without);
/* True if everything that wait `k` waits for comes before anyway. */
bool history_implies(const struct history *h, int k);
void history_free(struct history *h);

#endif
