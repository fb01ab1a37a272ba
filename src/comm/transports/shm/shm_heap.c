/* shm_heap.c - memory that other ranks can access: this rank's heap in the region, allocated in whole pages.
 *
 * The bookkeeping is local to this process: a list of used and free extents in ascending order that cover the heap without a gap; two
 * free ones are never adjacent. First fit. A freed extent's pages go back to the system at once, and read as zeros when they are handed out
 * again.
 */
#include "comm/transports/shm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include "base/mem.h"

enum { LARGE_FROM = 8 << 20 }; /* bytes: such buffers start at a huge page and are made of them */

static size_t shm_heap_round_up(size_t x, size_t to) { return (x + to - 1) / to * to; }

static size_t start_of(const struct region *s) { return s->control->heap_at + (size_t)s->rank * s->control->heap_bytes; }

/* Makes room for two more extents, so that an allocation cannot fail midway. */
static ls_status make_room(struct heap *h)
{
    if (h->n + 2 <= h->room) return LS_OK;

    int room = h->room ? 2 * h->room : 16;
    struct extent *e = mem_resize(h->extent, (size_t)room * sizeof *e);
    if (!e) return LS_ENOMEM;
    h->extent = e;
    h->room = room;
    return LS_OK;
}

/* Gives pages back; what is handed out again reads as zeros. */
static void punch(struct region *s, size_t at, size_t bytes)
{
    while (fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(start_of(s) + at), (off_t)bytes) != 0)
        ASSERT(errno == EINTR); /* a memfd can do it */
}

ls_status heap_open(struct region *s)
{
    LS_TRY(make_room(&s->heap));
    punch(s, 0, s->control->heap_bytes); /* of a round before */
    s->heap.extent[0] = (struct extent){ 0, s->control->heap_bytes, false };
    s->heap.n = 1;
    return LS_OK;
}

void heap_close(struct region *s)
{
    mem_free(s->heap.extent);
    s->heap = (struct heap){ 0 };
}

/* Splits extent i at `bytes`; the rest becomes a separate extent. */
static void shm_heap_cut(struct heap *h, int i, size_t bytes)
{
    struct extent *e = &h->extent[i];

    if (bytes == 0 || bytes == e->bytes) return;
    memmove(e + 2, e + 1, (size_t)(h->n - i - 1) * sizeof *e);
    e[1] = (struct extent){ e->at + bytes, e->bytes - bytes, e->used };
    e->bytes = bytes;
    h->n++;
}

/* Merges extent i with the one after it if both are free. */
static void shm_heap_join(struct heap *h, int i)
{
    struct extent *e = &h->extent[i];

    if (i < 0 || i + 1 >= h->n || e->used || e[1].used) return;
    e->bytes += e[1].bytes;
    memmove(e + 1, e + 2, (size_t)(h->n - i - 2) * sizeof *e);
    h->n--;
}

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

/* Uses huge pages for the full ones among `bytes` at p: copies are a quarter faster, and there is one fault where each rank would take 512.
 * Only pages with content are collapsed. This is advice: an older kernel or one without free huge pages refuses. */
static void make_huge(unsigned char *p, size_t bytes)
{
    for (size_t i = 0; i + SHM_HUGE <= bytes; i += SHM_HUGE) p[i] = 0;
    madvise(p, bytes - bytes % SHM_HUGE, MADV_COLLAPSE);
}

void *heap_alloc(struct region *s, size_t bytes, bool buffer)
{
    struct heap *h = &s->heap;
    bool large = buffer && bytes >= LARGE_FROM;
    size_t align = large ? SHM_HUGE : SHM_PAGE, rounded = shm_heap_round_up(MAX(bytes, 1), SHM_PAGE), largest = 0;

    if (bytes > s->control->heap_bytes || make_room(h) < 0) rounded = SIZE_MAX;
    for (int i = 0; i < h->n; i++) {
        struct extent *e = &h->extent[i];
        size_t skip = shm_heap_round_up(e->at, align) - e->at;
        if (e->used) continue;
        largest = MAX(largest, e->bytes);
        if (skip > e->bytes || e->bytes - skip < rounded) continue;
        if (skip) shm_heap_cut(h, i++, skip);
        shm_heap_cut(h, i, rounded);
        h->extent[i].used = true;
        void *p = region_at(s, start_of(s) + h->extent[i].at);
        if (large) make_huge(p, bytes);
        return p;
    }
    ls_fail(LS_ENOMEM, "shm: out of shared memory: %zu bytes needed, rank %d's heap of %zu bytes has at most %zu contiguous free bytes",
            bytes, s->rank, (size_t)s->control->heap_bytes, largest);
    return NULL;
}

void heap_free(struct region *s, void *p)
{
    struct heap *h = &s->heap;
    size_t at = region_offset(s, p) - start_of(s);
    int i = 0;

    while (i < h->n && h->extent[i].at != at) i++;
    ASSERT(i < h->n && h->extent[i].used);
    struct extent e = h->extent[i];
    h->extent[i].used = false;
    shm_heap_join(h, i);
    shm_heap_join(h, i - 1);
    punch(s, e.at, e.bytes);
}

bool heap_holds(const struct region *s, const void *p, size_t bytes)
{
    uintptr_t begin = (uintptr_t)s->base + start_of(s), at = (uintptr_t)p;

    return at >= begin && at - begin < s->control->heap_bytes && bytes <= s->control->heap_bytes - (at - begin);
}
