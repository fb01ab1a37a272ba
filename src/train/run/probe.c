/* probe.c - checks that folders can be written and have enough space. */
#include "train/run/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "train/run/run_folder.h"

enum { PROBE_BYTES = 4096 };

static ls_status probe_fail(const char *name, const char *path, const char *what)
{
    return ls_fail(LS_EIO, "%s: %s: cannot %s: %s", name, path, what, strerror(errno));
}

static ls_status write_file(const char *name, const char *path)
{
    static const char zeros[PROBE_BYTES];
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0) return probe_fail(name, path, "create a file");
    ls_status st = write(fd, zeros, sizeof zeros) == (ssize_t)sizeof zeros && fsync(fd) == 0 ? LS_OK : probe_fail(name, path, "write");
    close(fd);
    unlink(path);
    return st;
}

static ls_status try_file(const char *name, const char *folder)
{
    char host[RUN_HOST];

    run_host(host);
    char *path = file_path("%s/probe.%s.%ld.tmp", folder, host, (long)getpid());
    ls_status st = path ? write_file(name, path) : LS_ENOMEM;

    mem_free(path);
    return st;
}

/* *kept: length of the leading part of `path` that exists; 0 if no part of a relative path does. */
static ls_status find_existing(const char *path, size_t *kept)
{
    char *part = mem_strdup(path);
    size_t length = strlen(path);

    while (part && length && !file_exists(part)) {
        while (length && part[length - 1] == '/') part[--length] = '\0';
        while (length && part[length - 1] != '/') part[--length] = '\0';
    }
    *kept = length;
    mem_free(part);
    return part ? LS_OK : LS_ENOMEM;
}

/* Removes the empty folders of `path` beyond its first `kept` bytes, the innermost first. */
static ls_status remove_made(const char *path, size_t kept)
{
    char *part = mem_strdup(path);
    size_t length = strlen(path);

    while (part && length > kept) {
        while (length > kept && part[length - 1] == '/') part[--length] = '\0';
        if (length <= kept || (rmdir(part) != 0 && errno != EINVAL)) break; /* EINVAL: it ends in "." */
        while (length > kept && part[length - 1] != '/') part[--length] = '\0';
    }
    mem_free(part);
    return part ? LS_OK : LS_ENOMEM;
}

ls_status probe_folder(const char *name, const char *path)
{
    size_t kept;
    ls_status st = LS_EIO;

    LS_TRY(find_existing(path, &kept));
    for (int tries = 0; tries < 5 && st == LS_EIO; tries++) { /* a probe on another machine may remove the folder in between */
        st = file_make_folders(path);
        st = st == LS_OK ? try_file(name, path) : ls_fail_at(st, "%s", name);
    }
    if (st == LS_OK) return remove_made(path, kept);
    remove_made(path, kept);
    return st;
}

ls_status probe_space(const char *name, const char *path, size_t bytes, const char *what)
{
    size_t kept;
    char need[16], have[16];
    struct statvfs fs;

    LS_TRY(find_existing(path, &kept));
    char *folder = kept ? file_path("%.*s", (int)kept, path) : mem_strdup(".");
    if (!folder) return LS_ENOMEM;
    int failed = statvfs(folder, &fs);
    mem_free(folder);
    if (failed) return probe_fail(name, path, "read the free space");
    double free_bytes = (double)fs.f_bavail * (double)fs.f_frsize;
    if (fs.f_blocks == 0 || free_bytes >= (double)bytes) return LS_OK; /* no blocks: the file system does not report free space */
    return ls_fail(LS_EIO, "%s: %s: not enough space for %s: %s needed, %s free", name, path, what, text_bytes(need, bytes),
                   text_bytes(have, (size_t)free_bytes));
}
