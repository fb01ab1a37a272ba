/* agree.c - see agree.h. */
#include "checkpoint/agree.h"

#include <stdio.h>
#include "base/mem.h"

enum { MESSAGE = 1024 };

/* The first rank that failed tells the others why. */
static ls_status spread(ls_comm *comm, int first, ls_status st)
{
    char message[MESSAGE] = "";

    if (ls_comm_rank(comm) == first)
        snprintf(message, sizeof message, "%s", ls_errmsg());
    LS_TRY(ls_broadcast(comm, message, MESSAGE, LS_U8, first, NULL));
    message[MESSAGE - 1] = 0;
    return ls_comm_rank(comm) == first ? ls_fail(st, "%s", message) : ls_fail(st, "rank %d: %s", first, message);
}

ls_status agree(ls_comm *comm, ls_status st)
{
    int32_t mine = st, *all, failed = LS_OK;
    int n = comm ? ls_comm_size(comm) : 1, first = 0;
    char message[MESSAGE];
    ls_status told;

    if (n == 1)
        return st;
    snprintf(message, sizeof message, "%s", ls_errmsg());
    all = mem_array(MEM_OTHER, (size_t)n, sizeof *all);
    if (!all)
        return LS_ENOMEM;
    told = ls_all_gather(comm, &mine, all, 1, LS_I32, NULL);
    for (int r = n - 1; told == LS_OK && r >= 0; r--)
        if (all[r] < 0) {
            failed = all[r];
            first = r;
        }
    mem_free(all);
    if (told < 0)
        return st < 0 ? ls_fail(st, "%s", message) : told;
    if (failed == LS_OK)
        return LS_OK;
    if (st < 0)
        ls_fail(st, "%s", message);  /* a collective may have changed it */
    return spread(comm, first, (ls_status)failed);
}
