/* emulator_memory.cc - which bytes a kernel may access, and races on them.
 *
 * For each grain of memory the last write is kept, and up to three reads: the last one, the last of another warp than that one's, and the
 * last of another block. Two accesses by different threads are in order if a barrier of their block was between; in a warp also if
 * __syncwarp was, which vector clocks determine. Blocks of one launch are in no order; launches run one after another. Atomics do not race
 * with each other.
 */
#include "emulator_state.h"

#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

struct stamp {
    uint32_t block, epoch, clock; /* block 0: no access yet */
    uint16_t thread;
    bool atomic;
};

struct alignas(64) cell {
    stamp write, read, read_warp, read_block;
};

/* The cells of PAGE_GRAINS grains that follow one another. */
enum { PAGE_GRAINS = 256 };
struct cell_page {
    cell cells[PAGE_GRAINS];
};

struct emulator_region {
    char *base, *real;
    size_t bytes, shift; /* a grain has 1 << shift bytes */
    bool writable, shared;
    uint32_t used; /* shared: the block that has it */
    const char *key, *name;
    std::vector<cell_page *> pages; /* NULL or missing at the end: none of their grains was accessed yet */
};

static std::map<uintptr_t, emulator_region *> regions; /* by end */
static std::vector<emulator_region *> gone;            /* removed regions: pointers into them may still exist */
static std::vector<cell_page *> spare;                 /* stamps of earlier launches, which order nothing */

static void region_end(emulator_region *r)
{
    for (cell_page *page : r->pages)
        if (page) spare.push_back(page);
    r->pages.clear();
    r->bytes = 0;
}

/* Shared memory. Remaining memory is freed when the process ends, so that leak checkers find nothing. */
struct shared_memory {
    std::vector<emulator_region *> arrays; /* by key */
    emulator_region *dynamic;

    ~shared_memory()
    {
        emulator_memory_clear();
        if (dynamic) arrays.push_back(dynamic);
        for (emulator_region *r : arrays) {
            region_end(r);
            free(r->real);
            delete r;
        }
        for (cell_page *page : spare) delete page;
    }
};
static shared_memory block_memory;

/* ---- regions ---- */

void emulator_memory_add(void *base, size_t bytes, void *real, size_t grain, bool writable, const char *name)
{
    emulator_region *r = new emulator_region();

    r->base = (char *)base;
    r->real = (char *)real;
    r->bytes = bytes;
    r->writable = writable;
    r->name = name;
    while ((size_t)1 << (r->shift + 1) <= grain) r->shift++;
    if (!bytes || !regions.emplace((uintptr_t)base + bytes, r).second) {
        fprintf(stderr, "emulator: region %s of %zu bytes at %p is empty or there already\n", name, bytes, base);
        abort();
    }
}

void emulator_memory_remove(void *base)
{
    auto at = regions.upper_bound((uintptr_t)base);

    if (at == regions.end() || at->second->base != base) {
        fprintf(stderr, "emulator: no region begins at %p\n", base);
        abort();
    }
    region_end(at->second);
    gone.push_back(at->second);
    regions.erase(at);
}

void *emulator_memory_detach(void *base)
{
    auto at = regions.upper_bound((uintptr_t)base);
    emulator_region *r = at != regions.end() && at->second->base == base ? at->second : NULL;

    if (!r) {
        fprintf(stderr, "emulator: no region begins at %p\n", base);
        abort();
    }
    regions.erase(at);
    return r;
}

void emulator_memory_drop(void *detached)
{
    emulator_region *r = (emulator_region *)detached;

    region_end(r);
    delete r;
}

void emulator_memory_clear(void)
{
    for (auto &at : regions) {
        region_end(at.second);
        delete at.second;
    }
    regions.clear();
    for (emulator_region *r : gone) delete r;
    gone.clear();
}

emulator_region *emulator_region_at(const void *p)
{
    auto at = regions.upper_bound((uintptr_t)p);

    return at != regions.end() && at->second->base <= (const char *)p ? at->second : NULL;
}

/* ---- shared memory ---- */

void memory_block_begin(void)
{
    if (!block_memory.dynamic) {
        block_memory.dynamic = new emulator_region();
        block_memory.dynamic->name = "dynamic shared memory";
        block_memory.dynamic->base = block_memory.dynamic->real = (char *)aligned_alloc(128, 256 << 10);
        block_memory.dynamic->shift = 1;
        block_memory.dynamic->shared = block_memory.dynamic->writable = true;
    }
    block_memory.dynamic->bytes = emulator_block.dynamic_bytes;
}

emulator_region *emulator_dynamic_region(void **base)
{
    *base = block_memory.dynamic->base;
    return block_memory.dynamic;
}

static emulator_region *array_of(const char *key, const char *name, size_t bytes)
{
    for (emulator_region *r : block_memory.arrays)
        if (r->key == key) return r;
    emulator_region *r = new emulator_region();
    r->key = key;
    r->name = name;
    r->bytes = bytes;
    r->base = r->real = (char *)aligned_alloc(16, (bytes + 15) / 16 * 16);
    r->shift = 1;
    r->shared = r->writable = true;
    block_memory.arrays.push_back(r);
    return r;
}

emulator_region *emulator_shared_region(const char *key, const char *name, size_t bytes, void **base)
{
    emulator_region *r = array_of(key, name, bytes);

    if (r->used != emulator_block.serial) {
        r->used = emulator_block.serial;
        emulator_block.static_bytes += (bytes + 15) / 16 * 16;
        if (emulator_block.static_bytes > MOST_STATIC) emulator_fail("its arrays take more than 48 KiB of shared memory");
        if (emulator_block.static_bytes + emulator_block.dynamic_bytes > MOST_SHARED)
            emulator_fail("it takes more than 99 KiB of shared memory");
    }
    *base = r->base;
    return r;
}

/* ---- races ---- */

/* Gives the region a page with this number, which it does not have yet. */
[[gnu::cold, gnu::noinline]] static cell_page *page_add(emulator_region *r, size_t page)
{
    if (r->pages.size() <= page) r->pages.resize(((r->bytes - 1) >> r->shift) / PAGE_GRAINS + 1);
    if (spare.size()) {
        r->pages[page] = spare.back();
        spare.pop_back();
    } else {
        r->pages[page] = new cell_page();
    }
    return r->pages[page];
}

static inline cell_page *page_of(emulator_region *r, size_t grain)
{
    size_t page = grain / PAGE_GRAINS;
    cell_page *p = page < r->pages.size() ? r->pages[page] : NULL;

    return p ? p : page_add(r, page);
}

/* Each block has shared memory of its own. */
static inline bool in_order(const emulator_region *r, const stamp *s, const fiber *f, bool atomic)
{
    if (s->block < emulator_block.launch || (atomic && s->atomic)) return true;
    if (s->block != emulator_block.serial) return r->shared;
    if (s->thread == f->index || s->epoch < emulator_block.epoch) return true;
    return s->thread / WARP == f->warp && f->clock[s->thread % WARP] >= s->clock;
}

[[gnu::cold]] static void race_report(const emulator_region *r, size_t at, const stamp *s, const char *did, const char *does)
{
    size_t grain = (size_t)1 << r->shift;

    if (s->block != emulator_block.serial)
        emulator_fail("race on %s: it %s bytes [%zu,%zu), which another block of the launch %s", r->name, does, at * grain,
                      (at + 1) * grain, did);
    emulator_fail("race on %s: it %s bytes [%zu,%zu), which thread %d of the block %s with no barrier between", r->name, does, at * grain,
                  (at + 1) * grain, s->thread, did);
}

static inline void cell_read(const emulator_region *r, cell *c, size_t at, const stamp *now, const fiber *f)
{
    if (r->shared && c->write.block != now->block)
        emulator_fail("uninitialized: it reads byte %zu of %s, which no thread of the block has written", at << r->shift, r->name);
    if (!in_order(r, &c->write, f, false)) race_report(r, at, &c->write, "wrote", "reads");
    if (c->read.block != now->block) {
        c->read_block = c->read_warp = c->read;
    } else if (c->read.thread / WARP != f->warp) {
        c->read_warp = c->read;
    }
    c->read = *now;
}

static inline void cell_write(const emulator_region *r, cell *c, size_t at, const stamp *now, const fiber *f)
{
    if (r->shared && now->atomic && c->write.block != now->block)
        emulator_fail("uninitialized: it reads byte %zu of %s, which no thread of the block has written", at << r->shift, r->name);
    if (!in_order(r, &c->write, f, now->atomic)) race_report(r, at, &c->write, "wrote", "writes");
    for (const stamp *s : { &c->read, &c->read_warp, &c->read_block })
        if (!in_order(r, s, f, false)) race_report(r, at, s, "read", "writes");
    c->write = *now;
}

[[gnu::cold, noreturn]] static void touch_refused(const emulator_region *r, const void *p, size_t bytes, size_t align,
                                                      emulator_access access)
{
    const char *does = access == EMULATOR_READ ? "reads" : "writes";

    if (!emulator_now) emulator_fail("%s memory of the device", does);
    if (!r) emulator_fail("out of bounds: it %s %zu bytes at a pointer into no region", does, bytes);
    size_t at = (size_t)((const char *)p - r->base);
    if (at >= r->bytes || bytes > r->bytes - at)
        emulator_fail("out of bounds: it %s %zu bytes at byte %zd of %s, which has %zu", does, bytes, (ptrdiff_t)at, r->name, r->bytes);
    if ((uintptr_t)p & (align - 1)) emulator_fail("misaligned: it %s %zu bytes at byte %zu of %s", does, bytes, at, r->name);
    emulator_fail("it writes %zu bytes at byte %zu of %s, which is an input", bytes, at, r->name);
}

static void touch_cells(emulator_region *r, size_t at, size_t bytes, emulator_access access)
{
    const fiber *f = emulator_now;
    stamp now = { emulator_block.serial, emulator_block.epoch, f->clock[f->lane], (uint16_t)f->index, access == EMULATOR_ATOMIC };
    size_t k = at >> r->shift, last = (at + bytes - 1) >> r->shift;

    while (k <= last) {
        cell *cells = page_of(r, k)->cells;
        size_t end = min(last, k | (PAGE_GRAINS - 1));

        if (access == EMULATOR_READ)
            for (; k <= end; k++) cell_read(r, &cells[k % PAGE_GRAINS], k, &now, f);
        else
            for (; k <= end; k++) cell_write(r, &cells[k % PAGE_GRAINS], k, &now, f);
    }
}

void *emulator_touch(emulator_region *r, const void *p, size_t bytes, size_t align, emulator_access access)
{
    if (!emulator_now || !r) touch_refused(r, p, bytes, align, access);
    size_t at = (size_t)((const char *)p - r->base);
    if (at >= r->bytes || bytes > r->bytes - at || (uintptr_t)p & (align - 1) || (access != EMULATOR_READ && !r->writable))
        touch_refused(r, p, bytes, align, access);
    if (r->writable) touch_cells(r, at, bytes, access); /* nothing races with reads */
    return r->real + at;
}
