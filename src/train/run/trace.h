/* trace.h - a timeline of every rank, as a file for Perfetto or chrome://tracing.
 *
 * Each instruction of the step's program and each operation of a comm is an event on its rank's row: tid 0 is the program
 * ("compute"), tid 1 what was on the wire. Times are those of one clock (ranks of one machine share it; ranks of others are
 * set by a barrier when the trace is opened). Events are kept in memory, TRACE_MOST of them a rank, and what comes later is
 * counted but not kept; rank 0 gathers them when training ends and writes RUN/trace.json, or RUN/trace_step_NNNNNNNN.json if the run
 * was resumed after that step: the trace of an earlier start is kept.
 */
#ifndef LS_TRAIN_RUN_TRACE_H
#define LS_TRAIN_RUN_TRACE_H

#include "train/run/step.h"

enum { TRACE_MOST = 1 << 18 };

struct trace;

ls_status trace_open(struct step *s, struct trace **out); /* collective; one at a time in a process */
/* first: steps that were done before this start. Collective. */
ls_status trace_write(struct trace *t, const struct ranks *ranks, const char *folder, uint64_t first);
void trace_forget(struct trace *t); /* the events so far */
size_t trace_bytes(void);           /* that a trace holds */
void trace_close(struct trace **t);

#endif
