/* collective_status.h - one outcome for all ranks. */
#ifndef LS_CHECKPOINT_COLLECTIVE_STATUS_H
#define LS_CHECKPOINT_COLLECTIVE_STATUS_H

#include "lockstep/comm.h"

/* Collective: LS_OK when st is LS_OK on every rank; else the status and the message of the lowest rank that failed, with its
 * number in front on the others. comm NULL: one rank. */
ls_status agree(ls_comm *comm, ls_status st);

#endif
