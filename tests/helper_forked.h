/* helper_forked.h - ranks of helper_ranks.h for which one comm is opened. */
#ifndef LS_TESTS_HELPER_FORKED_H
#define LS_TESTS_HELPER_FORKED_H

#include "helper_ranks.h"
#include "lockstep/comm.h"

typedef void forked_fn(ls_comm *comm, void *ctx);
/* n processes each open the comm, call fn, and close it together; the test fails unless all pass. */
void forked_run(int n, forked_fn *fn, void *ctx);

#endif
