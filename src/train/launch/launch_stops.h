/* launch_stops.h - ranks that are stopped by a signal; their parent detects this at once, in every phase of a run.
 *
 * A rank that stays stopped for the timeout ends the job, whether or not other ranks wait for it already. If all ranks are stopped, the job
 * was suspended, for example by a batch system, and the timeout does not run.
 */
#ifndef LS_TRAIN_LAUNCH_LAUNCH_STOPS_H
#define LS_TRAIN_LAUNCH_LAUNCH_STOPS_H

#include <stdbool.h>
#include <sys/types.h>

struct stop {
    int signal; /* 0: not stopped */
    double since;
};

/* Updates *s from waitid(). Returns true if the process was continued. */
bool stop_look(struct stop *s, pid_t pid);
/* The time (base_now()) when the first stopped rank exceeds the timeout, and that rank; 0: never. pid[i] 0: rank i has ended. */
double stops_due(const struct stop *stop, const pid_t *pid, int n, double timeout, int *rank);
/* Restarts the timeouts of all stopped ranks: after the launcher itself was stopped, or after a rank was continued. */
void stops_shift(struct stop *stop, int n);

#endif
