/* backing.c - what is offloaded in a file: an unnamed file in a folder that the user chooses, removed when the process ends. Programs on a
 * device with streams load and save it by backing_queue.c.
 *
 * One file per unit; each kind is a contiguous range of it that begins at a page, in order of allocation, with elements as in memory. The
 * page cache would hold a second copy of what is offloaded so as not to be in memory, and hide the speed of the disk, so it is left out:
 * whole pages to and from memory that is aligned to pages are moved with O_DIRECT. Everything else (the last part of a page, what the host
 * reads and writes, a file system without O_DIRECT, such as tmpfs) goes through the page cache, which is told to drop the pages.
 */
#include "runtime/store_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "base/file.h"
#include "base/log.h"

enum { CHUNK = 8 << 20 }; /* bytes of one system call */

static ls_status failed(const struct flat_unit *g, const char *what, int error)
{
    return ls_fail(LS_EIO, "%s: %s a file of offloaded tensors: %s", g->path, what, strerror(error));
}

/* Once per process. */
static void say_cached(const struct flat_unit *g)
{
    static atomic_bool said;

    if (!atomic_exchange(&said, true))
        log_line(LOG_WARN, "%s: its file system has no O_DIRECT, so offloaded tensors pass through the page cache; it drops them after use",
                 g->path);
}

static ls_status open_unnamed(struct flat_unit *g)
{
    char *path = file_path("%s/.lockstep_XXXXXX", g->path);

    if (!path) return LS_ENOMEM;
    g->fd = mkostemp(path, O_CLOEXEC);
    if (g->fd >= 0) {
        g->direct = open(path, O_RDWR | O_CLOEXEC | O_DIRECT);
        if (g->direct < 0) say_cached(g);
        unlink(path);
    }
    mem_free(path);
    return g->fd >= 0 ? LS_OK : failed(g, "cannot create", errno);
}

ls_status backing_grow(struct flat_unit *g, size_t bytes, off_t *at)
{
    size_t whole = (bytes + LS_PAGE - 1) / LS_PAGE * LS_PAGE;

    if (g->fd < 0) LS_TRY(open_unnamed(g));
    int error = whole ? posix_fallocate(g->fd, g->file_bytes, (off_t)whole) : 0;
    if (error) return ls_fail(LS_EIO, "%s: no space for %zu bytes of offloaded tensors: %s", g->path, bytes, strerror(error));
    *at = g->file_bytes;
    g->file_bytes += (off_t)whole;
    return LS_OK;
}

static ls_status move_bytes(const struct flat_unit *g, int fd, off_t at, char *data, size_t bytes, bool save, atomic_uint *progress)
{
    for (size_t done = 0; done < bytes;) {
        size_t most = MIN(bytes - done, (size_t)CHUNK);
        ssize_t n = save ? pwrite(fd, data + done, most, at + (off_t)done) : pread(fd, data + done, most, at + (off_t)done);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed(g, save ? "cannot write" : "cannot read", errno);
        if (n == 0) return ls_fail(LS_EIO, "%s: a file of offloaded tensors ends after %zu of %zu bytes", g->path, done, bytes);
        done += (size_t)n;
        if (done % LS_PAGE) fd = g->fd; /* what follows is not aligned */
        if (progress) atomic_fetch_add(progress, 1);
    }
    return LS_OK;
}

/* Through the page cache. A range of less than a page stays in it. */
static ls_status move_cached(const struct flat_unit *g, off_t at, char *data, size_t bytes, bool save, atomic_uint *progress)
{
    LS_TRY(move_bytes(g, g->fd, at, data, bytes, save, progress));
    if (bytes < LS_PAGE) return LS_OK;
    if (save &&
        sync_file_range(g->fd, at, (off_t)bytes, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER) < 0)
        return failed(g, "cannot write", errno);
    posix_fadvise(g->fd, at, (off_t)bytes, POSIX_FADV_DONTNEED);
    return LS_OK;
}

static ls_status backing_move(const struct flat_unit *g, off_t at, char *data, size_t bytes, bool save, atomic_uint *progress)
{
    bool aligned = g->direct >= 0 && ((uintptr_t)data | (uintptr_t)at) % LS_PAGE == 0;
    size_t whole = aligned ? bytes / LS_PAGE * LS_PAGE : 0;

    LS_TRY(move_bytes(g, g->direct, at, data, whole, save, progress));
    return move_cached(g, at + (off_t)whole, data + whole, bytes - whole, save, progress);
}

ls_status backing_read(const struct flat_unit *g, off_t at, void *to, size_t bytes, atomic_uint *progress)
{
    return backing_move(g, at, to, bytes, false, progress);
}

ls_status backing_write(const struct flat_unit *g, off_t at, const void *from, size_t bytes, atomic_uint *progress)
{
    return backing_move(g, at, (char *)(uintptr_t)from, bytes, true, progress);
}
