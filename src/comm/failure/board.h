/* board.h - the status that a rank publishes: its last sign of progress, the call it waits in, and how far it has come in each group.
 *
 * There is one board per rank and world, stored where other ranks can read it (shared memory: in the rank's cell) or request a copy of it
 * (MPI: in a reply). Only the rank itself writes it. cause.c builds the wait graph (waits.h) from the boards of all ranks: the members of a
 * group are the ranks that have it on their board; a rank that waits in call number s of a group waits for the members that have not begun
 * call s.
 */
#ifndef LS_COMM_FAILURE_BOARD_H
#define LS_COMM_FAILURE_BOARD_H

#include <stdatomic.h>
#include "comm/failure/flight_recorder.h"

enum { BOARD_GROUPS = 32 }; /* a rank in more groups publishes only the first ones */

/* begun, done: number of the newest collective call that the rank has begun and finished in the group; group 0: this entry is free. */
struct board_group {
    _Atomic uint64_t group, begun, done;
};

struct board {
    _Atomic double alive;     /* base_now_coarse() of the last pulse (base/pulse.h); 0: never */
    _Atomic uint32_t turn;    /* sequence lock of waits and peer: odd while the rank writes them */
    struct call_record waits; /* the call that the main thread waits in; CALL_NONE: it is working */
    int32_t peer;             /* world rank of the other end of a send or receive; else -1 */
    struct board_group at[BOARD_GROUPS];
};

/* A copy of a board, as another rank reads it. */
struct board_seen {
    double alive;
    struct call_record waits;
    int32_t peer;
    struct {
        uint64_t group, begun, done;
    } at[BOARD_GROUPS];
};

/* Starts an empty board for this process. From now on pulses of the calling thread are recorded on it, unless the process already has
 * another board. With b = NULL all functions of this header are no-ops. */
void board_open(struct board *b);
void board_close(struct board *b);
int board_join(struct board *b, uint64_t group); /* returns the index of the entry; -1: all are in use, or b is NULL */
void board_leave(struct board *b, int place);
void board_begun(struct board *b, int place, uint64_t sequence); /* a no-op if place is -1 */
void board_done(struct board *b, int place, uint64_t sequence);
void board_wait(struct board *b, const struct call_record *r, int peer); /* r NULL: the thread no longer waits */

/* Copies a board that its rank may be writing at the same time. waits.state is CALL_NONE if the rank was suspended during a write. */
void board_copy(const struct board *b, struct board_seen *out);
/* Index of a group on a copy; -1: the rank is not a member of the group. */
int board_find(const struct board_seen *s, uint64_t group);

#endif
