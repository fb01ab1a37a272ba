/* step_trace.h - a simulated step as a trace for Perfetto or chrome://tracing, in the format of `log.trace` (train/run/trace.h), so that it
 * can be opened together with that of a real run. */
#ifndef LS_CLI_STEP_TRACE_H
#define LS_CLI_STEP_TRACE_H

#include "train/plan/step_sim.h"

/* Plays step 0 and writes one rank of each stage, the first that is played. */
ls_status step_trace_write(struct step_sim *s, const char *path);

#endif
