/* test_device_streams.c - streams, events and copies of the checking device: the orders that it chooses, and the errors that it reports. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "base/mem.h"
#include "device/check.h"
#include "helper_child.h"
#include "train/faults/fault_points.h"

#define OK(call) assert_int_equal((call), LS_OK)

enum { SEEDS = 60, BYTES = 4096 };

static const struct device *const d = &device_check;

static char *new_bytes(int byte)
{
    char *p = d->alloc(MEM_OTHER, BYTES);

    assert_non_null(p);
    OK(d->fill(NULL, p, byte, BYTES));
    OK(d->stream_sync(NULL));
    return p;
}

static void free_bytes(char *p, char *q, char *r)
{
    d->free(p);
    d->free(q);
    d->free(r);
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

/* ---- children that must end ---- */

typedef void child_fn(void);

static child_fn *ends;

static int run_to_the_end(void)
{
    ends();
    return 42;
}

/* fn runs in a child, which must end with exit code 1 and a line that has this text. */
static void expect_end(child_fn *fn, const char *text)
{
    ends = fn;
    struct child c = child_run(NULL, run_to_the_end);
    child_expect(&c, 1, text);
}

static void read_on_host(void)
{
    volatile char *p = d->alloc(MEM_GRADIENTS, BYTES);

    (void)p[100];
}

static void write_on_host(void) { memset(d->alloc(MEM_PARAMETERS, BYTES), 0, BYTES); }

static void copy_from_device_as_host(void)
{
    char *p = d->alloc(MEM_OTHER, BYTES), *q = d->alloc(MEM_OTHER, BYTES);

    d->copy_in(NULL, p, q, BYTES);
    d->sync();
}

static void fill_host(void)
{
    static char host[BYTES];

    d->fill(NULL, host, 1, BYTES);
    d->sync();
}

static void copy_past_end(void)
{
    static char host[BYTES + 1];

    d->copy_in(NULL, d->alloc(MEM_OTHER, BYTES), host, BYTES + 1);
    d->sync();
}

static void two_streams_no_order(void)
{
    char *p = d->alloc(MEM_OTHER, BYTES);
    struct device_stream *a = new_stream("left"), *b = new_stream("right");

    d->fill(a, p, 1, BYTES);
    d->fill(b, p, 2, 1);
}

static void test_ends(void **state)
{
    (void)state;
    expect_end(read_on_host, "the host touched device memory: byte 100 of 4096 of gradients");
    expect_end(write_on_host, "the host touched device memory: byte 0 of 4096 of parameters");
    expect_end(copy_from_device_as_host, "copy_in got device memory; expected host memory");
    expect_end(fill_host, "fill got address");
    expect_end(copy_past_end, "copy_in got address");
    expect_end(two_streams_no_order, "fill on stream 'left' writes bytes [0, 4096) of other, and fill on stream 'right' writes [0, 1)");
}

/* ---- orders ---- */

/* Operations of a stream run in the order of enqueueing, and the copy back waits for all of them. */
static void test_one_stream(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        char *p = new_bytes(0), *q = new_bytes(0), host[BYTES];
        struct device_stream *s = new_stream("one");

        check_set_seed(seed);
        memset(host, 7, sizeof host);
        OK(d->fill(s, p, 1, BYTES));
        OK(d->copy(s, q, p, BYTES / 2));
        OK(d->fill(s, p, 2, BYTES));
        OK(d->copy(s, q + BYTES / 2, p, BYTES / 2));
        OK(d->copy_out(s, host, q, BYTES));
        OK(d->stream_sync(s));
        for (int i = 0; i < BYTES; i++)
            assert_int_equal(host[i], i < BYTES / 2 ? 1 : 2);
        d->stream_free(s);
        free_bytes(p, q, NULL);
    }
}

/* A chain over three streams; with its events the last sees the first under every seed. */
static void test_events(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        char *p = new_bytes(0), *q = new_bytes(0), host[BYTES];
        struct device_stream *a = new_stream("a"), *b = new_stream("b"), *c = new_stream("c");
        struct device_event *e = new_event(), *f = new_event(), *unused = new_event();

        check_set_seed(seed);
        OK(d->event_wait(unused, b));  /* never recorded: no wait */
        OK(d->event_sync(unused));
        OK(d->fill(a, p, 5, BYTES));
        OK(d->event_record(e, a));
        OK(d->event_wait(e, b));
        OK(d->copy(b, q, p, BYTES));
        OK(d->event_record(f, b));
        OK(d->event_wait(f, c));
        OK(d->fill(c, p, 6, BYTES));
        OK(d->copy_out(c, host, q, BYTES));
        OK(d->stream_sync(c));
        assert_int_equal(host[BYTES - 1], 5);
        OK(device_read(d, host, p, BYTES));
        assert_int_equal(host[0], 6);
        for (struct device_event *x[] = { e, f, unused }, **k = x; k < x + 3; k++)
            d->event_free(*k);
        for (struct device_stream *x[] = { a, b, c }, **k = x; k < x + 3; k++)
            d->stream_free(*k);
        free_bytes(p, q, NULL);
    }
}

static void count_race(void *ctx, const char *line)
{
    assert_non_null(strstr(line, "in no order"));
    ++*(int *)ctx;
}

/* Without a wait: reported under every seed, whatever order was taken; and both orders are taken. */
static void test_missing_wait(void **state)
{
    int old = 0, fresh = 0;

    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        char *p = new_bytes(1), *q = new_bytes(0), host[BYTES];
        struct device_stream *a = new_stream("a"), *b = new_stream("b");
        int races = 0;

        check_set_seed(seed);
        check_on_race(count_race, &races);
        OK(d->fill(a, p, 2, BYTES));
        OK(d->copy(b, q, p, BYTES));
        check_on_race(NULL, NULL);
        OK(d->copy_out(b, host, q, BYTES));
        OK(d->stream_sync(b));
        assert_int_equal(races, 1);
        old += host[9] == 1;
        fresh += host[9] == 2;
        d->stream_free(a);
        d->stream_free(b);
        free_bytes(p, q, NULL);
    }
    assert_int_equal(old + fresh, SEEDS);
    assert_true(old > 5 && fresh > 5);
}

/* A copy out is made some time between its enqueueing and the host's wait: early under some seeds, late under others. */
static void test_copy_out(void **state)
{
    int early = 0, late = 0;

    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        char *p = new_bytes(3);
        volatile char host[BYTES];
        struct device_event *e = new_event();

        check_set_seed(seed);
        host[0] = 0;
        OK(d->copy_out(NULL, (char *)(uintptr_t)host, p, BYTES));
        OK(d->event_record(e, NULL));
        early += host[0] == 3;
        late += host[0] == 0;
        OK(d->event_sync(e));
        assert_int_equal(host[0], 3);
        d->event_free(e);
        d->free(p);
    }
    assert_true(early > 5 && late > 5);
}

/* A copy in reads its host memory when it is made. */
static void test_copy_in(void **state)
{
    int early = 0, late = 0;

    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        char *p = new_bytes(0), host[BYTES] = { 4 }, got[BYTES];

        check_set_seed(seed);
        OK(d->copy_in(NULL, p, host, BYTES));
        host[0] = 5;  /* against the rules */
        OK(device_read(d, got, p, BYTES));
        early += got[0] == 4;
        late += got[0] == 5;
        d->free(p);
    }
    assert_true(early > 5 && late > 5);
}

/* ---- pairs that are not races ---- */

static void test_no_race(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        char *p = new_bytes(1), *q = new_bytes(0), *r = new_bytes(0);
        struct device_stream *a = new_stream("a"), *b = new_stream("b");
        struct device_event *e = new_event();
        int races = 0;

        check_set_seed(seed);
        check_on_race(count_race, &races);
        OK(d->copy(a, q, p, BYTES));            /* both read p */
        OK(d->copy(b, r, p, BYTES));
        OK(d->fill(a, p + 64, 1, 64));          /* unlike this: b has read it */
        assert_int_equal(races, 1);
        OK(d->stream_sync(b));                  /* the host has waited for b, and enqueues after that */
        OK(d->fill(a, p, 1, 64));
        OK(d->event_record(e, a));
        OK(d->fill(a, p + 128, 2, 64));
        OK(d->event_wait(e, b));
        OK(d->fill(b, p, 3, 64)); /* ordered by e, and disjoint from the bytes that a wrote after it */
        assert_int_equal(races, 1);
        OK(d->fill(b, p + 128, 4, 64));         /* e was recorded before that was written */
        assert_int_equal(races, 2);
        check_on_race(NULL, NULL);
        d->event_free(e);
        d->stream_free(a);
        d->stream_free(b);
        free_bytes(p, q, r);
    }
}

/* ---- operations ---- */

struct addition { char *to; const char *from; int n; const bool *open; bool *begun; };

static ls_status add_bytes(void *args)
{
    struct addition *a = args;

    if (a->begun)
        *a->begun = true;
    if (a->open && !*a->open)
        return LS_BUSY;
    for (int i = 0; i < a->n; i++)
        a->to[i] = (char)(a->to[i] + a->from[i]);
    return LS_OK;
}

static struct device_operation operation_of(const struct addition *a)
{
    return (struct device_operation){
        .name = "addition", .run = add_bytes, .args = a, .bytes = sizeof *a,
        .pointer = { offsetof(struct addition, to), offsetof(struct addition, from) }, .pointers = 2,
        .access = { { .data = a->to, .bytes = (size_t)a->n, .write = true }, { .data = a->from, .bytes = (size_t)a->n } }, .accesses = 2,
    };
}

/* Arguments are those of the enqueueing. */
static void test_operation(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        char *p = new_bytes(10), *q = new_bytes(1), host[BYTES];
        struct addition a = { p, q, BYTES, NULL, NULL };
        struct device_operation o = operation_of(&a);

        check_set_seed(seed);
        OK(d->enqueue(NULL, &o));
        a.n = 100;
        a.to = NULL;
        OK(device_read(d, host, p, BYTES));
        assert_int_equal(host[0], 11);
        assert_int_equal(host[BYTES - 1], 11);
        free_bytes(p, q, NULL);
    }
}

static ls_status open_gate(void *args) { return **(bool **)args = true, LS_OK; }

/* An operation in progress delays only its own stream. */
static void test_under_way(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        bool open = false, *gate = &open, begun = false;
        char *p = new_bytes(10), *q = new_bytes(1), host[BYTES];
        struct device_stream *a = new_stream("a"), *b = new_stream("b");
        struct addition add = { p, q, BYTES, &open, &begun };
        struct device_operation o = operation_of(&add), opener = { .name = "gate", .run = open_gate, .args = &gate, .bytes = sizeof gate };

        check_set_seed(seed);
        OK(d->enqueue(a, &o));
        OK(d->fill(a, q, 2, BYTES));
        OK(d->enqueue(b, &opener));
        OK(d->stream_sync(a));
        assert_true(open && begun);
        OK(device_read(d, host, p, BYTES));
        assert_int_equal(host[0], 11);
        d->stream_free(a);
        d->stream_free(b);
        free_bytes(p, q, NULL);
    }
}

static ls_status refuse(void *args)
{
    (void)args;
    return ls_fail(LS_EPEER, "rank 3 is gone");
}

static void expect_failure(ls_status st)
{
    if (st != LS_EPEER || !strstr(ls_errmsg(), "rank 3 is gone"))
        _exit(3);
}

/* In a child: the failure stays. */
static void fail_once(void)
{
    struct device_operation o = { .name = "refusal", .run = refuse };
    struct device_event *e = new_event();
    char host[BYTES], *p = new_bytes(0);

    memset(host, 1, sizeof host);
    OK(d->enqueue(NULL, &o));
    OK(d->event_record(e, NULL));
    OK(d->copy_out(NULL, host, p, BYTES));
    expect_failure(d->event_sync(e));
    expect_failure(d->stream_sync(NULL));
    expect_failure(d->sync());
    expect_failure(device_settle());
    if (host[0] != 1) /* later operations did not run */
        _exit(4);
    fprintf(stderr, "as promised");
    _exit(1);
}

static void test_failure(void **state)
{
    (void)state;
    expect_end(fail_once, "as promised");
}

/* ---- memory ---- */

static void device_streams_test_memory(void **state)
{
    struct mem_stats before, held, after;
    char host[100], back[100];

    (void)state;
    mem_read(&before);
    char *p = d->alloc(MEM_GRADIENTS, 100);
    mem_read(&held);
    assert_int_equal(held.now[MEM_GRADIENTS] - before.now[MEM_GRADIENTS], 100);
    assert_int_equal((uintptr_t)p % 64, 0);
    for (int i = 0; i < 100; i++)
        host[i] = (char)i;
    OK(device_write(d, p, host, 100));
    OK(device_read(d, back, p, 100));
    assert_memory_equal(back, host, 100);
    d->free(p);
    d->free(NULL);
    mem_read(&after);
    assert_int_equal(after.now[MEM_GRADIENTS], before.now[MEM_GRADIENTS]);
    mem_fail_at(1);
    assert_null(d->alloc(MEM_GRADIENTS, 100));
    mem_fail_at(0);
    mem_read(&after);
    assert_int_equal(after.now[MEM_GRADIENTS], before.now[MEM_GRADIENTS]);
    assert_ptr_equal(device_find("check"), d);
    assert_null(device_find("abacus"));
    assert_string_equal(ls_errmsg(), "there is no device 'abacus'; this build has cpu, cuda, check");
    assert_ptr_equal(device_find(device_row(0)->name), &device_cpu);
}

/* The cpu device: streams and events are null, and everything is complete on return. */
static void test_cpu(void **state)
{
    const struct device *cpu = device_find("cpu");
    struct device_stream *s;
    struct device_event *e;
    char a[8] = "1234567", b[8];

    (void)state;
    assert_true(cpu->immediate && cpu->host_visible && !cpu->enqueue);
    OK(cpu->stream_new("compute", &s));
    OK(cpu->event_new(&e));
    assert_null(s);
    assert_null(e);
    OK(cpu->copy_in(s, b, a, 8));
    assert_string_equal(b, a);
    OK(cpu->event_record(e, s));
    OK(cpu->event_wait(e, s));
    OK(cpu->event_sync(e));
    OK(cpu->fill(s, b, 0, 8));
    assert_int_equal(b[0], 0);
    cpu->event_free(e);
    cpu->stream_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_one_stream),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_missing_wait),
        cmocka_unit_test(test_copy_out),
        cmocka_unit_test(test_copy_in),
        cmocka_unit_test(test_no_race),
        cmocka_unit_test(test_operation),
        cmocka_unit_test(test_under_way),
        cmocka_unit_test(test_failure),
        cmocka_unit_test(device_streams_test_memory),
        cmocka_unit_test(test_cpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
