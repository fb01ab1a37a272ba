/* launch.h - N ranks of this program on this machine: started, bound, watched, ended.
 *
 * The parent makes the shared segment, starts N children of itself (fork, exec, same arguments) and does nothing else than
 * watch. A child has RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (as torchrun sets them) and
 * LOCKSTEP_COMM (where to meet). Rank 0's standard output is the parent's; standard error of every rank comes back through a
 * pipe, and its lines appear as "[rank 2] line" and in RUN/log/rank_0002.err. A rank that ends in another way than exit 0 is
 * told to the others at once (segment_note_gone), who leave with exit code 3; whoever is still there after a second is killed.
 * SIGINT, SIGTERM, SIGUSR1 go on to the ranks (a second SIGINT or SIGTERM kills them). If the parent dies, so do they
 * (PR_SET_PDEATHSIG). Nothing is left behind: the segment has no name.
 */
#ifndef LS_TRAIN_LAUNCH_H
#define LS_TRAIN_LAUNCH_H

#include <stdbool.h>
#include "lockstep/status.h"

struct launch {
    int          ranks;
    char *const *argv;         /* of the children, argv[0] included; NULL at the end */
    const char  *log_folder;   /* for rank_NNNN.err; NULL: not kept */
    bool         bind;         /* each rank to its share of the cores */
};

/* Blocks until all ranks have ended. *code: 0, or that of the first failure: its exit code, 3 when it was killed. The line of
 * that failure is this thread's message. */
ls_status launch_run(const struct launch *l, int *code);

#endif
