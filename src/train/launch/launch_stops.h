/* launch_stops.h - ranks that were stopped by a signal, detected by their parent at once, in every phase of a run.
 *
 * A rank that stays stopped for the timeout ends the job, whether or not others wait for it already; one that is continued before is
 * forgiven. When all of the n ranks are stopped, the job was suspended as a whole (by a batch system, say) and no time runs.
 */
#ifndef LS_TRAIN_LAUNCH_LAUNCH_STOPS_H
#define LS_TRAIN_LAUNCH_LAUNCH_STOPS_H

#include <stdbool.h>
#include <sys/types.h>

struct stop {
    int signal;
    double since;
}; /* signal 0: not stopped */

/* Reads the kernel's report on process pid. True: it was continued. */
bool stop_look(struct stop *s, pid_t pid);
/* When the first of the ranks that live (pid > 0) is overdue, base_now(); 0: none will be. *rank: which. */
double stops_due(const struct stop *stop, const pid_t *pid, int n, double timeout, int *rank);
/* Time did not run for the ranks either: the launcher stood still itself, or they did as a whole. */
void stops_shift(struct stop *stop, int n);

#endif
