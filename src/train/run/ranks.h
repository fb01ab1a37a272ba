/* ranks.h - the ranks of a training run, as one of them sees them.
 *
 * A single rank has no comm; its sums, maxima and statuses are then its own. On several ranks the functions that communicate (ranks_sum()
 * and those below it) are collective: every rank calls them in the same order.
 */
#ifndef LS_TRAIN_RUN_RANKS_H
#define LS_TRAIN_RUN_RANKS_H

#include "comm/comm.h"
#include "lockstep/mesh.h"
#include "train/config/config.h"

struct ranks {
    ls_comm *comm;    /* "world"; NULL: a single rank */
    ls_comm *control; /* a comm of the same ranks for sums and maxima of a few numbers; comm itself, unless gathers of parameters are in
                         flight there */
    ls_mesh *mesh;    /* NULL: a single rank */
    int rank, size;
    const struct device_collectives *native; /* collectives of tensors on a GPU; NULL: they go through the host, or there is one rank */
    char collectives[240];     /* name of what runs collectives on GPUs: "NCCL 2.28.9", "through the host"; "": not on a GPU, or one rank */
    char collectives_why[640]; /* why the preferred one is not used; "": it is */
};
#define RANKS_ALONE                          \
    {                                        \
        NULL, NULL, NULL, 0, 1, NULL, "", "" \
    }

/* Connects this rank to the others, which it finds by the environment. launch.timeout applies from here on, in every phase: see
 * comm/failure/verdict.c. */
ls_status ranks_open(const struct config *c, struct ranks *out);
/* For plans: rank `rank` of a layout's ranks, which do not exist. */
ls_status ranks_plan(const ls_layout *l, int rank, struct ranks *out);
void ranks_close(struct ranks *r);
/* True if the model itself is sharded: ranks differ in more than their samples. */
bool ranks_shard_model(const struct ranks *r);
/* True on the first of the ranks with the same samples; it alone counts them. */
bool ranks_counts(const struct ranks *r);
/* Block `index` of `count` samples that are divided as evenly as possible into n blocks: [begin, end). */
void ranks_block(size_t count, int index, int n, size_t *begin, size_t *end);
/* This rank's share of `count` samples, divided as evenly as possible over dp: [begin, end). */
void ranks_share(const struct ranks *r, size_t count, size_t *begin, size_t *end);

ls_status ranks_sum(const struct ranks *r, double *x, size_t count); /* in place, over all ranks */
ls_status ranks_sum_int(const struct ranks *r, int64_t *x, size_t count);
ls_status ranks_most(const struct ranks *r, double *x, size_t count); /* the maximum, in place, over all ranks */
/* Every rank returns rank 0's st. If that is an error, the message of the others says that rank 0 reports the cause. */
ls_status ranks_agree(const struct ranks *r, ls_status st);
/* If any rank passes an error, all ranks return the error of the lowest such rank. That rank keeps its message; the message of the others
 * names that rank. Allocates nothing. */
ls_status ranks_settle(const struct ranks *r, ls_status st);

#endif
