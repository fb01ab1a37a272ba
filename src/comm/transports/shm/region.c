/* region.c - one job's shared memory: creating, mapping, joining and leaving it, and the verdict that ends it. */
#include "comm/transports/shm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"

static const char MAGIC[8] = "LSSHM";

static size_t region_round_up(size_t x, size_t to) { return (x + to - 1) / to * to; }

/* Size of a heap: the machine's memory, so that no rank runs out before the machine does; but the heaps of all ranks fit in 1 TiB or four
 * times the memory. A power of two. */
static size_t heap_wish(int n)
{
    size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    size_t most = MAX((size_t)1 << 40, 4 * memory) / (size_t)n;
    size_t heap = (size_t)1 << 30;

    while (heap < memory && heap * 2 <= most) heap *= 2;
    return heap;
}

/* True if a process of ours could map twice this many bytes, which leaves room for everything else. */
static bool region_fits(int fd, size_t bytes)
{
    struct rlimit file;

    if (getrlimit(RLIMIT_FSIZE, &file) == 0 && file.rlim_cur != RLIM_INFINITY && bytes > file.rlim_cur) return false;
    void *p = mmap(NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    munmap(p, 2 * bytes);
    return ftruncate(fd, (off_t)bytes) == 0;
}

/* Maps all of fd at an address that allows huge pages. */
static ls_status map_bytes(struct region *s, size_t bytes)
{
    unsigned char *p = mmap(NULL, bytes + SHM_HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        return ls_fail(LS_ENOMEM, "shm: cannot map the region's %zu bytes: %s (is the address space limited, ulimit -v?)", bytes,
                       strerror(errno));
    unsigned char *at = (unsigned char *)region_round_up((size_t)p, SHM_HUGE);
    if (at > p) munmap(p, (size_t)(at - p));
    munmap(at + bytes, (size_t)(p + SHM_HUGE - at));
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, s->fd, 0) == MAP_FAILED) {
        ls_status st = ls_fail(LS_ENOMEM, "shm: cannot map the region's %zu bytes: %s", bytes, strerror(errno));
        munmap(at, bytes);
        return st;
    }
    madvise(at, bytes, MADV_DONTDUMP); /* a rank's core dump need not contain all ranks' buffers */
    s->base = at;
    s->control = region_at(s, 0);
    s->cell = region_at(s, CELLS_AT);
    return LS_OK;
}

static struct region *region_new(int fd)
{
    struct region *s = mem_zalloc(MEM_OTHER, sizeof *s);

    if (!s) return NULL;
    s->fd = fd;
    s->rank = -1;
    s->socket = -1;
    return s;
}

ls_status region_make(int n, bool launcher, struct region **out)
{
    if (n < 1 || n > SHM_RANKS_MOST) return ls_fail(LS_EINVAL, "shm: %d ranks are not possible: 1 to %d", n, SHM_RANKS_MOST);

    int fd = memfd_create("lockstep", launcher ? 0 : MFD_CLOEXEC);
    if (fd < 0) return ls_fail(LS_EIO, "shm: cannot create the region: memfd_create: %s", strerror(errno));
    struct region *s = region_new(fd);
    if (!s) {
        close(fd);
        return LS_ENOMEM;
    }

    ls_status st = LS_OK;
    size_t heap = heap_wish(n), at = region_round_up(CELLS_AT + (size_t)(n + 1) * sizeof(struct cell), SHM_HUGE);
    while (heap > SHM_HUGE && !region_fits(fd, at + (size_t)n * heap)) heap /= 2;
    if (!region_fits(fd, at + (size_t)n * heap)) {
        st = ls_fail(LS_ENOMEM, "shm: limits of this process leave no room for a region of %d ranks, %zu bytes (ulimit -v, ulimit -f)", n,
                     at + (size_t)n * heap);
        goto close_region;
    }
    if ((st = map_bytes(s, at + (size_t)n * heap)) < 0) goto close_region;
    *s->control = (struct control){ .version = REGION_VERSION,
                                    .n = n,
                                    .bytes = at + (size_t)n * heap,
                                    .heap_at = at,
                                    .heap_bytes = heap,
                                    .launcher = launcher ? (int32_t)getpid() : 0 };
    memcpy(s->control->magic, MAGIC, sizeof MAGIC);
    *out = s;
    return LS_OK;

close_region:
    region_close(&s);
    return st;
}

ls_status region_create(int n, struct region **out) { return region_make(n, true, out); }

int region_fd(const struct region *s) { return s->fd; }

void region_close(struct region **s)
{
    if (!s || !*s) return;

    struct region *old = *s;
    *s = NULL;
    for (int i = 0; old->watch && i < old->control->n; i++)
        if (old->watch[i] >= 0) close(old->watch[i]);
    mem_free(old->watch);
    heap_close(old);
    mem_free(old->gone);
    if (old->base) munmap(old->base, old->control->bytes);
    if (old->fd >= 0) close(old->fd);
    if (old->socket >= 0) close(old->socket);
    mem_free(old);
}

ls_status region_attach(int fd, struct region **out)
{
    struct control seen;
    struct stat file;
    struct region *s;

    if (fstat(fd, &file) != 0 || pread(fd, &seen, sizeof seen, 0) != (ssize_t)sizeof seen || memcmp(seen.magic, MAGIC, sizeof MAGIC) != 0) {
        ls_status st = ls_fail(LS_EINVAL, "shm: descriptor %d is not a region of lockstep", fd);
        close(fd);
        return st;
    }
    if (seen.version != REGION_VERSION || seen.n < 1 || seen.n > SHM_RANKS_MOST || (uint64_t)file.st_size != seen.bytes) {
        ls_status st = ls_fail(LS_EINVAL, "shm: the region has version %u, this program has %d; all ranks must run the same lockstep",
                               seen.version, REGION_VERSION);
        close(fd);
        return st;
    }
    if (!(s = region_new(fd))) {
        close(fd);
        return LS_ENOMEM;
    }
    ls_status st = map_bytes(s, seen.bytes);
    if (st < 0) {
        region_close(&s);
        return st;
    }
    *out = s;
    return LS_OK;
}

/* Writes the missing ranks, "1, 3", into out. Returns how many. */
static int name_missing(const struct region *s, uint32_t round, bool leaving, char *out, size_t bytes)
{
    size_t used = 0;
    int missing = 0;

    out[0] = '\0';
    for (int i = 0; i < s->control->n && used + 16 < bytes; i++) {
        uint32_t there = atomic_load(leaving ? &s->cell[i].left : &s->cell[i].joined);
        if (there >= round) continue;
        used += (size_t)snprintf(out + used, bytes - used, "%s%d", used ? ", " : "", i);
        missing++;
    }
    return missing;
}

/* Waits until all ranks have joined (or left) `round` times. */
static ls_status wait_all(struct region *s, uint32_t round, bool leaving, double deadline)
{
    for (int i = 0; i < s->control->n;) {
        if (atomic_load(leaving ? &s->cell[i].left : &s->cell[i].joined) >= round) {
            i++;
            continue;
        }
        LS_TRY(wait_idle(s, 0.01));
        if (base_now() < deadline) continue;
        char missing[200];
        bool one = name_missing(s, round, leaving, missing, sizeof missing) == 1;
        return ls_fail(LS_ETIMEOUT, "rank%s %s of %d %s %s within %g s", one ? "" : "s", missing, s->control->n, one ? "has" : "have",
                       leaving ? "not left an earlier round of the job" : "not joined the job", s->timeout);
    }
    return LS_OK;
}

ls_status region_join(struct region *s, int rank, int n, double deadline)
{
    if (n != s->control->n) {
        ls_fail(LS_EINVAL, "shm: rank %d was started as one of %d ranks, but the region is of %d", rank, n, s->control->n);
        region_end(s, LS_EPEER, ls_errmsg());
        return LS_EINVAL;
    }

    struct cell *c = &s->cell[rank];
    uint32_t round = atomic_load(&c->joined);
    if (round != atomic_load(&c->left)) return ls_fail(LS_EINVAL, "shm: rank %d is taken by process %d", rank, (int)atomic_load(&c->pid));

    if (!(s->watch = mem_array(MEM_OTHER, (size_t)n, sizeof *s->watch))) return LS_ENOMEM;
    for (int i = 0; i < n; i++) s->watch[i] = -1;
    s->rank = rank;
    atomic_store(&c->asleep, 0);
    atomic_store(&c->box_group, 0);
    LS_TRY(wait_all(s, round, true, deadline)); /* no rank looks at the previous round any more */
    LS_TRY(heap_open(s));
    atomic_store(&c->pid, (int32_t)getpid());
    s->round = round + 1;
    if (!atomic_compare_exchange_strong(&c->joined, &round, round + 1))
        return ls_fail(LS_EINVAL, "shm: rank %d is taken by process %d", rank, (int)atomic_load(&c->pid));
    for (int i = 0; i < n; i++) wait_ring(s, i);

    ls_status st = wait_all(s, s->round, false, deadline);
    if (st < 0) region_leave(s);
    return st;
}

void region_leave(struct region *s)
{
    atomic_store(&s->cell[s->rank].left, s->round);
    for (int i = 0; i < s->control->n; i++) wait_ring(s, i);
}

void region_end(struct region *s, ls_status st, const char *message)
{
    int own = s->rank < 0 ? s->control->n : s->rank;
    int32_t none = 0;

    if (atomic_load(&s->control->verdict)) return;
    s->cell[own].status = st;
    snprintf(s->cell[own].message, MESSAGE_MOST, "%s", message);
    if (!atomic_compare_exchange_strong(&s->control->verdict, &none, own + 1)) return;
    for (int i = 0; i < s->control->n; i++) wait_ring(s, i);
}

ls_status region_ended(const struct region *s)
{
    int32_t by = atomic_load_explicit(&s->control->verdict, memory_order_acquire);

    if (__builtin_expect(by == 0, 1)) return LS_OK;
    return ls_fail((ls_status)s->cell[by - 1].status, "%s", s->cell[by - 1].message);
}

static void region_note(struct region *s, ls_status st, int rank, const char *how)
{
    char line[MESSAGE_MOST];

    snprintf(line, sizeof line, "rank %d %s", rank, how);
    region_end(s, st, line);
}

void region_note_gone(struct region *s, int rank, const char *how) { region_note(s, LS_EPEER, rank, how); }

/* Appends the rank's last call to the line. */
void region_note_stopped(struct region *s, int rank, const char *how)
{
    const struct call_record r = s->cell[rank].record;
    char line[MESSAGE_MOST - 32], call[256];

    if (r.state == CALL_NONE || !memchr(r.name, 0, sizeof r.name))
        snprintf(line, sizeof line, "%s", how);
    else
        snprintf(line, sizeof line, "%s; its last call was %s", how, signature_text(&r.signature, r.name, call, sizeof call));
    region_note(s, LS_ETIMEOUT, rank, line);
}

void region_note_continued(struct region *s, int rank)
{
    _Atomic double *alive = &s->cell[rank].board.alive;

    if (atomic_load(alive) > 0) atomic_store(alive, base_now());
}

const char *region_verdict(const struct region *s)
{
    int32_t by = atomic_load(&s->control->verdict);

    return by ? s->cell[by - 1].message : NULL;
}

const char *region_named(const struct region *s, int *rank)
{
    int32_t by = atomic_load(&s->control->verdict);

    if (by == 0 || by > s->control->n || s->cell[by - 1].status == LS_EPEER || s->cell[by - 1].status == LS_ETIMEOUT) return NULL;
    *rank = by - 1;
    return s->cell[by - 1].message;
}

bool region_has_left(const struct region *s, int rank)
{
    uint32_t joined = atomic_load(&s->cell[rank].joined);

    return joined > 0 && atomic_load(&s->cell[rank].left) >= joined;
}
