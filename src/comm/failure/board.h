/* board.h - the status that a rank shows to the others: its last sign of progress, the call it waits in, its position in each group.
 *
 * There is one board per rank and world, stored where other ranks can read it (shared memory: in the rank's cell) or get a copy of it (MPI:
 * with an answer). Only the rank itself writes it. From the boards of all ranks the graph of who waits for whom is built (waits.h): the
 * members of a group are the ranks that have it on their board; a rank that waits in call number s of a group waits for the members that
 * have not begun call s.
 */
#ifndef LS_COMM_FAILURE_BOARD_H
#define LS_COMM_FAILURE_BOARD_H

#include <stdatomic.h>
#include "comm/failure/flight_recorder.h"

enum { BOARD_GROUPS = 32 }; /* a rank in more groups than these shows the first ones */

struct board_group {
    _Atomic uint64_t group, begun, done;
}; /* numbers of collective calls; group 0: free */

struct board {
    _Atomic double alive;     /* base_now() of the last pulse (base/pulse.h); 0: never */
    _Atomic uint32_t turn;    /* of waits and peer: odd while they are written */
    struct call_record waits; /* the call that the main thread waits in; CALL_NONE: it is working */
    int32_t peer;             /* of a send or receive: rank in the world; else -1 */
    struct board_group at[BOARD_GROUPS];
};

/* A copy. */
struct board_seen {
    double alive;
    struct call_record waits;
    int32_t peer;
    struct {
        uint64_t group, begun, done;
    } at[BOARD_GROUPS];
};

/* Starts an empty board of this process; the calling thread is watched from now on, unless the process has another board. For NULL, all
 * functions are no-ops. */
void board_open(struct board *b);
void board_close(struct board *b);
int board_join(struct board *b, uint64_t group); /* index of the group; -1: none is free, or there is no board */
void board_leave(struct board *b, int place);
void board_begun(struct board *b, int place, uint64_t sequence); /* place -1: no-ops */
void board_done(struct board *b, int place, uint64_t sequence);
void board_wait(struct board *b, const struct call_record *r, int peer); /* r NULL: the thread is working again */

/* Copies a board while its rank may be writing it. waits is CALL_NONE if the rank was stopped while it wrote. */
void board_copy(const struct board *b, struct board_seen *out);
/* The index of a group on a copy; -1 if the rank is not in that group. */
int board_find(const struct board_seen *s, uint64_t group);

#endif
