/* comm_tune.h - which algorithm is fastest, by operation and size: a file of choices for algorithm_load_choices(). */
#ifndef LS_CLI_COMM_TUNE_H
#define LS_CLI_COMM_TUNE_H

#include "base/text.h"
#include "cli/comm_times.h"

/* Times each algorithm, and the transport's whole collective where there is one, of every operation, in place, at sizes min,
 * min * factor, .. up to max; rank 0 prints the times. The text is the same on all ranks. */
ls_status comm_tune(struct comm_times *t, size_t min, size_t max, size_t factor, struct text *out);

#endif
