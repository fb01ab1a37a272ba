/* zstd.c - .zst files, by libzstd; the only place that uses it. */
#include "data/archive.h"

#include <zstd.h>
#include "base/base.h"
#include "base/mem.h"

static ls_status expand(ZSTD_DStream *z, ZSTD_inBuffer *in, char *buffer, bytes_fn *fn, void *ctx)
{
    size_t more = 1; /* 0 after a frame */

    while (in->pos < in->size || more) {
        ZSTD_outBuffer out = { buffer, ARCHIVE_BUFFER, 0 };
        size_t before = in->pos;

        more = ZSTD_decompressStream(z, &out, in);
        if (ZSTD_isError(more)) return ls_fail(LS_EFORMAT, "the zstd file is damaged: %s", ZSTD_getErrorName(more));
        if (more && in->pos == before && out.pos == 0) return ls_fail(LS_EFORMAT, "the zstd file is truncated");
        if (out.pos) LS_TRY(fn(ctx, buffer, out.pos));
    }
    return LS_OK;
}

ls_status zstd_expand(const void *from, size_t bytes, bytes_fn *fn, void *ctx)
{
    ZSTD_inBuffer in = { from, bytes, 0 };
    ZSTD_DStream *z = ZSTD_createDStream();
    char *buffer = mem_alloc(MEM_OTHER, ARCHIVE_BUFFER);
    ls_status st = z && buffer ? LS_OK : ls_fail(LS_ENOMEM, "out of memory: expanding a zstd file");

    if (st == LS_OK) st = expand(z, &in, buffer, fn, ctx);
    ZSTD_freeDStream(z);
    mem_free(buffer);
    return st;
}
