/* collective_status.c - see collective_status.h. Nothing is allocated, so that a rank that is out of memory can report it. */
#include "checkpoint/collective_status.h"

#include <stdio.h>

struct verdict {
    int32_t status;
    char message[1020];
};

/* The first rank that failed broadcasts its message. A failure of the broadcast itself is ignored on that rank: it has its message. */
static ls_status broadcast_failure(ls_comm *comm, int first, const struct verdict *mine)
{
    struct verdict v = *mine;

    ls_status st = ls_broadcast(comm, &v, sizeof v, LS_U8, first, NULL);
    if (st < 0 && ls_comm_rank(comm) != first) return st;
    v.message[sizeof v.message - 1] = 0;
    return ls_comm_rank(comm) == first ? ls_fail((ls_status)mine->status, "%s", mine->message)
                                       : ls_fail((ls_status)v.status, "rank %d: %s", first, v.message);
}

ls_status agree(ls_comm *comm, ls_status st)
{
    int n = comm ? ls_comm_size(comm) : 1;
    struct verdict mine = { .status = st };

    if (n == 1) return st;
    snprintf(mine.message, sizeof mine.message, "%s", st < 0 ? ls_errmsg() : "");
    int32_t last = st < 0 ? n - ls_comm_rank(comm) : 0; /* size minus the first rank that failed; 0: no rank failed */
    ls_status reduced = ls_all_reduce(comm, &last, &last, 1, LS_I32, LS_MAX, NULL);
    if (reduced < 0) return st < 0 ? ls_fail(st, "%s", mine.message) : reduced;
    return last ? broadcast_failure(comm, n - last, &mine) : LS_OK;
}
