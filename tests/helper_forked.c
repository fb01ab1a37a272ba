/* helper_forked.c */
#include "helper_forked.h"

struct forked { forked_fn *fn; void *ctx; };

static void body(int rank, int n, const char *where, void *ctx)
{
    const struct forked *f = ctx;
    ls_comm *comm;

    RANKS_TRY(ls_comm_open(where, rank, n, &comm));
    f->fn(comm, f->ctx);
    RANKS_TRY(ls_barrier(comm));
    ls_comm_close(&comm);
}

void forked_run(int n, forked_fn *fn, void *ctx)
{
    ranks_pass(n, 120, body, &(struct forked){ fn, ctx });
}
