/* emulator_copy.cc - asynchronous copies to shared memory, by thread: what has been started and not been waited for. */
#include "emulator_state.h"
#include "kernels/cuda/copy_async.h"

#include <deque>

struct copy {
    emulator_region *to;
    const void *at;
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

void emulator_copy_begin(emulator_region *to, const void *at, const void *from)
{
    copy c = { to, at, {}, copies[emulator_now->index].group };

    if (from) memcpy(c.bytes, from, EMULATOR_COPY);
    memset(copy_touch(&c), 0xff, EMULATOR_COPY);
    copies[emulator_now->index].all.push_back(c);
}

void copy_async_commit(void) { copies[emulator_now->index].group++; }

void emulator_copy_wait(unsigned left)
{
    auto &mine = copies[emulator_now->index];

    while (!mine.all.empty() && mine.all.front().group + left < mine.group) {
        memcpy(copy_touch(&mine.all.front()), mine.all.front().bytes, EMULATOR_COPY);
        mine.all.pop_front();
    }
}
