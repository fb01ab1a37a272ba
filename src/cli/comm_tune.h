/* comm_tune.h - finds the fastest algorithm by operation and size, for a table that algorithm_load_table() reads. */
#ifndef LS_CLI_COMM_TUNE_H
#define LS_CLI_COMM_TUNE_H

#include "base/text.h"
#include "cli/comm_times.h"

/* Times each algorithm, and the transport's native collective if there is one, of every operation, in place, at sizes min, min * factor, ..
 * up to max; rank 0 prints the times. The text is the same on all ranks. */
ls_status comm_tune(struct comm_times *t, size_t min, size_t max, size_t factor, struct text *out);

#endif
