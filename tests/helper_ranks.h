/* helper_ranks.h - a test on several ranks: n forked processes, the output of each, and how each ended.
 *
 * The ranks communicate through a shared-memory region that they inherit: `where` is for ls_comm_open(). A rank passes if it returns from
 * its body; it fails by ranks_fail() and by any other end. Processes that are still there after the time limit are killed, and none is
 * left when ranks_run() returns. The parent must not have opened a comm or run threads before.
 */
#ifndef LS_TESTS_HELPER_RANKS_H
#define LS_TESTS_HELPER_RANKS_H

#include <stdbool.h>
#include <sys/types.h>
#include "lockstep/status.h"

enum { RANKS_MOST = 16, RANKS_LINE = 1024 };

typedef void ranks_body(int rank, int n, const char *where, void *ctx);

struct rank_end {
    int code;              /* exit code; -1 if there was none */
    int signal;            /* that ended it; 0 */
    bool late;             /* killed at the time limit */
    char said[RANKS_LINE]; /* the last ranks_say() or ranks_fail() */
};

/* Runs body on n ranks; ends[n]. `gone` marks ranks that end with a failure in the region, as a launcher does. */
struct ranks_options { double seconds; bool gone; };
void ranks_run(int n, const struct ranks_options *o, ranks_body *body, void *ctx, struct rank_end *ends);
/* All must pass: otherwise the running test fails with the first failed rank's line. */
void ranks_pass(int n, double seconds, ranks_body *body, void *ctx);
/* "rank 2 was killed by signal 9: said ..."; NULL if it passed. The text is valid until the next call. */
const char *rank_trouble(int rank, const struct rank_end *e);

/* To be called in a rank. Outside of ranks_run (a test under mpirun) they print to standard error. */
void ranks_say(const char *fmt, ...) LS_PRINTF(1, 2);
_Noreturn void ranks_fail(const char *fmt, ...) LS_PRINTF(1, 2);

/* An event: each report releases one process that waits for it. Open and close it in the parent. */
struct ranks_event { int end[2]; };
void ranks_event_open(struct ranks_event *e);
void ranks_event_close(struct ranks_event *e);
void ranks_event_wait(const struct ranks_event *e);
void ranks_event_report(const struct ranks_event *e);

void ranks_poll_pause(void);                       /* between two polls of an event that nothing signals */
void ranks_wait_state(pid_t pid, char state);      /* until /proc says that the process sleeps (S), is stopped (T) .. */

#define RANKS_CHECK(cond)                                                                            \
    do {                                                                                             \
        if (!(cond)) ranks_fail("%s:%d: %s", __FILE__, __LINE__, #cond);                             \
    } while (0)
#define RANKS_TRY(call)                                                                              \
    do {                                                                                             \
        if ((call) < 0) ranks_fail("%s:%d: %s: %s", __FILE__, __LINE__, #call, ls_errmsg());         \
    } while (0)

#endif
