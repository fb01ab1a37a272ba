/* patterns.h - stages of a few blocks that are compiled once and extrapolated to stages of any size, micro-batch and number of ranks.
 *
 * All blocks of a transformer are alike, so the time and the bytes of a stage of k blocks grow by the same amount with every block. A
 * pattern is a stage of at most BLOCKS_MOST blocks: the first of a pipeline (with the embedding), one in the middle, the last (with the
 * head), or the whole model; a stage of k > 3 blocks is its pattern of 3 plus (k - 3) times the difference between the middle patterns of 4
 * and of 3 blocks. An end of a pipeline without blocks is its pattern of 1 minus that difference. What is sharded over the ranks that share
 * optimizer state is inversely proportional to their number, and the rest is linear in the samples of a micro-batch, so a pattern is
 * compiled for two values of each, and its quantities (tape.h) are valid for all values.
 */
#ifndef LS_TRAIN_PLAN_PATTERNS_H
#define LS_TRAIN_PLAN_PATTERNS_H

#include "train/plan/step_seconds.h"

struct patterns;

/* Borrows job and cluster. */
ls_status patterns_open(const struct plan_job *j, const struct cluster *c, struct patterns **out);
void patterns_close(struct patterns **p);
int patterns_compiled(const struct patterns *p); /* programs compiled so far */

/* Which stage of a pipeline a pattern is. */
enum pattern_place { PLACE_ONLY, PLACE_FIRST, PLACE_MIDDLE, PLACE_LAST };
enum { BLOCKS_MOST = 4, BLOCKS_BASE = 3, PROGRAMS = 2 };

/* Bytes of a rank. all: everything except slot, communication and host; parameters, gradients and optimizer state are parts of it. slot:
 * activations of a pipeline per micro-batch in flight. communication: buffers, which are reused from block to block. host: bytes offloaded
 * to a host with memory of its own. */
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
    struct tape tape[PROGRAMS]; /* the chunk's and the optimizer's tape, or one for both */
    int tapes;
    struct pattern_bytes bytes;
    bool apart; /* it is valid only for its own micro-batch: with more samples the program has more instructions (chunks of the loss) */
};

/* A stage of a layout. evaluation: the stage's evaluation programs instead of the step's. */
struct pattern_stage {
    const ls_layout *layout;
    enum pattern_place place;
    int blocks;
    bool evaluation;
};

/* A stage is a sum of terms: a pattern with `samples`, multiplied by `times`. OWN: the stage's pattern; LESS, MORE: the two whose
 * difference is a further block. The terms of a role are shares of one pattern, which add up to 1. */
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
/* Compiles the patterns of these stages in parallel. Only for speed: patterns_sum() compiles what is missing. */
ls_status patterns_prepare(struct patterns *p, const struct pattern_stage *s, int n);
bool patterns_made(const struct patterns *p, const struct pattern_stage *s); /* patterns_sum() would compile nothing */
struct pattern *patterns_at(const struct patterns *p, int i);                /* pattern of a term; valid until the next patterns_sum() */

double pattern_sharing(const ls_layout *l); /* ranks that share optimizer state */

#endif
