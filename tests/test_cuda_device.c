/* test_cuda_device.c - the functions of the CUDA device on the stub of the CUDA runtime: memory, copies through pinned blocks, the
 * order of streams, host operations, full queues, failures. test_gpu_kernels.c runs the kernels.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/rng.h"
#include "device/device.h"
#include "helper_child.h"
#include "train/faults/fault_points.h"

#define OK(call) assert_int_equal((call), LS_OK)

enum { SEEDS = 20, DEEP = 3000, BYTES = 4096 };

static const struct device *d;

static char *new_bytes(size_t bytes)
{
    char *p = d->alloc(MEM_OTHER, bytes);

    assert_non_null(p);
    return p;
}

static struct device_stream *new_stream(const char *name)
{
    struct device_stream *s;

    OK(d->stream_new(name, &s));
    return s;
}

static struct device_event *new_event(void)
{
    struct device_event *e;

    OK(d->event_new(&e));
    return e;
}

/* fn runs in a child, on a separate device with these settings; its result is the exit code. */
typedef int child_fn(void);

static child_fn *work;

static int work_on_device(void)
{
    d = device_find("cuda");
    return d ? work() : 99;
}

static void expect_child(child_fn *fn, const char *settings, int code, const char *text)
{
    work = fn;
    struct child c = child_run(settings, work_on_device);
    child_expect(&c, code, text);
}

/* True with the location in a line; for children, which have no assertions. */
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, ls_errmsg()); \
            return 1; \
        } \
    } while (0)

static void test_open(void **state)
{
    (void)state;
    assert_non_null(d = device_find("cuda"));
    assert_ptr_equal(device_find("cuda"), d);
}

/* ---- copies ---- */

static void test_copies(void **state)
{
    static const size_t sizes[] = { 0, 1, 4095, 4096, 8 << 20, (8 << 20) + 1, (50 << 20) + 3 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        size_t n = sizes[i];
        unsigned char *host = malloc(n + 1), *back = malloc(n + 1);
        char *p = new_bytes(n), *q = new_bytes(n);

        assert_true(host && back);
        for (size_t k = 0; k < n; k++)
            host[k] = (unsigned char)(k * 7 + (k >> 12));
        memset(back, 0, n + 1);
        OK(d->copy_in(NULL, p, host, n));
        memset(host, 0, n); /* it was read already: see cuda.h */
        OK(d->copy(NULL, q, p, n));
        OK(d->copy_out(NULL, back, q, n));
        OK(d->stream_sync(NULL));
        for (size_t k = 0; k < n; k++)
            if (back[k] != (unsigned char)(k * 7 + (k >> 12)))
                fail_msg("byte %zu of %zu is %d", k, n, back[k]);
        assert_int_equal(back[n], 0);
        d->free(p);
        d->free(q);
        free(host);
        free(back);
    }
}

/* Bytes that a copy writes to host memory are visible to a later copy from it, without a wait of the host. */
static void test_through_host(void **state)
{
    char *p = new_bytes(BYTES), *q = new_bytes(BYTES), back[BYTES], between[BYTES];
    struct device_stream *s = new_stream("copies");

    (void)state;
    for (int k = 0; k < SEEDS; k++) {
        memset(between, 0, sizeof between);
        OK(d->fill(s, p, 1 + k, BYTES));
        OK(d->copy_out(s, between, p, BYTES));
        OK(d->copy_in(s, q + 100, between + 100, BYTES - 100));
        OK(d->copy_out(s, back, q, BYTES));
        OK(d->stream_sync(s));
        for (int i = 100; i < BYTES; i++)
            assert_int_equal(back[i], 1 + k);
    }
    d->stream_free(s);
    d->free(p);
    d->free(q);
}

/* ---- orders ---- */

static int orders(void)
{
    char *p = d->alloc(MEM_OTHER, BYTES), back[BYTES];
    struct device_stream *a, *b;
    struct device_event *e, *never;

    CHECK(d->stream_new("a", &a) == LS_OK && d->stream_new("b", &b) == LS_OK);
    CHECK(d->event_new(&e) == LS_OK && d->event_new(&never) == LS_OK);
    CHECK(d->event_sync(never) == LS_OK && d->event_wait(never, a) == LS_OK);
    for (int k = 1; k < 50; k++) {
        CHECK(d->fill(a, p, k, BYTES) == LS_OK);
        CHECK(d->event_record(e, a) == LS_OK && d->event_wait(e, b) == LS_OK);
        CHECK(d->copy_out(b, back, p, BYTES) == LS_OK);
        CHECK(d->event_record(e, b) == LS_OK);
        if (k % 2) {
            CHECK(d->event_sync(e) == LS_OK);
            CHECK(back[0] == k && back[BYTES - 1] == k);
        }
        CHECK(d->event_wait(e, a) == LS_OK);
    }
    CHECK(d->sync() == LS_OK && back[BYTES - 1] == 49);
    d->event_free(e);
    d->event_free(never);
    d->stream_free(a);
    d->stream_free(b);
    d->free(p);
    return 0;
}

static int race(void)
{
    char *p = d->alloc(MEM_OTHER, BYTES);
    struct device_stream *a, *b;

    CHECK(d->stream_new("a", &a) == LS_OK && d->stream_new("b", &b) == LS_OK);
    CHECK(d->fill(a, p, 1, BYTES) == LS_OK);
    d->fill(b, p, 2, 1);
    return 0; /* not reached */
}

static int cuda_device_touch(void) { return *(volatile char *)d->alloc(MEM_OTHER, BYTES); }

static void test_orders(void **state)
{
    char settings[32];

    (void)state;
    for (int k = 0; k < SEEDS; k++) {
        snprintf(settings, sizeof settings, "seed=%d", k);
        expect_child(orders, settings, 0, "");
    }
    expect_child(race, "", 1, "writes [0, 1) in no order: a wait is missing");
    expect_child(cuda_device_touch, "", 1, "the host touched device memory");
}

static void test_many_streams(void **state)
{
    (void)state;
    for (int k = 0; k < 600; k++)
        d->stream_free(new_stream("one after another"));
}

/* ---- operations of the host ---- */

struct sum_args { const int *from; int *to; int n, *runs; bool *may_end; };

/* to[k] = from[k] + to[k] + 1; from and to may be the same. */
static ls_status sum_run(void *args)
{
    struct sum_args *a = args;

    if (a->may_end && !*a->may_end) return LS_BUSY;
    for (int k = 0; k < a->n; k++)
        a->to[k] = a->from[k] + (a->from == a->to ? 0 : a->to[k]) + 1;
    ++*a->runs;
    return LS_OK;
}

static ls_status give_sum(struct device_stream *s, const int *from, int *to, int n, int *runs, bool *may_end)
{
    struct sum_args a = { from, to, n, runs, may_end };
    struct device_operation o = {
        .name = "sum", .run = sum_run, .args = &a, .bytes = sizeof a,
        .pointer = { offsetof(struct sum_args, from), offsetof(struct sum_args, to) }, .pointers = 2,
        .access = { { .data = from, .bytes = (size_t)n * sizeof *from }, { .data = to, .bytes = (size_t)n * sizeof *to, .write = true } },
        .accesses = 2,
    };

    return d->enqueue(s, &o);
}

static void test_operations(void **state)
{
    enum { N = 1000 };
    int host[N], back[N], runs = 0;
    int *p = (int *)(void *)new_bytes(2 * N * sizeof *p);
    struct device_stream *s = new_stream("operations");

    (void)state;
    for (int k = 0; k < N; k++)
        host[k] = k;
    OK(d->copy_in(s, p, host, sizeof host));
    OK(d->copy_in(s, p + N, host, sizeof host));
    OK(give_sum(s, p, p + N, N, &runs, NULL));            /* 2 k + 1 */
    OK(give_sum(s, p + N, p + N, N, &runs, NULL));        /* in place: 2 k + 2 */
    OK(give_sum(s, p, p + N / 2, N / 2, &runs, NULL));    /* [N/2 + k] = k + N/2 + k + 1 */
    OK(d->copy_out(s, back, p + N, sizeof back));
    OK(d->copy_out(s, host, p, sizeof host));
    OK(d->stream_sync(s));
    assert_int_equal(runs, 3);
    for (int k = 0; k < N; k++) {
        assert_int_equal(back[k], 2 * k + 2);
        assert_int_equal(host[k], k < N / 2 ? k : 2 * (k - N / 2) + N / 2 + 1);
    }
    d->stream_free(s);
    d->free(p);
}

/* Far more operations than a queue holds, on a stream that does not wait for the operation in progress and on one that does. */
static void test_full_queues(void **state)
{
    struct device_stream *a = new_stream("waits for the host"), *b = new_stream("full");
    struct device_event *e = new_event();
    int *p = (int *)(void *)new_bytes(BYTES), *q = (int *)(void *)new_bytes(BYTES), runs = 0, back[2];
    bool may_end = false;

    (void)state;
    OK(d->fill(a, p, 0, BYTES));
    OK(give_sum(a, p, p, 1, &runs, &may_end));
    OK(d->event_record(e, a));
    for (int k = 0; k < DEEP; k++)
        OK(d->fill(b, q, k & 15, BYTES));
    assert_int_equal(runs, 0);
    OK(d->event_wait(e, b));
    OK(d->copy_out(b, back, p, sizeof back));
    may_end = true;
    for (int k = 0; k < DEEP; k++)
        OK(d->fill(b, q, k & 15, BYTES));
    OK(d->stream_sync(b));
    assert_int_equal(runs, 1);
    assert_int_equal(back[0], 1);
    d->event_free(e);
    d->stream_free(a);
    d->stream_free(b);
    d->free(p);
    d->free(q);
}

/* ---- failures ---- */

static ls_status fail_run(void *args)
{
    (void)args;
    return ls_fail(LS_EPEER, "rank 3 is gone");
}

static int failing_operation(void)
{
    struct device_operation o = { .name = "fails", .run = fail_run };
    struct device_stream *a, *b;
    char *p = d->alloc(MEM_OTHER, BYTES), back[BYTES] = { 0 };

    CHECK(p && d->stream_new("a", &a) == LS_OK && d->stream_new("b", &b) == LS_OK);
    CHECK(d->fill(a, p, 1, BYTES) == LS_OK && d->enqueue(a, &o) == LS_OK);
    d->copy_out(a, back, p, BYTES);
    CHECK(d->stream_sync(a) == LS_EPEER && strcmp(ls_errmsg(), "rank 3 is gone") == 0);
    ls_fail(LS_EINVAL, "something else");
    CHECK(d->stream_sync(b) == LS_EPEER && strcmp(ls_errmsg(), "rank 3 is gone") == 0);
    CHECK(d->fill(b, p, 1, BYTES) == LS_EPEER && d->sync() == LS_EPEER);
    CHECK(d->alloc(MEM_OTHER, BYTES) == NULL && device_no_memory(d) == LS_EPEER);
    d->stream_free(a);
    d->free(p);
    return back[0]; /* host memory is not written any more */
}

static int failing_gpu(void)
{
    char *p = d->alloc(MEM_OTHER, BYTES);

    CHECK(p && d->fill(NULL, p, 1, BYTES) == LS_OK);
    CHECK(d->stream_sync(NULL) == LS_EPEER);
    CHECK(strstr(ls_errmsg(), "cuda: GPU 0 (stub GPU 0): ") && strstr(ls_errmsg(), "unspecified launch failure (cudaErrorLaunchFailure)"));
    return 0;
}

static int out_of_memory(void)
{
    struct mem_stats before, after;
    char *p;

    CHECK((p = d->alloc(MEM_GRADIENTS, 500000)));
    mem_read(&before);
    CHECK(d->alloc(MEM_PARAMETERS, 500000) == NULL && device_no_memory(d) == LS_ENOMEM);
    CHECK(strstr(ls_errmsg(), "out of memory on GPU 0 (stub GPU 0): 500000 bytes needed for parameters, 437500 of 1000000 are free"));
    mem_read(&after);
    CHECK(after.now[MEM_PARAMETERS] == before.now[MEM_PARAMETERS] && before.now[MEM_GRADIENTS] == 500000);
    CHECK((p = d->alloc(MEM_PARAMETERS, 400000)) != NULL); /* the device is still usable */
    d->free(p);
    mem_fail_at(1);
    CHECK(d->alloc(MEM_PARAMETERS, 1000) == NULL);
    mem_fail_at(0);
    mem_set_device_limit(before.now[MEM_GRADIENTS] + 1000);
    CHECK(d->alloc(MEM_PARAMETERS, 4000) == NULL && device_no_memory(d) == LS_ENOMEM);
    CHECK(strstr(ls_errmsg(), "limit 501000 of the device's memory"));
    return 0;
}

static void test_failures(void **state)
{
    (void)state;
    expect_child(failing_operation, "", 0, "");
    expect_child(failing_gpu, "fail_run=1", 0, "");
    expect_child(out_of_memory, "memory=1000000", 0, "");
}

/* ---- which GPU ---- */

static int second_gpu(void)
{
    struct device_facts f, g;
    int n;
    size_t taken;

    CHECK(d->count(&n) == LS_OK && n == 3);
    CHECK(d->choose(0, &g) == LS_OK && d->choose(4, &f) == LS_OK); /* the second of three */
    CHECK(strcmp(f.name, "stub GPU 1") == 0 && strcmp(f.identity, g.identity) != 0 && f.memory == 1600000);
    CHECK(d->taken(&taken) == LS_OK && taken == 100000);
    return 0;
}

static void test_gpus(void **state)
{
    (void)state;
    expect_child(second_gpu, "gpus=3 memory=1600000", 0, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders), /* children: before the device is open here */
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_gpus),
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_through_host),
        cmocka_unit_test(test_many_streams),
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_full_queues),
    };

    if (access("lockstep_cuda_stub.so", R_OK) != 0) {
        printf("skipped: no C++ compiler was found, so the stub was not built\n");
        return 77;
    }
    setenv("LOCKSTEP_CUDA_MODULE", "./lockstep_cuda_stub.so", 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
