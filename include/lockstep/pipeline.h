/* pipeline.h - pipeline parallelism: schedules as lists of actions, and the runtime that executes them.
 *
 * A model is divided into virtual stages 0 .. stages*chunks-1. With LS_STAGES_LOOP rank r holds stages r, r+P, r+2P, ..: its chunks 0, 1,
 * ..; with LS_STAGES_V (two chunks) stages r and 2P-1-r. A schedule says for each rank in which order it takes its actions: FORWARD of a
 * chunk for a micro-batch; BACKWARD of it (with `split` only the input gradients); WEIGHTS (the weight gradients deferred by split). Sends
 * and receives follow from it: a FORWARD receives from the stage before and sends to the stage after, a BACKWARD the other way. Activations
 * and gradients use separate comms (LS_GROUP_PP, LS_GROUP_PP_BACK): on each, a pair of ranks exchanges messages in the order of the
 * sender's list, and the receiver's list must receive them in that order.
 *
 *     name          chunks  in flight on rank r     bubble of equal stages, F = 1, B = 2 (B = W = 1 where split)
 *     gpipe         1       M                       (P-1)/(M+P-1) of the time                Huang et al. 2019
 *     1f1b          1       min(M, P-r)             the same                                 Narayanan et al. 2021
 *     interleaved   v       (v-1)G + 2(P-1-r) + 1   (P-1)/(vM+P-1), M >= P                   Narayanan et al. 2021b
 *     zb-h1         1       min(M, P)               a third of 1f1b's idle time              Qi et al. 2023
 *     zb-v          2       2P of both together     a sixth of it                            Qi et al. 2024
 *     forward       v       1 of a chunk            forwards only: evaluation
 *     forward-v     2       1 of a chunk            the same for stages that are in a V
 *
 * interleaved takes any M: rounds of G = P micro-batches, or up to 2P-1 where P does not divide M. In flight counts micro-batches of a
 * chunk; a chunk holds 1/v of the rank's blocks, so zb-v's 2P equal P whole ones.
 */
#ifndef LS_PIPELINE_H
#define LS_PIPELINE_H

#include "lockstep/mesh.h"
#include "lockstep/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- schedules: pure data ---- */

typedef enum ls_action_kind { LS_ACTION_FORWARD, LS_ACTION_BACKWARD, LS_ACTION_WEIGHTS } ls_action_kind;
typedef struct ls_action {
    ls_action_kind kind;
    int chunk, micro;
} ls_action;
typedef enum ls_stage_order { LS_STAGES_LOOP, LS_STAGES_V } ls_stage_order;

typedef struct ls_pipeline_schedule {
    char name[32];
    int stages, chunks, micro; /* P ranks, v chunks each, M micro-batches */
    int split;                 /* WEIGHTS are separate actions */
    int backward;              /* 0: forwards only */
    ls_stage_order order;
    int *count;       /* [stages] */
    ls_action **list; /* [stages][count] */
} ls_pipeline_schedule;

/* The schedules that train: SCHEDULE(id, name). */
#define LS_PIPELINE_SCHEDULE_MAP(SCHEDULE) \
    SCHEDULE(gpipe, "gpipe")               \
    SCHEDULE(1f1b, "1f1b")                 \
    SCHEDULE(interleaved, "interleaved")   \
    SCHEDULE(zb_h1, "zb-h1")               \
    SCHEDULE(zb_v, "zb-v")

const char *ls_pipeline_schedule_name(int i); /* the i-th of the table above; NULL past the last */
/* LS_EINVAL with the numbers if the schedule does not support them (chunks, or an M that it can't divide). */
ls_status ls_pipeline_schedule_make(const char *name, int stages, int chunks, int micro, ls_pipeline_schedule *out);
/* A file of lines "rank: F0.0 F0.1 B0.0 W0.0 .."  (kind, chunk, micro-batch), a first line "stages P chunks v micro M order loop|v"; #
 * comments. */
ls_status ls_pipeline_schedule_read(const char *path, ls_pipeline_schedule *out);
ls_status ls_pipeline_schedule_write(const ls_pipeline_schedule *s, const char *path);
void ls_pipeline_schedule_free(ls_pipeline_schedule *s);
/* Checks that each action occurs once and in order, that messages match pair by pair, and that nothing deadlocks; the error names rank and
 * action. */
ls_status ls_pipeline_schedule_check(const ls_pipeline_schedule *s);
/* Micro-batches of a chunk that are in flight at once on a rank, from FORWARD to the end of BACKWARD (WEIGHTS, when split). */
int ls_pipeline_schedule_slots(const ls_pipeline_schedule *s, int rank, int chunk);
int ls_pipeline_stage(const ls_pipeline_schedule *s, int rank, int chunk);  /* virtual stage of a rank's chunk */
int ls_pipeline_rank(const ls_pipeline_schedule *s, int stage, int *chunk); /* the inverse: rank and chunk of a virtual stage */

/* Input of a simulation: seconds of each action by virtual stage, and of a message between neighbors. last: of those of the last
 * micro-batch, in which gradients are reduced, by kind; all NULL: the same. */
typedef struct ls_pipeline_times {
    const double *forward, *backward, *weights; /* [stages * chunks] each */
    double message;
    const double *last[3];
} ls_pipeline_times;
typedef struct ls_pipeline_timeline {
    double seconds;
    double bubble;  /* idle share of ranks x seconds */
    double **begin; /* [stages][count] */
} ls_pipeline_timeline;
ls_status ls_pipeline_play(const ls_pipeline_schedule *s, const ls_pipeline_times *t, ls_pipeline_timeline *out);
void ls_pipeline_played_free(const ls_pipeline_schedule *s, ls_pipeline_timeline *p);
/* The bubble by the formula of the table above; NaN if there is no closed form. */
double ls_pipeline_bubble(const ls_pipeline_schedule *s);
/* The simulated schedule as a picture: for a terminal with that many columns, and as SVG. Free with ls_free. */
ls_status ls_pipeline_text(const ls_pipeline_schedule *s, const ls_pipeline_times *t, int columns, int color, char **text);
ls_status ls_pipeline_svg(const ls_pipeline_schedule *s, const ls_pipeline_times *t, char **text);

/* Divides blocks with these costs into `stages` contiguous ranges that minimize the cost of the most expensive one; the cost `before` is
 * added to the first stage (embedding), `after` to the last (final norm, head). begin[stages+1]. Every stage has a block. */
ls_status ls_pipeline_balance(int blocks, const double *cost, double before, double after, int stages, int *begin);

/* ---- running ---- */

/* The part of the model that a program holds: blocks [begin, end), and what precedes the first block and follows the last. */
typedef struct ls_stage {
    int index, stages, begin, end;
} ls_stage;

typedef struct ls_pipeline ls_pipeline;
typedef struct ls_pipeline_options {
    const ls_pipeline_schedule *schedule; /* borrowed */
    const int *begin;                     /* [stages*chunks + 1] first block of each virtual stage; NULL: balanced by FLOPs */
    /* Appends the whole model to p, as for one rank, ends with ls_backward (not for a schedule of forwards), and marks it:
     * ls_partition() with this stage, ls_data_parallel_mesh(). Called once for the whole model (stage 0 of 1), which is inspected but not
     * compiled, then once per chunk. */
    ls_status (*build)(void *ctx, ls_program *p, const ls_stage *stage);
    void *ctx;
    ls_compile_options compile; /* the pipeline sets slots and split_backward */
} ls_pipeline_options;

/* Parameters that no stage of this rank reads are left out of the store before it is allocated; another pipeline on the same store may read
 * those that remain. A parameter that the first and the last stage read on two ranks (tied embeddings) is on both: each has a partial sum
 * of its gradient, and ls_data_parallel_mesh() adds them. The store, mesh and `build`'s ctx are borrowed. */
ls_status ls_pipeline_open(ls_store *store, const ls_mesh *mesh, const ls_pipeline_options *o, ls_pipeline **out);
void ls_pipeline_close(ls_pipeline **l);
int ls_pipeline_chunks(const ls_pipeline *l);
ls_program *ls_pipeline_program(const ls_pipeline *l, int chunk); /* borrowed */
ls_stage ls_pipeline_stage_of(const ls_pipeline *l, int chunk);
const int *ls_pipeline_begin(const ls_pipeline *l); /* [stages*chunks + 1], as given or balanced */
/* Runs all micro-batches forward and backward, with gradients reduced at the end. before: writes micro-batch `micro` into the program's
 * inputs (those that it has: ls_program_has); after: reads outputs after a forward (or after the backward that makes a fused loss). */
typedef ls_status ls_pipeline_feed(void *ctx, ls_program *p, int chunk, int micro);
ls_status ls_pipeline_run(ls_pipeline *l, ls_pipeline_feed *before, ls_pipeline_feed *after, void *ctx);
/* Times of the last run on this rank: seconds in actions, and waiting for messages. */
typedef struct ls_pipeline_spent {
    double forward, backward, weights, waiting, total;
} ls_pipeline_spent;
ls_pipeline_spent ls_pipeline_last_times(const ls_pipeline *l);
/* Returns the bytes that this rank sends in one run; *messages is their number of messages. */
size_t ls_pipeline_bytes(const ls_pipeline *l, size_t *messages);

#ifdef __cplusplus
}
#endif
#endif
