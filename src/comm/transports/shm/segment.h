/* segment.h - the shared memory of one job's ranks on one machine: control words, message rings, heaps.
 *
 * One unnamed file (memfd): nothing in any folder, gone with its last process, whatever kills it. The launcher makes it and
 * hands the descriptor down (where "shm:fd:N"); ranks without our launcher meet by a name (where "shm:NAME"): rank 0 listens
 * on an abstract socket of that name and hands the descriptor to the others.
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
/* Tells all ranks at once that `rank` is gone: their next look at any comm of the job gives LS_EPEER: "rank 2 HOW". The first
 * failure of a job stays. how: "was killed by signal 9 (Killed)", "left with exit code 1". */
void segment_note_gone(struct segment *s, int rank, const char *how);
/* The same with LS_ETIMEOUT: `rank` was stopped for too long. */
void segment_note_stopped(struct segment *s, int rank, const char *how);
/* A stopped rank was continued: others that wait for it give it their timeout again. */
void segment_note_continued(struct segment *s, int rank);
/* True when rank has joined the job and closed its comms again: then others may need it no more. */
bool segment_has_left(const struct segment *s, int rank);
/* What ended the job's communication, or NULL: the line of transport.fail(), whoever called it. */
const char *segment_verdict(const struct segment *s);
/* The same where a rank named something of its own, not a peer that failed: "rank 1: out of memory"; *rank: which. */
const char *segment_named(const struct segment *s, int *rank);

#endif
