/* launch.h - starts, binds, watches and ends N ranks of this program on this machine.
 *
 * The parent makes the shared segment, starts N children of itself (fork, exec; see launch_child.h for what they find in
 * their environment) and does nothing else than watch. Rank 0's standard output is the parent's. Standard error of every rank,
 * and standard output of the others, come back through pipes: their lines appear on the parent's standard error as
 * "[rank 2] line", and in LOG_FOLDER/rank_0002.err as they were.
 *
 * A rank that ends in another way than exit 0, or with its comm still open, is reported to the others at once (segment_note_gone), which
 * exit with code 3; ranks that are still running after a second are killed. The same happens to a rank that is stopped by a signal for the
 * timeout (launch_stops.h). The first failure counts; but exit code 3 blames another rank, so a rank that is killed or exits with another
 * code in that second takes precedence. A rank's report of its end - its last line on standard error, if that starts with "lockstep" - is
 * not shown among its lines: the caller prints the failure that counts, reports that add nothing to it are only in the files, and others
 * are shown.
 *
 * SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to the ranks, each once; a second SIGINT or SIGTERM kills them. SIGTSTP stops them with
 * the parent until it is continued. If the parent dies, so do they (PR_SET_PDEATHSIG). Processes that ranks have started are
 * killed with them. Nothing is left behind: the segment has no name.
 */
#ifndef LS_TRAIN_LAUNCH_LAUNCH_H
#define LS_TRAIN_LAUNCH_LAUNCH_H

#include <stdbool.h>
#include "lockstep/status.h"

enum { LAUNCH_END = 128 };

struct launch {
    int ranks;
    char *const *argv;        /* of the children, argv[0] included; NULL at the end */
    const char *log_folder;   /* for rank_NNNN.err, made with the first line; NULL: not kept */
    bool bind;                /* each rank to its share of the processors, when there are enough */
    double timeout;           /* seconds that a rank may be stopped while others run (launch_stops.h); 0: no limit */
    bool saves;               /* the ranks save when they are asked to leave (train/run/stop.h): the launcher announces it */
    char (*ends)[LAUNCH_END]; /* [ranks] how each ended, filled in: "was killed by signal 9 (Killed)"; NULL: not asked */
};

/* Blocks until all ranks have ended; to be called from the main thread of a process. *code: 0, or that of the failure that
 * counts: its exit code, 3 when it was killed, 128 + signal when a signal passed on or given twice did it. When *code is not
 * 0 this thread's message is the one line that says why: "rank 2 was killed by signal 9 (Killed)", or the rank's own report,
 * without "lockstep COMMAND: " and with the rank in front: "rank 2: ...". A failing status: the ranks could not be started. */
ls_status launch_run(const struct launch *l, int *code);

#endif
