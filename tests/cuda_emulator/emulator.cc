/* emulator.cc - launches, blocks, and their threads as fibers.
 *
 * The threads of a block run in a random order; each runs until it waits at a barrier or a warp operation, or ends, and then switches to
 * the next one itself. When none can run and not all have ended, what they wait for never comes: that is reported. Blocks run one after
 * another, in a random order.
 */
#include "emulator_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define EMULATOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATOR_ASAN 1
#endif
#endif
#ifdef EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

enum { PAGE = 4096, STACK = (128 << 10) + PAGE, TEXT = 600 };
enum { MOST_GRID_YZ = 65535, MOST_BLOCK_Z = 64 };

fiber emulator_fibers[MOST_THREADS];
fiber *emulator_now;
block emulator_block;
emulator_where *emulator_here;

static struct {
    uint64_t seed = 1, state, launches;
    char report[TEXT];
    emulator_enqueue_fn *enqueue;
    char *stacks;
    void *scheduler; /* its stack pointer */
    const void *scheduler_bottom;
    size_t scheduler_bytes;
    bool entered; /* a thread of this block has run */
    int ready[MOST_THREADS], readies;
    void (*entry)(const void *closure);
    const void *closure;
    bool running;
} run;

/* ---- reports ---- */

const char *emulator_report(void) { return run.report; }
void emulator_clear(void) { run.report[0] = 0; }
uint64_t emulator_launches(void) { return run.launches; }
void emulator_seed(uint64_t seed) { run.seed = seed; }
void emulator_enqueue(emulator_enqueue_fn *enqueue) { run.enqueue = enqueue; }
bool emulator_failed(void) { return run.report[0]; }

static void report_write(const fiber *f, const char *fmt, va_list args)
{
    int n;

    if (run.report[0]) return;
    if (f)
        n = snprintf(run.report, TEXT, "%s: block (%u,%u,%u), thread (%u,%u,%u): ", emulator_block.kernel, f->where.block.x,
                     f->where.block.y, f->where.block.z, f->where.thread.x, f->where.thread.y, f->where.thread.z);
    else
        n = snprintf(run.report, TEXT, "%s: ", emulator_block.kernel);
    if (n > 0 && n < TEXT) vsnprintf(run.report + n, (size_t)(TEXT - n), fmt, args);
}

void emulator_note(const fiber *f, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    report_write(f, fmt, args);
    va_end(args);
}

/* ---- fibers ---- */

/* Saves the registers that a function keeps, and the stack pointer in *from; continues where `to` was saved. */
extern "C" void emulator_switch(void **from, void *to);
asm(".text\n"
    ".globl emulator_switch\n"
    ".type emulator_switch, @function\n"
    "emulator_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size emulator_switch, . - emulator_switch\n");

/* AddressSanitizer is notified of every change of stacks; other builds do nothing here. *fake is its own record of the stack that is left;
 * fake NULL: that stack is not used again. */
static void stack_leave(void **fake, const void *bottom, size_t bytes)
{
#ifdef EMULATOR_ASAN
    __sanitizer_start_switch_fiber(fake, bottom, bytes);
#else
    (void)fake, (void)bottom, (void)bytes;
#endif
}

/* On the stack whose record is fake; from: the stack that was left. */
static void stack_arrive(void *fake, const void **from, size_t *bytes)
{
#ifdef EMULATOR_ASAN
    __sanitizer_finish_switch_fiber(fake, from, bytes);
#else
    (void)fake, (void)from, (void)bytes;
#endif
}

static uint64_t run_random(uint64_t below)
{
    run.state ^= run.state << 13; /* xorshift64 */
    run.state ^= run.state >> 7;
    run.state ^= run.state << 17;
    return (uint64_t)((__uint128_t)run.state * below >> 64);
}

/* Makes one of the threads that can run the running one, or none. */
static void fiber_choose(void)
{
    emulator_now = NULL;
    if (!run.readies || run.report[0]) return;
    int k = (int)run_random((uint64_t)run.readies);

    emulator_now = &emulator_fibers[run.ready[k]];
    run.ready[k] = run.ready[--run.readies];
    emulator_here = &emulator_now->where;
}

/* Continues the running thread, or the scheduler, while the stack that is left is saved in *from. */
static void fiber_go(void **from, void **fake)
{
    if (emulator_now) {
        stack_leave(fake, emulator_now->stack, STACK - PAGE);
        emulator_switch(from, emulator_now->stack_pointer);
    } else {
        stack_leave(fake, run.scheduler_bottom, run.scheduler_bytes);
        emulator_switch(from, run.scheduler);
    }
}

static void fiber_leave(void)
{
    fiber *self = emulator_now;
    void *fake;

    fiber_choose();
    fiber_go(&self->stack_pointer, &fake);
    stack_arrive(fake, NULL, NULL);
}

[[noreturn]] static void fiber_end(void)
{
    fiber *self = emulator_now;

    fiber_choose();
    fiber_go(&self->stack_pointer, NULL);
    abort();
}

/* At the beginning of a thread. The first of a block is switched to by the scheduler. */
static void fiber_arrive(void)
{
    const void *from = NULL;
    size_t bytes = 0;

    stack_arrive(NULL, &from, &bytes);
    if (run.entered) return;
    run.scheduler_bottom = from;
    run.scheduler_bytes = bytes;
    run.entered = true;
}

static void fiber_main(void)
{
    fiber_arrive();
    run.entry(run.closure);
    if (copy_thread_waits(emulator_now->index)) emulator_fail("it ends with asynchronous copies that it has not waited for");
    emulator_now->state = FIBER_DONE;
    emulator_block.done++;
    fiber_end();
}

void emulator_fail(const char *fmt, ...)
{
    va_list args;

    if (!emulator_now) { /* the host follows a pointer of the device */
        va_start(args, fmt);
        fprintf(stderr, "emulator: the host: ");
        vfprintf(stderr, fmt, args);
        va_end(args);
        abort();
    }
    va_start(args, fmt);
    report_write(emulator_now, fmt, args);
    va_end(args);
    fiber_end();
}

void fiber_wait(fiber_state state, const char *file, int line)
{
    fiber *f = emulator_now;

    f->state = state;
    f->file = file;
    f->line = line;
    fiber_leave();
}

void fiber_make_ready(fiber *f)
{
    f->state = FIBER_READY;
    run.ready[run.readies++] = f->index;
}

int emulator_lane(void) { return emulator_now->lane; }

void emulator_barrier(const char *file, int line)
{
    emulator_block.waiting++;
    fiber_wait(FIBER_BARRIER, file, line);
}

/* Each stack has a page before it that cannot be touched, and an odd number of pages: a power of two would put what all threads use most
 * into the same few sets of the caches. */
static char *stack_top(int i)
{
    if (!run.stacks) {
        void *p = mmap(NULL, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED) {
            perror("emulator: the stacks of the threads");
            exit(1);
        }
        run.stacks = (char *)p;
        for (int k = 0; k < MOST_THREADS; k++) mprotect(run.stacks + (size_t)k * STACK, PAGE, PROT_NONE);
    }
    return run.stacks + (size_t)(i + 1) * STACK;
}

/* The stack as emulator_switch() left it: six registers, then where it returns to; at a function's first instruction rsp + 8 is a multiple
 * of 16. */
static void fiber_begin(fiber *f, int i, dim3 block)
{
    unsigned t = (unsigned)i;
    void **sp = (void **)(stack_top(i) - 64 - i / 16 % 8 * 512); /* not at the same place of all pages either */

    f->where.thread = dim3(t % emulator_block.size.x, t / emulator_block.size.x % emulator_block.size.y,
                           t / emulator_block.size.x / emulator_block.size.y);
    f->where.block = block;
    f->where.block_dim = emulator_block.size;
    f->where.grid_dim = emulator_block.grid;
    f->stack = stack_top(i) - STACK + PAGE;
    f->index = i;
    f->lane = i % WARP;
    f->warp = i / WARP;
    memset(f->clock, 0, sizeof f->clock);
    f->clock[f->lane] = 1;
#ifdef EMULATOR_ASAN
    __asan_unpoison_memory_region(f->stack, STACK - PAGE); /* of the fiber that had it before */
#endif
    *--sp = NULL;
    *--sp = (void *)fiber_main;
    for (int k = 0; k < 6; k++) *--sp = NULL;
    f->stack_pointer = sp;
    copy_thread_begin(i);
    fiber_make_ready(f);
}

/* ---- the scheduler ---- */

/* Runs the threads until none can. */
static void run_ready(void)
{
    void *fake;

    fiber_choose();
    if (!emulator_now) return;
    fiber_go(&run.scheduler, &fake);
    stack_arrive(fake, NULL, NULL);
}

/* If all threads wait at one barrier, they continue. Otherwise one that is elsewhere is reported. */
static void barrier_release(void)
{
    const fiber *first = NULL;

    for (int i = 0; i < emulator_block.threads; i++) {
        fiber *f = &emulator_fibers[i];

        if (f->state == FIBER_WARP) {
            warp_explain(f);
            return;
        }
        if (f->state == FIBER_BARRIER && !first) first = f;
    }
    for (int i = 0; i < emulator_block.threads; i++) {
        const fiber *f = &emulator_fibers[i];

        if (f->state == FIBER_DONE)
            emulator_note(f, "divergent barrier: it has ended while others wait at %s:%d", first->file, first->line);
        else if (f->line != first->line || strcmp(f->file, first->file))
            emulator_note(f, "divergent barrier: it waits at %s:%d, others at %s:%d", f->file, f->line, first->file, first->line);
    }
    if (run.report[0]) return;
    for (int i = 0; i < emulator_block.threads; i++) fiber_make_ready(&emulator_fibers[i]);
    emulator_block.waiting = 0;
    emulator_block.epoch++;
}

static void block_run(dim3 at)
{
    emulator_block.serial++;
    emulator_block.epoch = 1;
    emulator_block.done = emulator_block.waiting = 0;
    emulator_block.static_bytes = 0;
    run.readies = 0;
    run.entered = false;
    memory_block_begin();
    warp_block_begin();
    for (int i = 0; i < emulator_block.threads; i++) fiber_begin(&emulator_fibers[i], i, at);
    run_ready();
    while (!run.report[0] && emulator_block.done < emulator_block.threads) {
        barrier_release();
        run_ready();
    }
}

static const char *launch_refused(dim3 grid, dim3 block, size_t shared_bytes)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;

    if (threads < 1 || threads > MOST_THREADS || block.z > MOST_BLOCK_Z) return "a block has from 1 to 1024 threads, at most 64 in z";
    if (!grid.x || !grid.y || !grid.z) return "a grid has at least one block";
    if (grid.x > 0x7fffffffu || grid.y > MOST_GRID_YZ || grid.z > MOST_GRID_YZ) return "a grid has at most 2^31-1 x 65535 x 65535 blocks";
    if (shared_bytes > MOST_SHARED) return "a block has at most 99 KiB of shared memory";
    return NULL;
}

void emulator_grid(const char *name, dim3 grid, dim3 block, size_t shared_bytes, void (*entry)(const void *closure), const void *closure)
{
    const char *refused = launch_refused(grid, block, shared_bytes);
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;

    emulator_block.kernel = name;
    run.launches++;
    if (refused || run.running) {
        emulator_note(NULL, "launch refused: %s: grid (%u,%u,%u), block (%u,%u,%u), %zu bytes of shared memory",
                      refused ? refused : "a kernel is running", grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes);
        return;
    }
    emulator_block.grid = grid;
    emulator_block.size = block;
    emulator_block.threads = (int)(block.x * block.y * block.z);
    emulator_block.dynamic_bytes = shared_bytes;
    emulator_block.launch = emulator_block.serial + 1;
    run.state = (run.seed * 0x9E3779B97F4A7C15u + run.launches) | 1;
    run.entry = entry;
    run.closure = closure;
    run.running = true;
    std::vector<uint32_t> order(blocks);
    for (uint64_t i = 0; i < blocks; i++) { /* a random permutation, from the inside out */
        uint64_t k = run_random(i + 1);

        order[i] = order[k];
        order[k] = (uint32_t)i;
    }
    for (uint64_t i = 0; i < blocks && !run.report[0]; i++)
        block_run(dim3(order[i] % grid.x, order[i] / grid.x % grid.y, order[i] / grid.x / grid.y));
    run.running = false;
}

void emulator_submit(void *stream, const char *name, void (*run_closure)(const void *closure), const void *closure, size_t bytes)
{
    if (!run.enqueue)
        run_closure(closure);
    else if (stream)
        run.enqueue(stream, name, run_closure, closure, bytes);
}

/* For programs without a runtime of their own. */
extern "C" {
__attribute__((weak)) void *cuda_launch_stream(struct device_stream *s) { return s; }
__attribute__((weak)) void cuda_launch_failed(const char *kernel, int error, const char *text)
{
    emulator_note(NULL, "launch of %s failed: %d: %s", kernel, error, text);
}
}
