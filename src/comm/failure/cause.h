/* cause.h - the state of all ranks as seen by a rank whose operation has stalled, and the root cause of the stall. */
#ifndef LS_COMM_FAILURE_CAUSE_H
#define LS_COMM_FAILURE_CAUSE_H

#include "comm/failure/board.h"
#include "comm/engine/engine.h"
#include "comm/failure/waits.h"

struct scene {
    ls_comm *comm;
    const ls_work *work;
    int n, me; /* world size; this process's rank */
    double now;
    struct board_seen *seen; /* [n + 1]; entry n is `work` itself, since this rank's main thread may be waiting for something else */
    struct waits_node *node; /* [n + 1] */
    int *path, *scratch;     /* [n + 1], [2 * (n + 1)] */
    struct cause cause;      /* its path is in `path` and begins with n */
};

ls_status scene_open(ls_comm *c, const ls_work *w, double now, struct scene *out);
void scene_close(struct scene *s);
/* True if rank `from` waits in a call that rank `to` has not made. Both are world ranks; n stands for `work`. */
bool scene_waits_for(const struct scene *s, int from, int to);
/* How far a rank has come with a collective call. UNKNOWN: it is not a member of the group, or has not published the group. */
enum call_position { POSITION_UNKNOWN = -1, POSITION_BEFORE, POSITION_INSIDE, POSITION_AFTER };
enum call_position scene_position(const struct scene *s, int rank, const struct signature *call);
bool is_message(int op);
/* A rank that works may be quiet for so many timeouts while its main thread is blocked in the kernel: its storage may be slow. */
enum { BLOCKED_TIMES = 10 };
bool scene_stays_blocked(const struct scene *s, int rank); /* it is blocked, and has been quiet for longer than that */

#endif
