/* Any bytes as .gz and as .zst: refused in one line, or expanded; never more than the reader takes. */
#include <string.h>
#include "base/base.h"
#include "data/archive.h"

enum { MOST = 16 << 20 };

static ls_status fuzz_archive_take(void *ctx, const char *data, size_t bytes)
{
    size_t *all = ctx;

    (void)data;
    ASSERT(bytes > 0 && bytes <= ARCHIVE_BUFFER);
    *all += bytes;
    return *all > MOST ? ls_fail(LS_EINVAL, "enough") : LS_OK;
}

static void check(ls_status st, size_t all)
{
    ASSERT(st == LS_OK || (st == LS_EFORMAT && !strchr(ls_errmsg(), '\n')) || (st == LS_EINVAL && all > MOST));
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    size_t all = 0;

    check(gzip_expand(data, bytes, fuzz_archive_take, &all), all);
    all = 0;
    check(zstd_expand(data, bytes, fuzz_archive_take, &all), all);
    return 0;
}
