/* sequence.h - the actions of all ranks of a schedule in one sequence, each after those that it needs, so that one pass plays them: for
 * callers that play a schedule many times. play.c lists what an action waits for.
 */
#ifndef LS_PARALLEL_PIPELINE_SEQUENCE_H
#define LS_PARALLEL_PIPELINE_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>
#include "lockstep/pipeline.h"

struct sequence_action {
    int32_t rank, own, sent; /* own, sent: indices in the sequence of the action that it waits for on its rank, and of the one whose
                                 result it receives; -1: none */
    int32_t cost;            /* kind * virtual stages + stage */
    bool last, crosses;      /* last: in the last micro-batch; crosses: what it receives comes from another rank */
};

struct sequence {
    struct sequence_action *action; /* [n] */
    int n, ranks;
    double *end; /* [n + ranks] while it is played */
};

/* Free it with sequence_free(); a zeroed one is a no-op. */
ls_status sequence_make(const ls_pipeline_schedule *s, struct sequence *out);
void sequence_free(struct sequence *s);

/* The seconds from the first action to the end of the last: those of ls_pipeline_play(), with equal bits. times[0], times[1]: seconds of
 * actions in a micro-batch before the last, and in the last, by `cost`. message: seconds of a message from another rank. */
double sequence_play(struct sequence *s, const double *const times[2], double message);

#endif
