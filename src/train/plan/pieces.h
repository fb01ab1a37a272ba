/* pieces.h - the price of a layout, put together from pieces that are compiled once, for searches over many layouts of one model.
 *
 * All blocks of a transformer are alike, so what a stage of k blocks takes and holds grows by the same amount with every block. A piece is
 * a stage of at most four blocks: the first of a pipeline (with the embedding), one in the middle, the last (with the head), or the whole
 * model; a stage of k > 4 blocks is piece 3 + (k - 3) x (piece 4 - piece 3). What is sharded over the ranks that share optimizer state is
 * inversely proportional to their number, so a piece is compiled for two such numbers and holds for all. Its tapes (tape.h) are played for
 * the groups that the layout has.
 *
 * So a price depends on the pieces of (tp, sp, cp, ep, zero, micro-batch, recomputation), of which there are few, and takes microseconds
 * once they are compiled. Compared with step_seconds_of() and plan_of_largest(), which compile every program of the layout: bytes are the
 * same but for the rounding of shards and what is not the step's own; seconds differ where a collective crosses more than three blocks,
 * and the norm's collective counts for each chunk of a rank. test_pieces compares them.
 */
#ifndef LS_TRAIN_PLAN_PIECES_H
#define LS_TRAIN_PLAN_PIECES_H

#include "train/plan/step_seconds.h"

struct pieces;

/* Borrows job and cluster. The model is a transformer. seq_len: that of all layouts. */
ls_status pieces_open(const struct plan_job *j, const struct cluster *c, int seq_len, struct pieces **out);
void pieces_close(struct pieces **p);
int pieces_compiled(const struct pieces *p); /* programs so far */

struct price {
    double bytes;   /* of the rank that holds the most */
    double seconds; /* of a step; INFINITY if it was not computed, because the layout does not fit */
    bool bounded;   /* seconds is only a lower bound, which is already more than was asked for */
};
/* room: bytes of a rank; a layout that needs more is not timed. most: a layout whose busiest stage alone takes longer is not played. Both
 * may be INFINITY. The layout has passed ls_layout_check(). */
ls_status pieces_price(struct pieces *p, const ls_layout *l, double room, double most, struct price *out);

#endif
