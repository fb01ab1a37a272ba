/* ranks.h - the ranks of a training run, as one of them sees them.
 *
 * One rank alone has no comm and every function below is then a no-op that gives back what it was given. All others are
 * collective: every rank calls them in the same order.
 */
#ifndef LS_TRAIN_RUN_RANKS_H
#define LS_TRAIN_RUN_RANKS_H

#include "comm/comm.h"
#include "lockstep/mesh.h"
#include "train/config/config.h"

struct ranks {
    ls_comm *comm; /* "world"; NULL: one rank alone */
    ls_mesh *mesh; /* NULL: one rank alone */
    int rank, size;
};
#define RANKS_ALONE      \
    {                    \
        NULL, NULL, 0, 1 \
    }

/* Joins the others as the environment says. launch.timeout holds from here on, in every phase: see comm/failure/verdict.c. */
ls_status ranks_open(const struct config *c, struct ranks *out);
/* Rank `rank` of a layout's ranks, which don't exist: for plans. */
ls_status ranks_plan(const ls_layout *l, int rank, struct ranks *out);
void ranks_close(struct ranks *r);
/* True if ranks differ in more than their samples: the model itself is sharded. */
bool ranks_cut_model(const struct ranks *r);
/* True on the first of the ranks that have the same samples, which counts them. */
bool ranks_counts(const struct ranks *r);
/* This rank's share of `count` samples, divided as evenly as possible over dp: [begin, end). */
void ranks_share(const struct ranks *r, size_t count, size_t *begin, size_t *end);

ls_status ranks_sum(const struct ranks *r, double *x, size_t count); /* in place, over all ranks */
ls_status ranks_sum_int(const struct ranks *r, int64_t *x, size_t count);
ls_status ranks_most(const struct ranks *r, double *x, size_t count); /* the largest */
/* What rank 0 alone did ended with st: every rank gets that status; the others' message says that rank 0 explains it. */
ls_status ranks_agree(const struct ranks *r, ls_status st);
/* All ranks fail where one did: the lowest that failed keeps its status and message, the others have the status and a word on which that
 * was. Collective; nothing is allocated. */
ls_status ranks_settle(const struct ranks *r, ls_status st);

#endif
