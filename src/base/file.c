/* file.c - reading whole files, and publishing new ones. See file.h for the rules of publishing. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"

enum { WRITE_BUFFER = 256 << 10, READ_STEP = 64 << 10, TREE_DESCRIPTORS = 16, PULSE_BYTES = 8 << 20 };

file_fault_fn *file_fault;

static ls_status fail_errno(const char *path, const char *doing)
{
    return ls_fail(LS_EIO, "%s: cannot %s: %s", path, doing, strerror(errno));
}

static ls_status open_to_read(const char *path, int *fd, struct stat *st)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) return fail_errno(path, "open");
    if (fstat(*fd, st) == 0 && !S_ISDIR(st->st_mode)) return LS_OK;
    if (S_ISDIR(st->st_mode)) errno = EISDIR;
    ls_status failed = fail_errno(path, "read");
    close(*fd);
    return failed;
}

ls_status file_map_open(const char *path, struct file_map *out)
{
    struct stat st = { 0 };
    int fd;
    void *data = NULL;

    LS_TRY(open_to_read(path, &fd, &st));
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return ls_fail(LS_EIO, "%s: not a regular file, but a folder, a device or a pipe; use a file", path);
    }
    if (st.st_size > 0) data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    ls_status result = data == MAP_FAILED ? fail_errno(path, "map") : LS_OK;
    close(fd);
    if (result == LS_OK) *out = (struct file_map){ data, (size_t)st.st_size };
    return result;
}

void file_map_expect(const void *data, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)data / page * page;

    if (bytes) madvise((void *)from, (uintptr_t)data + bytes - from, MADV_WILLNEED); /* advice: without it, reads are slower */
}

void file_map_close(struct file_map *m)
{
    if (m->data) munmap((void *)(uintptr_t)m->data, m->bytes);
    *m = (struct file_map){ 0 };
}

/* Reads until the end of the file: the size from stat is only a first guess, and 0 for the kernel's virtual files. */
static ls_status read_to_end(int fd, const char *path, char **text, size_t *room, size_t *bytes)
{
    for (;;) {
        if (*room - *bytes < 2) {
            char *more = *room <= SIZE_MAX / 2 ? mem_resize(*text, *room * 2) : NULL;

            if (!more) return ls_fail_at(LS_ENOMEM, "%s", path);
            *text = more;
            *room *= 2;
        }
        pulse();
        ssize_t got = read(fd, *text + *bytes, MIN(*room - *bytes - 1, (size_t)PULSE_BYTES));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno(path, "read");
        if (got == 0) return LS_OK;
        *bytes += (size_t)got;
    }
}

ls_status file_read(const char *path, char **text, size_t *bytes)
{
    struct stat st = { 0 };
    int fd;
    size_t got = 0;

    LS_TRY(open_to_read(path, &fd, &st));
    size_t room = st.st_size > 0 ? (size_t)st.st_size + 2 : READ_STEP;
    char *all = mem_alloc(MEM_OTHER, room);
    ls_status result = all ? read_to_end(fd, path, &all, &room, &got) : ls_fail_at(LS_ENOMEM, "%s", path);
    close(fd);
    if (result != LS_OK) {
        mem_free(all);
        return result;
    }
    all[got] = '\0';
    *text = all;
    if (bytes) *bytes = got;
    return LS_OK;
}

/* write(2), for which a fault may leave less space than it needs: the part that fits is written. */
static ssize_t write_some(int fd, const void *data, size_t bytes)
{
    file_fault_fn *fault = __atomic_load_n(&file_fault, __ATOMIC_ACQUIRE);
    size_t space = fault ? fault(bytes) : bytes;

    if (space >= bytes) return write(fd, data, bytes);
    if (space > 0 && write(fd, data, space) < 0) return -1;
    errno = ENOSPC;
    return -1;
}

struct file_writer {
    char *path, *tmp;
    int fd;
    ls_status failed; /* the first failure; LS_OK until then */
    size_t held;      /* bytes in buffer */
    uint64_t written; /* bytes in the file */
    uint64_t started; /* bytes that the disk has begun to write */
    unsigned char buffer[WRITE_BUFFER];
};

/* Lets the disk begin with what was written, while the caller prepares the rest. Only a hint: failures are found when the file is synced.
 */
static void write_start(file_writer *w)
{
    uint64_t bytes = (w->written - w->started) / PULSE_BYTES * PULSE_BYTES;

    if (bytes == 0) return;
    sync_file_range(w->fd, (off_t)w->started, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
    w->started += bytes;
}

static ls_status write_all(file_writer *w, const unsigned char *data, size_t bytes)
{
    size_t all = bytes;

    while (bytes > 0) {
        pulse();
        ssize_t done = write_some(w->fd, data, MIN(bytes, (size_t)PULSE_BYTES));

        if (done < 0 && errno == EINTR) continue;
        if (done < 0)
            return w->failed = ls_fail(LS_EIO, "%s: cannot write %zu bytes at offset %llu: %s", w->tmp, all, (unsigned long long)w->written,
                                       strerror(errno));
        data += done;
        bytes -= (size_t)done;
    }
    w->written += all;
    write_start(w);
    return LS_OK;
}

static ls_status flush(file_writer *w)
{
    size_t bytes = w->held;

    w->held = 0;
    return write_all(w, w->buffer, bytes);
}

static void writer_free(file_writer *w)
{
    mem_free(w->path);
    mem_free(w->tmp);
    mem_free(w);
}

ls_status file_writer_open(const char *path, file_writer **out)
{
    file_writer *w = mem_alloc(MEM_OTHER, sizeof *w);
    ls_status st;

    if (!w) return ls_fail_at(LS_ENOMEM, "%s", path);
    w->failed = LS_OK;
    w->held = 0;
    w->written = 0;
    w->started = 0;
    w->path = mem_strdup(path);
    w->tmp = w->path ? file_path("%s.tmp", path) : NULL;
    if (!w->tmp) {
        st = ls_fail_at(LS_ENOMEM, "%s", path);
        goto free_writer;
    }
    w->fd = open(w->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        st = fail_errno(w->tmp, "create");
        goto free_writer;
    }
    *out = w;
    return LS_OK;
free_writer:
    writer_free(w);
    return st;
}

ls_status file_writer_put(file_writer *w, const void *data, size_t bytes)
{
    if (w->failed != LS_OK) return w->failed;
    if (bytes > WRITE_BUFFER - w->held) LS_TRY(flush(w));
    if (bytes >= WRITE_BUFFER) return write_all(w, data, bytes);
    if (bytes > 0) memcpy(w->buffer + w->held, data, bytes);
    w->held += bytes;
    return LS_OK;
}

/* Makes the names in a folder durable. Some file systems have no fsync for folders and return EINVAL. */
static ls_status sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) return fail_errno(folder, "open the folder");
    ls_status result = fsync(fd) == 0 || errno == EINVAL ? LS_OK : fail_errno(folder, "sync the folder");
    close(fd);
    return result;
}

/* The folder that holds path, in a new string; trailing slashes are ignored. */
static char *parent_of(const char *path)
{
    size_t end = strlen(path);

    while (end > 1 && path[end - 1] == '/') end--;
    while (end > 0 && path[end - 1] != '/') end--;
    while (end > 1 && path[end - 1] == '/') end--;
    return end ? file_path("%.*s", (int)end, path) : mem_strdup(".");
}

static ls_status publish(const char *tmp, const char *path)
{
    char *parent = parent_of(path);

    if (!parent) return ls_fail_at(LS_ENOMEM, "%s", path);
    ls_status st = rename(tmp, path) == 0 ? sync_folder(parent) : fail_errno(path, "rename its .tmp to it");
    mem_free(parent);
    return st;
}

/* Writes the data out block by block, with a pulse for each, before fsync() has to wait for all of it. The kernel reports a failed write
 * once per descriptor, so fsync() would not report a failure again that is found here. On file systems without the call, fsync() does
 * everything. */
static ls_status write_back(const file_writer *w)
{
    const unsigned all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;

    for (uint64_t from = 0; from < w->written; from += PULSE_BYTES) {
        pulse();
        if (sync_file_range(w->fd, (off_t)from, PULSE_BYTES, all) == 0) continue;
        return errno == EINVAL || errno == ESPIPE || errno == ENOSYS || errno == EOPNOTSUPP ? LS_OK : fail_errno(w->tmp, "sync");
    }
    return LS_OK;
}

ls_status file_writer_publish(file_writer **at)
{
    file_writer *w = *at;
    ls_status st = w->failed != LS_OK ? w->failed : flush(w);

    if (st == LS_OK) st = write_back(w);
    if (st == LS_OK && fsync(w->fd) != 0) st = fail_errno(w->tmp, "sync");
    if (close(w->fd) != 0 && st == LS_OK) st = fail_errno(w->tmp, "close");
    if (st == LS_OK) st = publish(w->tmp, w->path);
    if (st != LS_OK) unlink(w->tmp);
    writer_free(w);
    *at = NULL;
    return st;
}

void file_writer_abandon(file_writer **at)
{
    file_writer *w = *at;

    if (!w) return;
    close(w->fd);
    unlink(w->tmp);
    writer_free(w);
    *at = NULL;
}

ls_status file_write(const char *path, const void *data, size_t bytes)
{
    file_writer *w;

    LS_TRY(file_writer_open(path, &w));
    ls_status st = file_writer_put(w, data, bytes);
    if (st == LS_OK) return file_writer_publish(&w);
    file_writer_abandon(&w);
    return st;
}

ls_status file_make_folders(const char *path)
{
    char *part = mem_strdup(path);
    ls_status st = LS_OK;

    if (!part) return ls_fail_at(LS_ENOMEM, "%s", path);
    for (size_t i = 1; st == LS_OK && part[0] != '\0'; i++) {
        char here = part[i];

        if (here != '/' && here != '\0') continue;
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && !(errno == EEXIST && file_is_folder(part))) st = fail_errno(part, "make the folder");
        part[i] = here;
        if (here == '\0') break;
    }
    mem_free(part);
    return st;
}

ls_status file_publish_folder(const char *tmp, const char *path)
{
    LS_TRY(sync_folder(tmp));
    return publish(tmp, path);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    if (remove(path) == 0 || errno == ENOENT) return 0;
    return fail_errno(path, "remove");
}

ls_status file_remove_tree(const char *path)
{
    struct stat st;

    if (lstat(path, &st) != 0) return errno == ENOENT ? LS_OK : fail_errno(path, "remove");
    int walked = nftw(path, remove_one, TREE_DESCRIPTORS, FTW_DEPTH | FTW_PHYS);
    return walked == -1 ? fail_errno(path, "remove") : (ls_status)walked;
}

int file_exists(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0;
}

int file_is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *file_path(const char *fmt, ...)
{
    va_list args, again;

    va_start(args, fmt);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, fmt, args);
    char *text = length >= 0 ? mem_alloc(MEM_OTHER, (size_t)length + 1) : NULL;
    if (text) vsnprintf(text, (size_t)length + 1, fmt, again);
    va_end(again);
    va_end(args);
    return text;
}

char *file_cache_folder(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    if (cache && cache[0] == '/') return file_path("%s/lockstep", cache);
    if (home && home[0] == '/') return file_path("%s/.cache/lockstep", home);
    ls_fail(LS_EIO, "neither XDG_CACHE_HOME nor HOME names a folder");
    return NULL;
}

int file_is_basename(const char *name)
{
    if (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return 0;
    for (; *name; name++)
        if (*name == '/' || (unsigned char)*name < ' ' || *name == 0x7f) return 0;
    return 1;
}
