/* alg.h - shared by the algorithms: blocks and chunks as spans, short calls that append steps, and the make functions. */
#ifndef LS_COMM_ALGORITHMS_ALG_H
#define LS_COMM_ALGORITHMS_ALG_H

#include "comm/algorithms/steps.h"

static inline int rank_at(int i, int n) { return (i % n + n) % n; }

/* Block i (mod n) of the big buffer, which is `in`. */
static inline struct span span_block(const struct shape_of_call *c, enum place in, int i)
{
    int b = rank_at(i, c->n);

    return (struct span){ in, c->at[b], c->at[b + 1] - c->at[b] };
}

/* Elements [at, at + len) of s, truncated at the end of s. */
static inline struct span span_part(struct span s, size_t at, size_t len)
{
    size_t lo = at < s.len ? at : s.len, left = s.len - lo;

    return (struct span){ s.in, s.at + lo, len < left ? len : left };
}

static inline struct span span_none(void) { return (struct span){ IN_SEND, 0, 0 }; }

/* One exchange: out to `to`, in from `from`; -1 for none. */
ls_status steps_copy(struct step_list *l, int to, struct span out, int from, struct span in);
ls_status steps_reduce(struct step_list *l, int to, struct span out, int from, struct span in, bool done);
ls_status steps_local(struct step_list *l, struct span out, struct span in, bool done);
ls_status steps_local_reduce(struct step_list *l, struct span out, struct span in, bool done);
size_t steps_chunks(const struct shape_of_call *c); /* chunks of the largest block; at least 1 */
size_t steps_chunk(const struct shape_of_call *c);  /* elements per chunk; at least 1 */

/* alg_ring.c */
ls_status ring_all_reduce(const struct shape_of_call *c, struct step_list *l);
ls_status ring_reduce_scatter(const struct shape_of_call *c, struct step_list *l);
ls_status ring_all_gather(const struct shape_of_call *c, struct step_list *l);
/* alg_halving.c */
ls_status halving_all_reduce(const struct shape_of_call *c, struct step_list *l);
ls_status halving_reduce_scatter(const struct shape_of_call *c, struct step_list *l);
ls_status doubling_all_gather(const struct shape_of_call *c, struct step_list *l);
/* alg_tree.c */
ls_status tree_all_reduce(const struct shape_of_call *c, struct step_list *l);
ls_status tree_broadcast(const struct shape_of_call *c, struct step_list *l);
/* alg_direct.c */
ls_status direct_all_reduce(const struct shape_of_call *c, struct step_list *l);
ls_status direct_reduce_scatter(const struct shape_of_call *c, struct step_list *l);
ls_status direct_all_gather(const struct shape_of_call *c, struct step_list *l);
ls_status direct_broadcast(const struct shape_of_call *c, struct step_list *l);
/* alg_scatter.c */
ls_status scatter_broadcast(const struct shape_of_call *c, struct step_list *l);
ls_status chain_broadcast(const struct shape_of_call *c, struct step_list *l);
/* alg_pairwise.c */
ls_status pairwise_all_to_all(const struct shape_of_call *c, struct step_list *l);
ls_status dissemination_barrier(const struct shape_of_call *c, struct step_list *l);
/* alg_central.c */
ls_status central_all_reduce(const struct shape_of_call *c, struct step_list *l);

#endif
