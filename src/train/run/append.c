/* append.c - files to which complete lines or records are appended. */
#include "train/run/append.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"

ls_status append_open(const char *path, struct append *out)
{
    char *copy = mem_strdup(path);

    if (!copy) return LS_ENOMEM;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) {
        mem_free(copy);
        return ls_fail(LS_EIO, "%s: cannot open for appending: %s", path, strerror(errno));
    }
    *out = (struct append){ fd, 0, copy };
    return LS_OK;
}

void append_put(struct append *a, const void *data, size_t bytes)
{
    const char *at = data;
    off_t start = lseek(a->fd, 0, SEEK_END);
    size_t left = bytes;

    while (left > 0) {
        ssize_t done = write(a->fd, at, left);

        if (done < 0 && errno == EINTR) continue;
        if (done < 0) break;
        at += done;
        left -= (size_t)done;
    }
    if (left == 0) return;
    int why = errno;
    int incomplete = left < bytes && start >= 0 && ftruncate(a->fd, start) != 0;
    if (!a->warned)
        log_line(LOG_WARN, "%s: cannot write: %s; training continues without it%s", a->path, strerror(why),
                 incomplete ? "; its last line is incomplete" : "");
    a->warned = 1;
}

void append_close(struct append *a)
{
    if (a->fd >= 0) close(a->fd);
    mem_free(a->path);
    *a = (struct append)APPEND_NONE;
}
