/* gzip.c - .gz files, by zlib; the only place that uses it. */
#include "data/archive.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <zlib.h>
#include "base/base.h"
#include "base/mem.h"

struct gzip {
    z_stream z;
    const unsigned char *from;
    size_t left;
    char *buffer;
};

static voidpf gzip_allocate(voidpf ctx, uInt items, uInt size)
{
    (void)ctx;
    return mem_array(MEM_OTHER, items, size);
}

static void give_back(voidpf ctx, voidpf p)
{
    (void)ctx;
    mem_free(p);
}

static ls_status gzip_fail(const struct gzip *g, int code)
{
    if (code == Z_MEM_ERROR) return LS_ENOMEM;
    if (code == Z_BUF_ERROR) return ls_fail(LS_EFORMAT, "the gzip file is truncated");
    return ls_fail(LS_EFORMAT, "the gzip file is damaged: %s", g->z.msg ? g->z.msg : "not gzip");
}

/* Expands one more buffer; *ended: a member ends here. */
static ls_status expand_some(struct gzip *g, bytes_fn *fn, void *ctx, bool *ended)
{
    uInt given = (uInt)MIN(g->left, (size_t)1 << 30);

    g->z.next_in = (Bytef *)(uintptr_t)g->from;
    g->z.avail_in = given;
    g->z.next_out = (Bytef *)g->buffer;
    g->z.avail_out = ARCHIVE_BUFFER;
    int code = inflate(&g->z, Z_NO_FLUSH);
    size_t taken = given - g->z.avail_in;
    g->from += taken;
    g->left -= taken;
    *ended = code == Z_STREAM_END;
    if (code != Z_OK && code != Z_STREAM_END) return gzip_fail(g, code);
    return ARCHIVE_BUFFER > g->z.avail_out ? fn(ctx, g->buffer, ARCHIVE_BUFFER - g->z.avail_out) : LS_OK;
}

static ls_status expand(struct gzip *g, bytes_fn *fn, void *ctx)
{
    bool ended = false;

    for (;;) {
        LS_TRY(expand_some(g, fn, ctx, &ended));
        if (!ended) continue;
        if (g->left == 0) return LS_OK;
        if (inflateReset(&g->z) != Z_OK) return gzip_fail(g, Z_DATA_ERROR);
    }
}

ls_status gzip_expand(const void *from, size_t bytes, bytes_fn *fn, void *ctx)
{
    enum { WINDOW = 15, GZIP = 16 };
    struct gzip g = { .z = { .zalloc = gzip_allocate, .zfree = give_back }, .from = from, .left = bytes };
    ls_status st = LS_ENOMEM;

    if (inflateInit2(&g.z, WINDOW + GZIP) != Z_OK) return LS_ENOMEM;
    g.buffer = mem_alloc(MEM_OTHER, ARCHIVE_BUFFER);
    if (g.buffer) st = expand(&g, fn, ctx);
    inflateEnd(&g.z);
    mem_free(g.buffer);
    return st;
}
