/* board.h - what a rank shows of itself to the others: its last sign of progress, what it waits in, how far it is in each group.
 *
 * One board per rank and world; it lies where the transport's other ranks can read it (shared memory:
 * in the rank's cell) or get a copy of it (MPI: with an answer). The rank alone writes it. From the boards of all ranks the graph
 * of who waits for whom is built (waits.h): the members of a group are the ranks that have it on their board; a rank that waits
 * in call number s of a group lacks the members that have not begun call s.
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
    _Atomic double alive;     /* base_now() of the last pulse (base/pulse.h); 0: the rank shows nothing */
    _Atomic uint32_t turn;    /* of waits and peer: odd while they are written */
    struct call_record waits; /* the call that the main thread sleeps in; CALL_NONE: it works */
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

/* A board of this process, empty; its thread is witnessed from now on, unless the process has another board. NULL: no-ops. */
void board_open(struct board *b);
void board_close(struct board *b);
int board_join(struct board *b, uint64_t group); /* place of the group; -1: none is free, or there is no board */
void board_leave(struct board *b, int place);
void board_begun(struct board *b, int place, uint64_t sequence); /* place -1: no-ops */
void board_done(struct board *b, int place, uint64_t sequence);
void board_wait(struct board *b, const struct call_record *r, int peer); /* r NULL: it works again */

/* Copies a board that its rank may be writing. waits is CALL_NONE where the rank was stopped while it wrote. */
void board_copy(const struct board *b, struct board_seen *out);
/* The place of a group on a copy; -1 if the rank is not in that group. */
int board_find(const struct board_seen *s, uint64_t group);

#endif
