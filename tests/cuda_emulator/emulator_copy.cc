/* emulator_copy.cc - asynchronous copies to shared memory, by thread: those that were started and not yet waited for. */
#include "emulator_state.h"
#include "kernels/cuda/copy_async.h"

#include <deque>

struct copy {
    emulator_region *to, *source;
    const void *at, *from; /* from NULL: zeros */
    unsigned char bytes[EMULATOR_COPY];
    unsigned group;
};

static struct {
    std::deque<copy> all; /* in the order of their groups */
    unsigned group;       /* that is being formed */
} copies[MOST_THREADS];

void copy_thread_begin(int thread)
{
    copies[thread].all.clear();
    copies[thread].group = 0;
}

bool copy_thread_waits(int thread) { return !copies[thread].all.empty(); }

static void *copy_touch(const copy *c) { return emulator_touch(c->to, c->at, EMULATOR_COPY, EMULATOR_COPY, EMULATOR_WRITE); }

static const void *copy_read(const copy *c) { return emulator_touch(c->source, c->from, EMULATOR_COPY, EMULATOR_COPY, EMULATOR_READ); }

void emulator_copy_begin(emulator_region *to, const void *at, emulator_region *source, const void *from)
{
    copy c = { to, source, at, from, {}, copies[emulator_now->index].group };

    if (from) memcpy(c.bytes, copy_read(&c), EMULATOR_COPY);
    memset(copy_touch(&c), 0xff, EMULATOR_COPY);
    copies[emulator_now->index].all.push_back(c);
}

/* The copy may have read its source at any time until now. */
static void copy_end(const copy *c)
{
    if (c->from && memcmp(copy_read(c), c->bytes, EMULATOR_COPY))
        emulator_fail("the source of an asynchronous copy was written before the copy was waited for");
    memcpy(copy_touch(c), c->bytes, EMULATOR_COPY);
}

void copy_async_commit(void) { copies[emulator_now->index].group++; }

void emulator_copy_wait(unsigned left)
{
    auto &mine = copies[emulator_now->index];

    while (!mine.all.empty() && mine.all.front().group + left < mine.group) {
        copy_end(&mine.all.front());
        mine.all.pop_front();
    }
}
