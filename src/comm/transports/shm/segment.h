/* segment.h - the shared memory of one job's ranks on one machine: control words, message rings, heaps.
 *
 * One unnamed file (memfd): it is in no folder and disappears with its last process, however that ends. The launcher creates it and passes
 * the descriptor on (where "shm:fd:N"); ranks without our launcher find it by name (where "shm:NAME"): rank 0 listens on an abstract socket
 * of that name and passes the descriptor to the others.
 */
#ifndef LS_COMM_TRANSPORTS_SHM_SEGMENT_H
#define LS_COMM_TRANSPORTS_SHM_SEGMENT_H

#include <stdbool.h>
#include "lockstep/status.h"

struct segment;

/* The launcher's side. The descriptor is inherited by children (no CLOEXEC). */
ls_status segment_create(int n, struct segment **out);
int segment_fd(const struct segment *s);
void segment_close(struct segment **s);
/* Notifies all ranks at once that `rank` has ended: their next call on any comm of the job gives LS_EPEER: "rank 2 HOW". The first failure
 * of a job is kept. how: "was killed by signal 9 (Killed)", "exited with code 1". */
void segment_note_gone(struct segment *s, int rank, const char *how);
/* The same with LS_ETIMEOUT: `rank` was stopped for too long. */
void segment_note_stopped(struct segment *s, int rank, const char *how);
/* A stopped rank was continued: ranks that wait for it restart their timeout. */
void segment_note_continued(struct segment *s, int rank);
/* True if rank has joined the job and closed its comms again: then others may not need it any more. */
bool segment_has_left(const struct segment *s, int rank);
/* The failure that ended the job's communication, or NULL: the line of transport.fail(), from any rank. */
const char *segment_verdict(const struct segment *s);
/* The same if a rank reported its own error, not a failed peer: "rank 1: out of memory"; *rank: which. */
const char *segment_named(const struct segment *s, int *rank);

#endif
