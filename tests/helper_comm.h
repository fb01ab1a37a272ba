/* helper_comm.h - one call of a collective as a test case: buffers with guards, the call, its result compared with plain loops. */
#ifndef LS_TESTS_HELPER_COMM_H
#define LS_TESTS_HELPER_COMM_H

#include <stdbool.h>
#include "helper_ranks.h"
#include "lockstep/comm.h"

static const double COMM_TIMEOUT = 120;  /* seconds */
void comm_element_set(ls_dtype t, void *p, size_t i, double x);

struct comm_case {
    ls_collective op;
    bool     v, in_place, flying, heap;
    ls_dtype type;
    ls_redop redop;
    size_t   count;
    int      root;
};

struct comm_run {
    const struct comm_case *k;
    ls_comm *c;
    int      rank, n;
    size_t   size, counts[RANKS_MOST], recv_counts[RANKS_MOST], at[RANKS_MOST + 1], recv_at[RANKS_MOST + 1];
    size_t send_n, recv_n, own; /* elements of both buffers; offset of the small one in the big one */
};

const char *comm_case_text(const struct comm_case *k);
struct comm_run comm_run_plan(ls_comm *c, const struct comm_case *k);

void comm_case_run(ls_comm *c, const struct comm_case *k);

enum { COMM_OPS = 5 };

extern const ls_collective comm_ops[COMM_OPS];
bool comm_op_has_v(ls_collective op);

#endif
