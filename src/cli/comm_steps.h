/* comm_steps.h - prints a step list: which rank sends what to which, and what each rank then holds. */
#ifndef LS_CLI_COMM_STEPS_H
#define LS_CLI_COMM_STEPS_H

#include "comm/algorithms/steps.h"

enum { STEPS_RANKS_MOST = 64, STEPS_COUNT_MOST = 65536 };

/* Prints on stdout. count: elements of the whole buffer; rank: the one whose lines are shown, or -1: all. Starts no ranks. */
ls_status comm_steps_print(const struct algorithm *a, int n, size_t count, int root, int rank);

#endif
