/* region.h - the shared memory of one job's ranks on one machine: control words, message rings, heaps.
 *
 * One unnamed file (memfd): it is in no folder and disappears with its last process, however that ends. The launcher creates it and passes
 * the descriptor on (where "shm:fd:N"); ranks without our launcher find it by name (where "shm:NAME"): rank 0 listens on an abstract socket
 * of that name and passes the descriptor to the others.
 */
#ifndef LS_COMM_TRANSPORTS_SHM_REGION_H
#define LS_COMM_TRANSPORTS_SHM_REGION_H

#include <stdbool.h>
#include "lockstep/status.h"

struct region;

/* The launcher's side. The descriptor is inherited by children (no CLOEXEC). */
ls_status region_create(int n, struct region **out);
int region_fd(const struct region *s);
void region_close(struct region **s);
/* Notifies all ranks at once that `rank` has ended: their next call on any comm of the job gives LS_EPEER: "rank 2 HOW". The first failure
 * of a job is kept. how: "was killed by signal 9 (Killed)", "exited with code 1". */
void region_note_gone(struct region *s, int rank, const char *how);
/* The same with LS_ETIMEOUT: `rank` was stopped for too long. */
void region_note_stopped(struct region *s, int rank, const char *how);
/* A stopped rank was continued: ranks that wait for it restart their timeout. */
void region_note_continued(struct region *s, int rank);
/* True if rank has joined the job and closed its comms again: then others may not need it any more. */
bool region_has_left(const struct region *s, int rank);
/* The failure that ended the job's communication, or NULL: the line of transport.fail(), from any rank. */
const char *region_verdict(const struct region *s);
/* The same if a rank reported its own error, not a failed peer: "rank 1: out of memory"; *rank: which. */
const char *region_named(const struct region *s, int *rank);

#endif
