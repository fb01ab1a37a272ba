/* Any bytes as a comm table: refused in one line, or rows with which every call still has an algorithm that fits. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/base.h"
#include "base/mem.h"
#include "comm/algorithms/steps.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

static void check_comm_table(void)
{
    for (int op = 0; op < LS_COLLECTIVES; op++)
        for (int i = 0; i < 40; i++) {
            bool half = i & 1;
            const struct algorithm *a = algorithm_choose((ls_collective)op, (size_t)1 << i, 1 + i, half);

            algorithm_list_first((ls_collective)op, (size_t)1 << i, 1 + i, half);
            if (op == LS_COLLECTIVE_SEND || op == LS_COLLECTIVE_RECV) ASSERT(!a);
            else ASSERT(a && a->op == (ls_collective)op && (a->half || !half));
        }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    struct mem_stats before, after;
    char path[64];
    int fd = memfd_create("comm_table", MFD_CLOEXEC);

    ASSERT(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    mem_read(&before);
    if (algorithm_load_table(path) == LS_OK) check_comm_table();
    else ASSERT(strncmp(ls_errmsg(), path, strlen(path)) == 0);
    mem_read(&after);
    ASSERT(after.total_now == before.total_now);
    close(fd);
    return 0;
}
