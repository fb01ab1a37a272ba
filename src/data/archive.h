/* archive.h - compressed files, expanded a buffer at a time. */
#ifndef LS_DATA_ARCHIVE_H
#define LS_DATA_ARCHIVE_H

#include <stddef.h>
#include "lockstep/status.h"

enum { ARCHIVE_BUFFER = 256 << 10 }; /* bytes expanded at a time */

/* Receives the next bytes; any status except LS_OK ends the reading with that status. */
typedef ls_status bytes_fn(void *ctx, const char *data, size_t bytes);

/* Expands all members (frames) of from[bytes], one after another. LS_EFORMAT: damaged or truncated. */
ls_status gzip_expand(const void *from, size_t bytes, bytes_fn *fn, void *ctx); /* gzip.c */
ls_status zstd_expand(const void *from, size_t bytes, bytes_fn *fn, void *ctx); /* zstd.c */

#endif
