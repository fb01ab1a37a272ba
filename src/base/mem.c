/* mem.c - the ledger.
 *
 * A block is [header, 64 bytes][user's bytes], aligned to 64 bytes or, from 4 MiB on, to a huge page of 2 MiB, so that the user's pointer
 * is 64-byte aligned in both cases. What does not fill a huge page at the end is in small pages, so that no more memory is resident than
 * the block has. A zeroed block of that size is a mapping of its own (not after mem_keep_pages()), whose pages are zero already and become
 * resident when they are first touched, by the thread that touches them. Under AddressSanitizer the header is poisoned and blocks end where
 * the user's bytes end, so that it detects access beyond either end.
 */
#include "base/mem.h"

#include <limits.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/base.h"

#if defined(__SANITIZE_ADDRESS__)
#define MEM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MEM_ASAN 1
#endif
#endif

#ifdef MEM_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, bytes)   ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(p, bytes) ((void)0)
#endif

enum { HEADER = 64, HUGE_FROM = 4 << 20, HUGE_PAGE = 2 << 20 };

struct header {
    size_t bytes;
    enum mem_category category;
    size_t mapped; /* bytes of a block that is a mapping of its own; 0: malloc has it */
};
_Static_assert(sizeof(struct header) <= HEADER, "the header has its own 64 bytes");

static struct {
    atomic_size_t now[MEM_CATEGORIES], peak[MEM_CATEGORIES];
    atomic_size_t total_now, total_peak;
    struct place {
        atomic_size_t now, peak, limit, of[MEM_CATEGORIES];
    } host, device;
    atomic_uint_fast64_t calls;
} ledger;

const char *mem_category_name(enum mem_category c)
{
    static const char *const names[] = {
#define MEM_NAME(id, name) [MEM_##id] = name,
        MEM_MAP(MEM_NAME)
#undef MEM_NAME
    };

    ASSERT((unsigned)c < MEM_CATEGORIES);
    return names[c];
}

static void raise_to(atomic_size_t *peak, size_t now)
{
    size_t seen = atomic_load(peak);

    while (seen < now && !atomic_compare_exchange_weak(peak, &seen, now)) {
    }
}

/* What this thread has taken less what it has given, since mem_thread_begin(). */
static _Thread_local struct {
    ptrdiff_t now[MEM_CATEGORIES], peak[MEM_CATEGORIES];
} thread;

void mem_thread_begin(void) { memset(&thread, 0, sizeof thread); }
size_t mem_thread_peak(enum mem_category c) { return (size_t)thread.peak[c]; }

static void thread_take(enum mem_category c, ptrdiff_t bytes)
{
    thread.now[c] += bytes;
    thread.peak[c] = MAX(thread.peak[c], thread.now[c]);
}

/* Reserves `bytes` of the place's limit; false, and nothing reserved, if they do not fit. */
static bool place_take(struct place *p, enum mem_category c, size_t bytes)
{
    size_t limit = atomic_load(&p->limit), now = atomic_load(&p->now), after;

    do {
        if (!size_add(now, bytes, &after) || (limit && after > limit)) return false;
    } while (!atomic_compare_exchange_weak(&p->now, &now, after));
    raise_to(&p->peak, after);
    raise_to(&ledger.total_peak, atomic_fetch_add(&ledger.total_now, bytes) + bytes);
    raise_to(&ledger.peak[c], atomic_fetch_add(&ledger.now[c], bytes) + bytes);
    atomic_fetch_add(&p->of[c], bytes);
    thread_take(c, (ptrdiff_t)bytes);
    return true;
}

static void place_give(struct place *p, enum mem_category c, size_t bytes)
{
    atomic_fetch_sub(&p->now, bytes);
    atomic_fetch_sub(&p->of[c], bytes);
    atomic_fetch_sub(&ledger.now[c], bytes);
    atomic_fetch_sub(&ledger.total_now, bytes);
    thread_take(c, -(ptrdiff_t)bytes);
}

static void ledger_give(enum mem_category c, size_t bytes) { place_give(&ledger.host, c, bytes); }

static _Thread_local enum mem_category failed_largest = MEM_OTHER;

enum mem_category mem_failed_largest(void) { return failed_largest; }

static void *mem_fail(const struct place *p, enum mem_category c, size_t bytes, const char *why)
{
    int largest = 0;

    for (int i = 1; i < MEM_CATEGORIES; i++)
        if (atomic_load(&p->of[i]) > atomic_load(&p->of[largest])) largest = i;
    failed_largest = (enum mem_category)largest;
    ls_fail(LS_ENOMEM, "out of memory: %zu bytes needed for %s, %zu held, %s; most is in %s: %zu bytes", bytes, mem_category_name(c),
            atomic_load(&p->now), why, mem_category_name((enum mem_category)largest), atomic_load(&p->of[largest]));
    return NULL;
}

static void *fail_place(const struct place *p, enum mem_category c, size_t bytes)
{
    char why[64];

    snprintf(why, sizeof why, "limit %zu%s", atomic_load(&p->limit), p == &ledger.device ? " of the device's memory" : "");
    return mem_fail(p, c, bytes, why);
}

mem_fault_fn *mem_fault;

static const char *why_fault(void)
{
    mem_fault_fn *fault = __atomic_load_n(&mem_fault, __ATOMIC_ACQUIRE);

    return fault ? fault() : NULL;
}

static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (bytes + page - 1) / page * page;
}

/* Huge pages for the block's first bytes, as far as they fill them. */
static void advise_pages(void *block, size_t bytes)
{
    size_t huge = bytes / HUGE_PAGE * HUGE_PAGE, whole = whole_pages(bytes);

    madvise(block, huge, MADV_HUGEPAGE); /* advice: a kernel without huge pages may refuse */
    if (whole > huge) madvise((char *)block + huge, whole - huge, MADV_NOHUGEPAGE);
}

/* bytes including the header; NULL if the system is out of memory. */
static void *system_alloc(size_t bytes)
{
    void *block;

#ifndef MEM_ASAN
    if (bytes >= HUGE_FROM) {
        if (posix_memalign(&block, HUGE_PAGE, whole_pages(bytes)) != 0) return NULL;
        advise_pages(block, bytes);
        return block;
    }
#endif
    return posix_memalign(&block, HEADER, bytes) == 0 ? block : NULL;
}

/* A mapping of whole_pages(bytes), aligned to a huge page; NULL if the system refuses. */
static void *pages_map(size_t bytes)
{
    size_t whole = whole_pages(bytes);
    unsigned char *p = mmap(NULL, whole + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) return NULL;
    size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (before) munmap(p, before);
    munmap(p + before + whole, HUGE_PAGE - before);
    advise_pages(p + before, bytes);
    return p + before;
}

static ls_status take_bytes(struct place *p, enum mem_category c, size_t bytes)
{
    const char *why;

    ASSERT((unsigned)c < MEM_CATEGORIES);
    atomic_fetch_add(&ledger.calls, 1);
    if ((why = why_fault()))
        mem_fail(p, c, bytes, why);
    else if (bytes > PTRDIFF_MAX - HEADER)
        mem_fail(p, c, bytes, "no address space is that large");
    else if (!place_take(p, c, bytes))
        fail_place(p, c, bytes);
    else
        return LS_OK;
    return LS_ENOMEM;
}

ls_status mem_take(enum mem_category c, size_t bytes) { return take_bytes(&ledger.host, c, bytes); }
void mem_give(enum mem_category c, size_t bytes) { place_give(&ledger.host, c, bytes); }
ls_status mem_take_device(enum mem_category c, size_t bytes) { return take_bytes(&ledger.device, c, bytes); }
void mem_give_device(enum mem_category c, size_t bytes) { place_give(&ledger.device, c, bytes); }

/* Writes the header of a block of bytes + HEADER, which were taken, and returns the user's block. block NULL: gives the bytes back. */
static void *block_begin(unsigned char *block, enum mem_category c, size_t bytes, size_t mapped)
{
    if (!block) {
        ledger_give(c, bytes);
        return mem_fail(&ledger.host, c, bytes, "the system refused");
    }
    *(struct header *)(void *)block = (struct header){ bytes, c, mapped };
    ASAN_POISON_MEMORY_REGION(block, HEADER);
    return block + HEADER;
}

void *mem_alloc(enum mem_category c, size_t bytes)
{
    if (mem_take(c, bytes) < 0) return NULL;
    return block_begin(system_alloc(bytes + HEADER), c, bytes, 0);
}

void *mem_pages_resize(enum mem_category c, void *p, size_t was, size_t bytes)
{
    void *moved = NULL;

    if (bytes > was && mem_take(c, bytes - was) < 0) return NULL;
    if (!p && bytes)
        moved = mmap(NULL, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    else if (p && bytes)
        moved = mremap(p, whole_pages(was), whole_pages(bytes), MREMAP_MAYMOVE);
    else if (p)
        munmap(p, whole_pages(was));
    if (moved == MAP_FAILED) {
        if (bytes > was) mem_give(c, bytes - was);
        return mem_fail(&ledger.host, c, bytes, "the system refused");
    }
    if (bytes < was) mem_give(c, was - bytes);
    return moved;
}

/* The header of the user's block p, readable from now on. */
static struct header *header_of(void *p)
{
    unsigned char *block = (unsigned char *)p - HEADER;

    ASAN_UNPOISON_MEMORY_REGION(block, HEADER);
    return (struct header *)(void *)block;
}

static atomic_bool keeps_pages;

/* A block of `bytes`, header included, is a mapping of its own if it is zeroed. */
static bool is_mapped(size_t bytes)
{
#ifdef MEM_ASAN
    (void)bytes;
    return false;
#else
    return bytes >= HUGE_FROM && !atomic_load(&keeps_pages);
#endif
}

void *mem_zalloc(enum mem_category c, size_t bytes)
{
    if (mem_take(c, bytes) < 0) return NULL;
    if (is_mapped(bytes + HEADER)) return block_begin(pages_map(bytes + HEADER), c, bytes, whole_pages(bytes + HEADER));

    void *p = block_begin(system_alloc(bytes + HEADER), c, bytes, 0);
    return p ? memset(p, 0, bytes) : NULL;
}

void *mem_array(enum mem_category c, size_t count, size_t size)
{
    size_t bytes;

    if (size_mul(count, size, &bytes)) return mem_zalloc(c, bytes);
    ls_fail(LS_ENOMEM, "out of memory: %zu items of %zu bytes are more than an address space", count, size);
    return NULL;
}

void *mem_resize(void *p, size_t bytes)
{
    if (!p) return mem_alloc(MEM_OTHER, bytes);

    struct header was = *header_of(p);
    ASAN_POISON_MEMORY_REGION((unsigned char *)p - HEADER, HEADER);
    void *moved = mem_alloc(was.category, bytes);
    if (!moved) return NULL;
    memcpy(moved, p, MIN(was.bytes, bytes));
    mem_free(p);
    return moved;
}

char *mem_strdup(const char *s)
{
    size_t bytes = strlen(s) + 1;
    char *copy = mem_alloc(MEM_OTHER, bytes);

    return copy ? memcpy(copy, s, bytes) : NULL;
}

void mem_free(void *p)
{
    if (!p) return;

    struct header *h = header_of(p);
    ASSERT((unsigned)h->category < MEM_CATEGORIES);
    ledger_give(h->category, h->bytes);
    if (h->mapped)
        munmap(h, h->mapped);
    else
        free(h);
}

void mem_keep_pages(void)
{
    atomic_store(&keeps_pages, true);
#ifdef M_TRIM_THRESHOLD
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    mallopt(M_MMAP_THRESHOLD, 32 << 20); /* the largest that glibc takes */
#endif
}

void mem_read(struct mem_stats *out)
{
    for (int i = 0; i < MEM_CATEGORIES; i++) {
        out->now[i] = atomic_load(&ledger.now[i]);
        out->peak[i] = atomic_load(&ledger.peak[i]);
    }
    out->total_now = atomic_load(&ledger.total_now);
    out->total_peak = atomic_load(&ledger.total_peak);
    out->host_peak = atomic_load(&ledger.host.peak);
    out->device_peak = atomic_load(&ledger.device.peak);
    out->calls = atomic_load(&ledger.calls);
}

void mem_reset_peak(void)
{
    for (int i = 0; i < MEM_CATEGORIES; i++) atomic_store(&ledger.peak[i], atomic_load(&ledger.now[i]));
    atomic_store(&ledger.total_peak, atomic_load(&ledger.total_now));
    atomic_store(&ledger.host.peak, atomic_load(&ledger.host.now));
    atomic_store(&ledger.device.peak, atomic_load(&ledger.device.now));
}

void mem_set_limit(size_t bytes) { atomic_store(&ledger.host.limit, bytes); }
void mem_set_device_limit(size_t bytes) { atomic_store(&ledger.device.limit, bytes); }
size_t mem_device_limit(void) { return atomic_load(&ledger.device.limit); }

size_t mem_limit(void) { return atomic_load(&ledger.host.limit); }
