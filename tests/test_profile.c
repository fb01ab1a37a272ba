/* test_profile.c - seconds of instructions on a device that runs them later than the host enqueues them: where the host looks at single
 * instructions, they are the device's. The clock is the test's, and passes only while the device runs one kind of operation.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include "base/base.h"
#include "device/check.h"
#include "helper_check.h"
#include "helper_program.h"
#include "ir/program.h"
#include "lockstep/ops.h"
#include "runtime/store_parts.h"

enum { SIZE = 4, RUNS = 3, OPERATION_SECONDS = 8 };

/* ---- a device of which one operation is slow ---- */

static struct device slow_device;
static const char *slow_name;
static ls_status (*slow_run)(void *args);
static bool slow_begun;
static double slow_now;

static double slow_clock(void) { return slow_now; }

static ls_status slow_run_later(void *args)
{
    if (!slow_begun)
        slow_now += OPERATION_SECONDS;
    ls_status st = slow_run(args);
    slow_begun = st == LS_BUSY;
    return st;
}

static ls_status slow_enqueue(struct device_stream *s, const struct device_operation *o)
{
    struct device_operation later = *o;

    if (strcmp(o->name, slow_name) == 0) {
        assert_true(!slow_run || slow_run == o->run);
        slow_run = o->run;
        later.run = slow_run_later;
    }
    return device_check.enqueue(s, &later);
}

/* The checking device, which runs nothing before it is waited for, and on which operations of this name take OPERATION_SECONDS. */
static ls_store *slow_store(const char *name)
{
    ls_store *s;

    slow_device = device_check;
    slow_device.enqueue = slow_enqueue;
    slow_name = name;
    slow_run = NULL;
    base_test_clock = slow_clock;
    check_set_order(CHECK_DEMAND);
    OK(ls_store_new(&(ls_store_options){ "check", LS_F32, 1, 7, 0 }, &s));
    s->where = &slow_device;
    return s;
}

/* ---- programs ---- */

static const size_t size = SIZE;

static void finish_program(ls_program *p)
{
    float x[SIZE] = { 1, 2, 3, 4 };

    OK(ls_program_compile(p, NULL));
    OK(ls_program_write(p, "x", x, LS_F32, SIZE));
}

/* The GELU of a scaled input, scaled again. */
static ls_program *kernels_program(ls_store *s)
{
    ls_program *p = program_on(s);
    ls_value x = ls_input(p, "x", LS_F32, 1, &size);

    ls_output(p, "y", ls_scale(p, ls_gelu_tanh(p, ls_scale(p, x, 2)), 2));
    finish_program(p);
    return p;
}

/* A sum over ranks, beside which another value is scaled, and the sum of both. */
static ls_program *collective_program(ls_store *s, ls_comm *comm)
{
    ls_program *p = program_on(s);
    struct exchange e = { .op = LS_COLLECTIVE_ALL_REDUCE, .comm = comm, .redop = LS_SUM, .total = SIZE };
    ls_value x = ls_input(p, "x", LS_F32, 1, &size), v = emit_copy(p, x, program_comm_value(p, "bucket", LS_F32, SIZE));

    program_exchange_start(p, &e, v, v);
    ls_value beside = ls_scale(p, x, 3);
    program_exchange_wait(p, &e, v, v);
    ls_output(p, "y", ls_add(p, beside, program_copy(p, v, LS_F32)));
    p->arguments.arena_comm = comm;
    finish_program(p);
    return p;
}

/* Of all instructions that run: the seconds of those with that name, and those of all others. */
static void read_seconds(const ls_program *p, const char *name, double *of, double *others)
{
    *of = *others = 0;
    for (int n = 0; n < p->list[SEG_FORWARD].n; n++) {
        const struct instruction *i = &p->list[SEG_FORWARD].at[n];
        double seconds = instruction_run(p, i)->seconds;

        if (strcmp(instruction_name(i), name) == 0)
            *of += seconds;
        else
            *others += seconds;
    }
}

static void run_slow(ls_program *p)
{
    float y[SIZE];

    for (int k = 0; k < RUNS; k++) {
        OK(ls_program_run(p, LS_FORWARD));
        OK(ls_program_read(p, "y", y, LS_F32, SIZE));
    }
}

/* name: how the slow operation is called in the program. */
static void check_program(ls_program *p, const char *name)
{
    double of, others, before = slow_now;
    char *text;

    run_slow(p);
    assert_true(slow_now == before + RUNS * OPERATION_SECONDS);
    read_seconds(p, name, &of, &others);
    assert_true(of == 0 && others == 0); /* the host has only enqueued them */
    program_launch_singly(p);
    run_slow(p);
    read_seconds(p, name, &of, &others);
    assert_true(of == RUNS * OPERATION_SECONDS);
    assert_true(others == 0);
    OK(program_profile_text(p, &text));
    const char *first = strchr(text, '\n') + 1;
    if (strncmp(first, name, strlen(name)) != 0)
        fail_msg("%s is not the first row:\n%s", name, text);
    ls_free(text);
}

static void slow_kernel_has_its_seconds(void **state)
{
    ls_store *s = slow_store("unary");
    ls_program *p = kernels_program(s);

    (void)state;
    check_program(p, "unary");
    ls_program_release(&p);
    ls_store_release(&s);
}

/* It has those in which others waited for it. */
static void slow_collective_has_its_seconds(void **state)
{
    ls_comm *c = plan_comm(0, 1);
    ls_store *s = slow_store(ls_collective_name(LS_COLLECTIVE_ALL_REDUCE));
    ls_program *p = collective_program(s, c);

    (void)state;
    check_program(p, ls_collective_name(LS_COLLECTIVE_ALL_REDUCE));
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&c);
}

static void watch_slow(void *ctx, const ls_program *p, const struct instruction *i, double began, double ended)
{
    double *seconds = ctx;

    (void)p;
    seconds[strcmp(instruction_name(i), slow_name) != 0] += ended - began;
}

static void watchers_see_the_times_of_the_device(void **state)
{
    ls_store *s = slow_store("unary");
    ls_program *p = kernels_program(s);
    double seconds[2] = { 0 };

    (void)state;
    program_watch(p, watch_slow, seconds);
    run_slow(p);
    assert_true(seconds[0] == RUNS * OPERATION_SECONDS);
    assert_true(seconds[1] == 0);
    ls_program_release(&p);
    ls_store_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(slow_kernel_has_its_seconds), cmocka_unit_test(slow_collective_has_its_seconds),
                                        cmocka_unit_test(watchers_see_the_times_of_the_device) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
