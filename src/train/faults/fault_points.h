/* fault_points.h - faults at the points where the lower floors ask for one: allocations, writes, collectives, the loader's batches.
 *
 * mem_fault, file_fault, comm_call_fault, comm_delay_fault and loader_fault are NULL until one of these functions arms a fault of this
 * process, and again when it is called with 0. Options of a run arm them through faults.h, tests call them directly.
 */
#ifndef LS_TRAIN_FAULTS_FAULT_POINTS_H
#define LS_TRAIN_FAULTS_FAULT_POINTS_H

#include <stdint.h>
#include "lockstep/comm.h"

void mem_fail_at(int64_t nth);  /* the nth allocation from now fails (1: the next); 0: none */
void file_fail_at(int64_t nth); /* the nth write(2) from now fails like a full disk: half of the bytes are written; 0: none */
void file_slow(double seconds); /* each write(2) takes so much longer; 0: none */
/* This rank's next call on c is wrong. what: the name of a row of FAULT_CALL_MAP. One comm at a time. */
void comm_inject(const ls_comm *c, const char *what);
/* Every call of this process begins `seconds` later, and as much later again as its bytes take at `bandwidth` bytes/s (0: any). The
 * collectives of a comm run one after another, as on a slow link. Internal calls, and those that a device makes, are not delayed. 0, 0:
 * none */
void comm_slow(double seconds, double bandwidth);
void loader_slow(double seconds); /* each batch of this process's loaders is read so much later; 0: none */
/* This thread does nothing for so many seconds, and shows that it is alive; 0 or less: returns at once. */
void fault_sleep(double seconds);

#endif
