/* board.c - writes this rank's board and copies the boards of other ranks. */
#include "comm/failure/board.h"

#include <string.h>
#include "base/base.h"
#include "base/pulse.h"

enum { TRIES = 100 };

void board_open(struct board *b)
{
    if (!b) return;
    memset(b, 0, sizeof *b);
    b->peer = -1;
    pulse_watch(&b->alive);
}

void board_close(struct board *b)
{
    if (b) pulse_unwatch(&b->alive);
}

int board_join(struct board *b, uint64_t group)
{
    for (int i = 0; b && group && i < BOARD_GROUPS; i++) {
        if (atomic_load(&b->at[i].group)) continue;
        atomic_store(&b->at[i].begun, 0);
        atomic_store(&b->at[i].done, 0);
        atomic_store(&b->at[i].group, group);
        return i;
    }
    return -1;
}

void board_leave(struct board *b, int place)
{
    if (b && place >= 0) atomic_store(&b->at[place].group, 0);
}

void board_begun(struct board *b, int place, uint64_t sequence)
{
    if (b && place >= 0) atomic_store_explicit(&b->at[place].begun, sequence, memory_order_release);
}

void board_done(struct board *b, int place, uint64_t sequence)
{
    if (b && place >= 0) atomic_store_explicit(&b->at[place].done, sequence, memory_order_release);
}

void board_wait(struct board *b, const struct call_record *r, int peer)
{
    if (!b) return;
    uint32_t turn = atomic_load_explicit(&b->turn, memory_order_relaxed);
    atomic_store_explicit(&b->turn, turn + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    if (r)
        b->waits = *r;
    else
        b->waits.state = CALL_NONE;
    b->peer = peer;
    atomic_store_explicit(&b->turn, turn + 2, memory_order_release);
}

void board_copy(const struct board *b, struct board_seen *out)
{
    *out = (struct board_seen){ .alive = atomic_load(&b->alive), .peer = -1 };
    for (int i = 0; i < BOARD_GROUPS; i++) {
        out->at[i].group = atomic_load(&b->at[i].group);
        out->at[i].begun = atomic_load_explicit(&b->at[i].begun, memory_order_acquire);
        out->at[i].done = atomic_load_explicit(&b->at[i].done, memory_order_acquire);
    }
    for (int tries = 0; tries < TRIES; tries++) {
        uint32_t turn = atomic_load_explicit(&b->turn, memory_order_acquire);
        struct call_record waits = b->waits;
        int32_t peer = b->peer;

        atomic_thread_fence(memory_order_acquire);
        if (turn % 2 || turn != atomic_load_explicit(&b->turn, memory_order_relaxed)) continue;
        out->waits = waits;
        out->peer = peer;
        return;
    }
}

int board_find(const struct board_seen *s, uint64_t group)
{
    for (int i = 0; i < BOARD_GROUPS; i++)
        if (s->at[i].group == group) return i;
    return -1;
}
