/* prices.h - the price of a layout, put together from patterns (patterns.h), for searches over many layouts of one model.
 *
 * A price depends on the patterns of (tp, sp, cp, ep, zero, recomputation), of which there are few. What a pattern takes in one place of
 * the cluster and the schedules are kept, so once they are known a price takes about 10 us (bench/prices.c). Compared with
 * step_seconds_of() and plan_of_largest(), which compile every program of the layout: bytes are the same but for the rounding of shards and
 * what is not the step's own (plan_bytes.other); seconds differ where a collective crosses more than three blocks or the loss has more
 * chunks with more samples, and the norm's collective counts for each chunk of a rank. test_prices compares them.
 */
#ifndef LS_TRAIN_PLAN_PRICES_H
#define LS_TRAIN_PLAN_PRICES_H

#include "train/plan/step_seconds.h"

struct prices;

/* Borrows job and cluster. The model is a transformer. seq_len: that of all layouts. */
ls_status prices_open(const struct plan_job *j, const struct cluster *c, int seq_len, struct prices **out);
void prices_close(struct prices **p);
int prices_compiled(const struct prices *p); /* programs so far */

struct price {
    double bytes;   /* of the rank that holds the most */
    double host;    /* of the rank that offloads the most to its host, where that memory is apart */
    double seconds; /* of a step; INFINITY if it was not computed, because the layout does not fit */
    bool bounded;   /* seconds is only a lower bound, which is already more than was asked for */
};
/* room: bytes of a rank; a layout that needs more is not timed. most: a layout whose busiest stage alone takes longer is not played. Both
 * may be INFINITY. The layout has passed ls_layout_check(), but for its stages, which may have no blocks. Whether the host has room is not
 * asked. */
ls_status prices_price(struct prices *p, const ls_layout *l, double room, double most, struct price *out);
/* Only the bytes; 0: they are not known without compiling programs. */
ls_status prices_bytes_if_made(struct prices *p, const ls_layout *l, double *bytes);

/* What a step takes and a rank holds at least, from the patterns of the same layout without dp, which its ZeRO stages, replicas and offload
 * have in common. Seconds: the kernels of the stages, the communication over tp, cp and ep that they wait for, and that the first and the
 * last micro-batch pass the stages one after the other. Bytes: activations, and an even share of what is sharded, but for what is
 * offloaded. */
ls_status prices_least(struct prices *p, const ls_layout *l, struct price *out);

/* Seconds of a micro-batch in one block: kernels, and the communication over tp, cp and ep that they wait for. Whatever dp, pp, zero and
 * the schedule are, a stage with k blocks is busy at least k times as long with a micro-batch. */
struct block_seconds {
    double forward, all;
    double ends; /* of what precedes and follows the blocks: embedding, head, loss */
};
ls_status prices_block(struct prices *p, const ls_layout *l, struct block_seconds *out);

#endif
