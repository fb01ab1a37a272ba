/* trace.h - a timeline of every rank, as a file for Perfetto or chrome://tracing.
 *
 * Each instruction of the step's programs and each operation of a comm is an event in a row of its rank: row 0 ("program") shows the
 * instructions, row 1 ("communication") the operations of comms. All times refer to rank 0's clock: ranks of one machine share a clock, the
 * clocks of other machines are compared at a barrier when the trace is opened. Each rank keeps its first TRACE_MOST events in memory and
 * only counts later ones. When training ends, rank 0 gathers them and writes RUN/trace.json, or RUN/trace_step_NNNNNNNN.json if the run was
 * resumed after that step, so that the trace of an earlier start is kept.
 */
#ifndef LS_TRAIN_RUN_TRACE_H
#define LS_TRAIN_RUN_TRACE_H

#include "train/run/step.h"

enum { TRACE_MOST = 1 << 18 };

struct trace;

ls_status trace_open(struct step *s, struct trace **out); /* collective; a process has one trace at a time */
/* first: number of steps done before this start. Collective. */
ls_status trace_write(struct trace *t, const struct ranks *ranks, const char *folder, uint64_t first);
void trace_forget(struct trace *t); /* drops the events so far */
size_t trace_bytes(void);           /* bytes that a trace holds */
void trace_close(struct trace **t);

/* Shared with other traces: the rows of a rank (tid), and the events that name a rank and its rows. */
enum { TRACE_ROW_PROGRAM, TRACE_ROW_COMMUNICATION };
struct json_out;
void trace_put_names(struct json_out *j, int rank, const char *name);

#endif
