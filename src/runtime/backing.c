/* backing.c - optimizer state in a file: an unnamed file in a folder that the user chooses, removed when the process ends. Programs on a
 * device with streams load and save it by backing_queue.c.
 *
 * One file per group; each state is a contiguous range of it, in order of allocation, with elements as in memory.
 */
#include "runtime/store_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "base/file.h"

static ls_status failed(const struct group *g, const char *what, int error)
{
    return ls_fail(LS_EIO, "%s: %s a file of optimizer state: %s", g->path, what, strerror(error));
}

static ls_status open_unnamed(struct group *g)
{
    char *path = file_path("%s/.lockstep_XXXXXX", g->path);

    if (!path) return LS_ENOMEM;
    g->fd = mkostemp(path, O_CLOEXEC);
    if (g->fd >= 0) unlink(path);
    mem_free(path);
    return g->fd >= 0 ? LS_OK : failed(g, "cannot create", errno);
}

ls_status backing_grow(struct group *g, size_t bytes, off_t *at)
{
    int error;

    if (g->fd < 0) LS_TRY(open_unnamed(g));
    error = bytes ? posix_fallocate(g->fd, g->file_bytes, (off_t)bytes) : 0;
    if (error) return ls_fail(LS_EIO, "%s: no space for %zu bytes of optimizer state: %s", g->path, bytes, strerror(error));
    *at = g->file_bytes;
    g->file_bytes += (off_t)bytes;
    return LS_OK;
}

ls_status backing_read(const struct group *g, off_t at, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(g->fd, (char *)to + done, bytes - done, at + (off_t)done);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed(g, "cannot read", errno);
        if (n == 0) return ls_fail(LS_EIO, "%s: a file of optimizer state ends after %zu of %zu bytes", g->path, done, bytes);
        done += (size_t)n;
    }
    return LS_OK;
}

ls_status backing_write(const struct group *g, off_t at, const void *from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(g->fd, (const char *)from + done, bytes - done, at + (off_t)done);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed(g, "cannot write", errno);
        done += (size_t)n;
    }
    return LS_OK;
}
