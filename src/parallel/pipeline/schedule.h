/* schedule.h - the inside of schedules: lists under construction, what an action waits for, a walk through all of them. */
#ifndef LS_PARALLEL_PIPELINE_SCHEDULE_H
#define LS_PARALLEL_PIPELINE_SCHEDULE_H

#include <stdbool.h>
#include "lockstep/pipeline.h"

/* ---- schedule.c ---- */

enum { SCHEDULE_MOST = 1 << 24 }; /* actions of all ranks together */

/* What a schedule of that name would be, without its lists; the failures of ls_pipeline_schedule_make(). */
ls_status schedule_find(const char *name, int stages, int chunks, int micro, bool *backward, bool *split);
/* Room for every action, no action yet: count[] is 0. Sizes are checked. */
ls_status schedule_new(const char *name, int stages, int chunks, int micro, bool backward, bool split, ls_stage_order order,
                       ls_pipeline_schedule *out);
int schedule_room(const ls_pipeline_schedule *s); /* actions of a rank, all of them */
void schedule_put(ls_pipeline_schedule *s, int rank, ls_action_kind kind, int chunk, int micro);
bool schedule_named(const ls_pipeline_schedule *s, const char *name);
char schedule_letter(ls_action_kind kind);           /* F, B, W */
double schedule_idle(const ls_pipeline_schedule *s); /* of a rank, in forwards of a chunk; NaN: a list from a file */

/* ---- schedule_orders.c: the lists of one schedule, all ranks ---- */

void order_gpipe(ls_pipeline_schedule *s);
void order_1f1b(ls_pipeline_schedule *s);
void order_interleaved(ls_pipeline_schedule *s);
void order_zb_h1(ls_pipeline_schedule *s);
void order_zb_v(ls_pipeline_schedule *s);
void order_forward(ls_pipeline_schedule *s);
void order_forward_v(ls_pipeline_schedule *s);
/* Micro-batches go in rounds: M / P of them (at least one), as even as can be, the larger ones first. */
int interleaved_round(const ls_pipeline_schedule *s, int micro, int *first); /* size of the round of a micro-batch */

/* ---- play.c ---- */

/* Whom an action hears from: the virtual stage whose action of the same kind makes its message; -1: nobody. */
int schedule_recv_stage(const ls_pipeline_schedule *s, int rank, const ls_action *a);
/* Whom it tells; -1: nobody. */
int schedule_send_stage(const ls_pipeline_schedule *s, int rank, const ls_action *a);

/* Every rank takes its actions one after another, each as soon as what it waits for is there. begin[stages][count] and *seconds
 * may be NULL. at[stages]: how many actions each rank got through: all of them, or somebody waits for ever. t NULL: equal stages. */
ls_status schedule_walk(const ls_pipeline_schedule *s, const ls_pipeline_times *t, double **begin, double *seconds, int *at);
double action_seconds(const ls_pipeline_schedule *s, const ls_pipeline_times *t, int rank, const ls_action *a);
/* Messages that a rank sends to other ranks. */
int schedule_messages(const ls_pipeline_schedule *s, int rank);
/* Micro-batches in flight on a rank at once, all chunks together. */
int schedule_in_flight(const ls_pipeline_schedule *s, int rank);

#endif
