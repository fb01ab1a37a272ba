/* comm_steps.h - prints a list of steps: which rank sends what to which rank, and what each rank holds after each round. */
#ifndef LS_CLI_COMM_STEPS_H
#define LS_CLI_COMM_STEPS_H

#include "comm/algorithms/steps.h"

enum { STEPS_RANKS_MOST = 64, STEPS_COUNT_MOST = 65536 };

/* Prints on standard output and starts no ranks. count: elements of the complete buffer; rank: the rank whose lines are printed; -1: all.
 */
ls_status comm_steps_print(const struct algorithm *a, int n, size_t count, int root, int rank);

#endif
