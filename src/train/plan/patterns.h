/* patterns.h - stages of a few blocks that are compiled once and stand for stages of any size, micro-batch and number of ranks.
 *
 * All blocks of a transformer are alike, so what a stage of k blocks takes and holds grows by the same amount with every block. A pattern
 * is a stage of at most BLOCKS_MOST blocks: the first of a pipeline (with the embedding), one in the middle, the last (with the head), or
 * the whole model; a stage of k > 3 blocks is its pattern of 3, and k - 3 times what a pattern of 4 in the middle has more than one of 3.
 * An end of a pipeline without blocks is its pattern of 1 minus that difference. What is sharded over the ranks that share optimizer state
 * is inversely proportional to their number, and the rest is linear in the samples of a micro-batch, so a pattern is compiled for two of
 * each, and its quantities (tape.h) hold for all.
 */
#ifndef LS_TRAIN_PLAN_PATTERNS_H
#define LS_TRAIN_PLAN_PATTERNS_H

#include "train/plan/step_seconds.h"

struct patterns;

/* Borrows job and cluster. */
ls_status patterns_open(const struct plan_job *j, const struct cluster *c, struct patterns **out);
void patterns_close(struct patterns **p);
int patterns_compiled(const struct patterns *p); /* programs so far */

/* Which stage of a pipeline a pattern is. */
enum pattern_place { PLACE_ONLY, PLACE_FIRST, PLACE_MIDDLE, PLACE_LAST };
enum { BLOCKS_MOST = 4, BLOCKS_BASE = 3, PROGRAMS = 2 };

/* Bytes of a rank: `all` but for what follows, and which part of it are its parameters, gradients and optimizer state; of a pipeline's
 * activations, `slot` once per micro-batch in flight; of communication, which is reused from block to block; what is offloaded to its host,
 * in a memory apart. */
struct pattern_bytes {
    struct tape_quantity all, parameters, gradients, optimizer, slot, communication, host;
};

/* The layout that a pattern is compiled in, and which stage of it. No padding: keys are compared as bytes. */
struct pattern_key {
    ls_layout layout;
    int place, blocks;
    int64_t evaluation; /* 1: its bytes are those of the evaluation's programs, which a run holds in addition to the step's */
};

struct pattern {
    struct pattern_key key;
    struct tape tape[PROGRAMS]; /* the chunk's and the optimizer's, or one with all */
    int tapes;
    struct pattern_bytes bytes;
    bool apart; /* it holds for its own micro-batch only: the program has more instructions with more samples (chunks of the loss) */
};

/* A stage of a layout. evaluation: its programs of the evaluation are meant. */
struct pattern_stage {
    const ls_layout *layout;
    enum pattern_place place;
    int blocks;
    bool evaluation;
};

/* A stage is a sum: so many `times` a pattern with so many `samples`. own: the stage's pattern; less, more: of each further block. The
 * terms of a role stand for one pattern, by shares whose sum is 1. */
enum pattern_role { ROLE_OWN, ROLE_LESS, ROLE_MORE, ROLES };
struct pattern_term {
    int pattern;
    enum pattern_role role;
    double times, share, samples;
};
struct pattern_sum {
    struct pattern_term term[2 * ROLES];
    int n;
};
ls_status patterns_sum(struct patterns *p, const struct pattern_stage *s, struct pattern_sum *out);
/* Compiles what the sums of these stages need, at the same time: for speed, because a sum compiles what is missing. */
ls_status patterns_prepare(struct patterns *p, const struct pattern_stage *s, int n);
bool patterns_made(const struct patterns *p, const struct pattern_stage *s); /* the sum compiles nothing */
struct pattern *patterns_at(const struct patterns *p, int i);                /* of a term; valid until the next patterns_sum() */

double pattern_sharing(const ls_layout *l); /* ranks that share optimizer state */

#endif
