/* cause.h - the state of all ranks as seen by a rank whose operation has stalled, and the root cause of the wait. */
#ifndef LS_COMM_FAILURE_CAUSE_H
#define LS_COMM_FAILURE_CAUSE_H

#include "comm/failure/board.h"
#include "comm/engine/engine.h"
#include "comm/failure/waits.h"

struct scene {
    ls_comm *comm;
    const ls_work *work;
    int n, me; /* ranks of the world */
    double now;
    struct board_seen *seen; /* [n + 1]; the last is of `work` itself, which this rank's main thread may not be waiting for */
    struct waits_node *node; /* [n + 1] */
    int *path, *room;        /* [n + 1], [2 * (n + 1)] */
    struct cause cause;      /* its path, in path, begins with n */
};

ls_status scene_open(ls_comm *c, const ls_work *w, double now, struct scene *out);
void scene_close(struct scene *s);
/* True if the call that rank `from` waits in is missing rank `to`; ranks of the world, and n for `work`. */
bool scene_lacks(const struct scene *s, int from, int to);
/* State of a rank in a collective call: 0 not entered, 1 in it, 2 done; -1: not a member, or unknown. */
int scene_stands(const struct scene *s, int rank, const struct signature *call);
bool is_message(int op);

#endif
