/* prices.h - the price of a layout, put together from patterns (patterns.h), for searches over many layouts of one model.
 *
 * A price depends on the patterns of (tp, sp, cp, ep, zero, recomputation), of which there are few. Times of patterns in places of the
 * cluster, and schedules, are cached, so once they are known a price takes about 10 us (bench/prices.c). Compared with step_seconds_of()
 * and plan_of_largest(), which compile every program of the layout: bytes are the same except for the rounding of shards and everything
 * outside the step (plan_bytes.other); seconds differ where a collective crosses more than three blocks or the loss has more chunks with
 * more samples, and the norm's collective counts for each chunk of a rank. test_prices compares them.
 */
#ifndef LS_TRAIN_PLAN_PRICES_H
#define LS_TRAIN_PLAN_PRICES_H

#include "train/plan/step_seconds.h"

struct prices;

/* Borrows job and cluster. The model is a transformer. seq_len: the sequence length of all layouts. */
ls_status prices_open(const struct plan_job *j, const struct cluster *c, int seq_len, struct prices **out);
void prices_close(struct prices **p);
int prices_compiled(const struct prices *p); /* programs compiled so far */

struct price {
    double bytes;   /* bytes of the rank that holds the most */
    double host;    /* bytes of the rank that offloads the most to its host, if that has memory of its own */
    double seconds; /* seconds of a step; INFINITY: not computed, because the layout does not fit */
    bool bounded;   /* seconds is only a lower bound, which already exceeds `most` */
};
/* room: bytes of a rank; a layout that needs more is not timed. most: seconds; a layout whose busiest stage alone takes longer is not
 * played. Both may be INFINITY. The layout has passed ls_layout_check(), except that its stages may have no blocks. Room in the host's
 * memory is not checked. */
ls_status prices_price(struct prices *p, const ls_layout *l, double room, double most, struct price *out);
/* Only the bytes; 0: they cannot be computed without compiling programs. */
ls_status prices_bytes_if_made(struct prices *p, const ls_layout *l, double *bytes);

/* Lower bounds of a step's seconds and a rank's bytes, from the patterns of the same layout without dp, which are the same for all ZeRO
 * stages, replicas and offloads. Seconds: the kernels of the stages, the communication over tp, cp and ep that they wait for, and the time
 * in which the first and the last micro-batch pass through the stages. Bytes: activations, and an even share of what is sharded and not
 * offloaded. */
ls_status prices_least(struct prices *p, const ls_layout *l, struct price *out);

/* Seconds of a micro-batch in one block: kernels, and the communication over tp, cp and ep that they wait for. Whatever dp, pp, zero and
 * the schedule are, a stage with k blocks is busy at least k times as long with a micro-batch. */
struct block_seconds {
    double forward, all;
    double ends; /* seconds of what precedes and follows the blocks: embedding, head, loss */
};
ls_status prices_block(struct prices *p, const ls_layout *l, struct block_seconds *out);

#endif
