/* schedule.h - internals of schedules: lists under construction, the dependencies of an action, a simulated run. */
#ifndef LS_PARALLEL_PIPELINE_SCHEDULE_H
#define LS_PARALLEL_PIPELINE_SCHEDULE_H

#include <stdbool.h>
#include "lockstep/pipeline.h"

/* ---- schedule.c ---- */

enum { SCHEDULE_MOST = 1 << 24 }; /* upper bound on the actions of all ranks together */

/* Looks up the properties of a named schedule without building its lists; fails as ls_pipeline_schedule_make() does. */
ls_status schedule_find(const char *name, int stages, int chunks, int micro, bool *backward);
/* Properties of a named schedule; for an unknown name 1 and false. */
int schedule_least_chunks(const char *name); /* least chunks that a rank can have */
bool schedule_splits(const char *name);      /* weight gradients are actions of their own */
bool schedule_is_v(const char *name);        /* its chunks are placed in a V */
/* Allocates room for every action and adds none: count[] is 0. The caller has checked the sizes. */
ls_status schedule_new(const char *name, int stages, int chunks, int micro, bool backward, bool split, ls_stage_order order,
                       ls_pipeline_schedule *out);
int schedule_room(const ls_pipeline_schedule *s); /* the number of actions of one rank */
void schedule_put(ls_pipeline_schedule *s, int rank, ls_action_kind kind, int chunk, int micro);
bool schedule_named(const ls_pipeline_schedule *s, const char *name);
char schedule_letter(ls_action_kind kind);           /* F, B, W */
double schedule_idle(const ls_pipeline_schedule *s); /* idle time of a rank in units of a chunk's forward; NaN for a list from a file */

/* ---- schedule_orders.c: the lists of one schedule, for all ranks ---- */

void order_gpipe(ls_pipeline_schedule *s);
void order_1f1b(ls_pipeline_schedule *s);
void order_interleaved(ls_pipeline_schedule *s);
void order_zb_h1(ls_pipeline_schedule *s);
void order_zb_v(ls_pipeline_schedule *s);
void order_forward(ls_pipeline_schedule *s);
void order_forward_v(ls_pipeline_schedule *s);
/* Micro-batches are processed in rounds: M / P of them (at least one), as even as possible, the larger ones first. */
int interleaved_round(const ls_pipeline_schedule *s, int micro,
                      int *first); /* the size of a micro-batch's round, and its first micro-batch */

/* ---- play.c ---- */

/* The virtual stage whose action of the same kind sends the message that this action receives; -1: none. */
int schedule_recv_stage(const ls_pipeline_schedule *s, int rank, const ls_action *a);
/* The virtual stage that receives this action's message; -1: none. */
int schedule_send_stage(const ls_pipeline_schedule *s, int rank, const ls_action *a);

/* Simulates the schedule: each rank runs its actions in order, each as soon as its dependencies are met. begin[stages][count] and *seconds
 * may be NULL. at[stages]: how many actions each rank completed: fewer than all of them means a deadlock. t NULL: equal stages. */
ls_status schedule_walk(const ls_pipeline_schedule *s, const ls_pipeline_times *t, double **begin, double *seconds, int *at);
double action_seconds(const ls_pipeline_schedule *s, const ls_pipeline_times *t, int rank, const ls_action *a);
/* The number of messages that a rank sends to other ranks. */
int schedule_messages(const ls_pipeline_schedule *s, int rank);
/* The peak number of micro-batches in flight on a rank, over all its chunks. */
int schedule_in_flight(const ls_pipeline_schedule *s, int rank);

#endif
