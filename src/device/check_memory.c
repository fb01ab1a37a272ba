/* check_memory.c - the checking device's memory: see check.h. */
#include "device/check.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/base.h"

/* Sorted by address. */
static struct {
    struct check_block **at;
    int n, room;
} check_memory_blocks;
static struct sigaction handler_before;

void check_die(const char *fmt, ...)
{
    char line[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fflush(stdout);
    fprintf(stderr, "lockstep: device check: %s\n", line);
    _exit(1);
}

/* Index of the first block that begins after p. */
static int blocks_after(const void *p)
{
    int low = 0, high = check_memory_blocks.n;

    while (low < high) {
        int middle = (low + high) / 2;

        if ((uintptr_t)check_memory_blocks.at[middle]->visible > (uintptr_t)p)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct check_block *check_block_of(const void *p, size_t bytes)
{
    int k = blocks_after(p) - 1;

    if (k < 0) return NULL;
    uintptr_t at = (uintptr_t)p - (uintptr_t)check_memory_blocks.at[k]->visible;
    return at <= check_memory_blocks.at[k]->bytes && bytes <= check_memory_blocks.at[k]->bytes - at ? check_memory_blocks.at[k] : NULL;
}

struct check_block *check_block_at(int i) { return i < check_memory_blocks.n ? check_memory_blocks.at[i] : NULL; }

static void on_fault(int number, siginfo_t *info, void *context)
{
    int k = blocks_after(info->si_addr) - 1;

    (void)context;
    if (k >= 0 && (uintptr_t)info->si_addr - (uintptr_t)check_memory_blocks.at[k]->visible < check_memory_blocks.at[k]->mapped)
        check_die("the host touched device memory: byte %zu of %zu of %s; copy it out, or launch a kernel",
                  (size_t)((uintptr_t)info->si_addr - (uintptr_t)check_memory_blocks.at[k]->visible), check_memory_blocks.at[k]->bytes,
                  mem_category_name(check_memory_blocks.at[k]->category));
    sigaction(number, &handler_before, NULL); /* not our memory: raise the signal again for the previous handler */
}

static void watch_faults(void)
{
    static bool watching;
    struct sigaction a = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER };

    if (!watching) sigaction(SIGSEGV, &a, &handler_before);
    watching = true;
}

static ls_status blocks_insert(struct check_block *b)
{
    int k = blocks_after(b->visible);

    if (check_memory_blocks.n == check_memory_blocks.room) {
        int room = check_memory_blocks.room ? 2 * check_memory_blocks.room : 64;
        struct check_block **grown = mem_resize(check_memory_blocks.at, (size_t)room * sizeof *grown);

        if (!grown) return LS_ENOMEM;
        check_memory_blocks.at = grown;
        check_memory_blocks.room = room;
    }
    memmove(&check_memory_blocks.at[k + 1], &check_memory_blocks.at[k],
            (size_t)(check_memory_blocks.n - k) * sizeof *check_memory_blocks.at);
    check_memory_blocks.at[k] = b;
    check_memory_blocks.n++;
    return LS_OK;
}

/* file < 0: it could not be made. */
static ls_status block_map(struct check_block *b, int file)
{
    if (file >= 0) {
        b->visible = mmap(NULL, b->mapped, PROT_NONE, MAP_SHARED, file, 0);
        b->shadow = mmap(NULL, b->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (file >= 0 && b->visible != MAP_FAILED && b->shadow != MAP_FAILED) return LS_OK;
    if (file >= 0 && b->visible != MAP_FAILED) munmap(b->visible, b->mapped);
    if (file >= 0 && b->shadow != MAP_FAILED) munmap(b->shadow, b->mapped);
    return ls_fail(LS_ENOMEM, "device check: %zu bytes can't be mapped: %s", b->bytes, strerror(errno));
}

static int file_new(size_t bytes)
{
    int file = memfd_create("lockstep device check", MFD_CLOEXEC);

    if (file < 0 || ftruncate(file, (off_t)bytes) == 0) return file;
    close(file);
    return -1;
}

static void block_free(struct check_block *b)
{
    if (b->file >= 0) close(b->file);
    munmap(b->visible, b->mapped);
    munmap(b->shadow, b->mapped);
    mem_give(b->category, b->bytes);
    mem_free(b->records.at);
    mem_free(b);
}

/* Of the bytes of a file or, where file is -1, of new ones. */
static struct check_block *block_new(enum mem_category c, size_t bytes, int file)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct check_block *b;
    int made = -1;

    watch_faults();
    if (mem_take(c, bytes) < 0) return NULL;
    b = mem_zalloc(MEM_OTHER, sizeof *b);
    if (!b) goto give_bytes;
    *b = (struct check_block){ .bytes = bytes, .mapped = (MAX(bytes, (size_t)1) + page - 1) / page * page, .category = c, .file = -1 };
    if (file < 0) made = file_new(b->mapped);
    if (block_map(b, file < 0 ? made : file) < 0) goto free_block;
    if (made >= 0) close(made);
    if (blocks_insert(b) < 0) {
        block_free(b);
        return NULL;
    }
    return b;

free_block:
    if (made >= 0) close(made);
    mem_free(b);
give_bytes:
    mem_give(c, bytes);
    return NULL;
}

void *check_alloc(enum mem_category c, size_t bytes)
{
    struct check_block *b = block_new(c, bytes, -1);

    if (!b) return NULL;
    memset(b->shadow, 0xff, bytes); /* no program may rely on zeros */
    return b->visible;
}

void *check_map(int file, size_t bytes)
{
    struct check_block *b = block_new(MEM_OTHER, bytes, file);

    return b ? b->visible : NULL;
}

/* The same bytes at the same addresses, in a file that is kept open. */
int check_file(struct check_block *b)
{
    int file = b->file < 0 ? file_new(b->mapped) : b->file;

    if (b->file >= 0) return file;
    if (file < 0 || pwrite(file, b->shadow, b->mapped, 0) != (ssize_t)b->mapped ||
        mmap(b->visible, b->mapped, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED ||
        mmap(b->shadow, b->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
        check_die("%zu bytes can't be mapped again: %s", b->bytes, strerror(errno));
    return b->file = file;
}

void check_release(void *p)
{
    int k = blocks_after(p) - 1;

    if (k < 0 || check_memory_blocks.at[k]->visible != p) check_die("freed memory that was not allocated");
    block_free(check_memory_blocks.at[k]);
    check_memory_blocks.n--;
    memmove(&check_memory_blocks.at[k], &check_memory_blocks.at[k + 1],
            (size_t)(check_memory_blocks.n - k) * sizeof *check_memory_blocks.at);
}
