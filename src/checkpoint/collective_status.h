/* collective_status.h - agrees on one status over all ranks. */
#ifndef LS_CHECKPOINT_COLLECTIVE_STATUS_H
#define LS_CHECKPOINT_COLLECTIVE_STATUS_H

#include "lockstep/comm.h"

/* Collective: LS_OK if st is LS_OK on every rank; else the status and the message of the lowest rank that failed, prefixed with its number
 * on the other ranks. comm NULL: one rank. */
ls_status agree(ls_comm *comm, ls_status st);

#endif
