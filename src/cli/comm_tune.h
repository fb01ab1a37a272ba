/* comm_tune.h - finds the fastest algorithm for each operation and size, and writes the comm table that algorithm_load_table() reads. */
#ifndef LS_CLI_COMM_TUNE_H
#define LS_CLI_COMM_TUNE_H

#include "base/text.h"
#include "cli/comm_times.h"

/* For every operation, times each algorithm and the transport's native collective if there is one, in place, at the sizes min,
 * min * factor, ... up to max; rank 0 prints the times. The text is the same on all ranks. */
ls_status comm_tune(struct comm_times *t, size_t min, size_t max, size_t factor, struct text *out);

#endif
