/* helper_forked.h - a test's ranks as processes with one comm of shared memory.
 *
 * Forks must come before anything of this process has used its team of threads.
 */
#ifndef HELPER_FORKED_H
#define HELPER_FORKED_H

#include "lockstep/comm.h"

typedef void forked_fn(ls_comm *comm, void *ctx);
/* n processes each open the comm, call fn and leave; the test fails unless all leave with 0. */
void forked_run(int n, forked_fn *fn, void *ctx);

/* Inside a rank: what is wrong is printed, and the process leaves with 1. */
void forked_wrong(const char *file, int line, const char *what);
#define RANK_CHECK(cond) ((cond) ? (void)0 : forked_wrong(__FILE__, __LINE__, #cond))
#define RANK_OK(call)    ((call) >= 0 ? (void)0 : forked_wrong(__FILE__, __LINE__, #call))

#endif
