/* launch.h - starts N ranks of this program on this machine, binds them to cores, watches them and ends them.
 *
 * The parent creates the shared region, starts N children that run this program (fork, exec; launch_child.h describes their environment)
 * and then only watches them. Rank 0 writes to the parent's standard output. Standard error of every rank and standard output of the others
 * come through pipes: the parent prints their lines on its standard error as "[rank 2] line" and writes them unchanged to
 * LOG_FOLDER/rank_0002.err.
 *
 * If a rank fails (it is killed or exits with a code other than 0) or exits without closing its comm, the parent notifies the other ranks
 * at once (region_note_gone); they exit with code 3, and those that still run after a second are killed. The same happens if a rank stays
 * stopped by a signal for the timeout (launch_stops.h). The first failure is reported. But a rank that exits with code 3 reports the
 * failure of another rank, so a rank that is killed or exits with another code within that second takes precedence. A rank's own report,
 * its last line on standard error if that starts with "lockstep", is held back: the caller prints the failure that is reported; other
 * reports are printed only if they add something to it. All reports are in the log files.
 *
 * The parent forwards SIGINT, SIGTERM, SIGHUP and SIGUSR1 to the ranks; a second SIGINT or SIGTERM kills them. SIGTSTP suspends the ranks
 * and the parent until the parent is continued. If the parent dies, the ranks are killed (PR_SET_PDEATHSIG). Processes that ranks have
 * started are killed with them. Nothing is left behind: the region has no name.
 */
#ifndef LS_TRAIN_LAUNCH_LAUNCH_H
#define LS_TRAIN_LAUNCH_LAUNCH_H

#include <stdbool.h>
#include "lockstep/status.h"

enum { LAUNCH_END = 128 };

struct launch {
    int ranks;
    char *const *argv;      /* arguments of the children, with argv[0], terminated by NULL */
    const char *log_folder; /* folder of the files rank_NNNN.err, which are created when a rank writes its first line; NULL: none */
    bool bind;              /* bind each rank to its share of the cores, if there are at least as many cores as ranks */
    double timeout;         /* seconds that a rank may stay stopped while others run (launch_stops.h); 0: no limit */
    bool saves; /* the ranks save a checkpoint on SIGINT, SIGTERM and SIGHUP (train/run/stop.h), and the launcher announces it */
    char (*ends)[LAUNCH_END]; /* [ranks] receives how each rank ended: "was killed by signal 9 (Killed)"; NULL: not needed */
};

/* Blocks until all ranks have ended. Must be called from the main thread. *code: 0; or the exit code of the rank whose failure is reported;
 * 3 if that rank was killed; 128 + N if signal N, forwarded or sent twice, ended it. If *code is not 0, ls_errmsg() is the report in one
 * line: "rank 2 was killed by signal 9 (Killed)", or the rank's own report with "rank 2: " in the place of "lockstep COMMAND: ". A negative
 * status means that the ranks could not be started. */
ls_status launch_run(const struct launch *l, int *code);

#endif
