/* test_readback.c - the sum of outputs of many runs, waited for together, has the bits of the sum of outputs read one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include "device/check.h"
#include "helper_check.h"
#include "lockstep/ops.h"
#include "runtime/readback.h"

enum { RUNS = READBACK_MOST + 70, COUNT = 3 };

static ls_store *store;
static ls_program *program;

static void readback_test_open(const char *device)
{
    OK(ls_store_new(&(ls_store_options){ device, LS_F32, 1, 7, 0 }, &store));
    OK(ls_program_new(store, &program));
    ls_value x = ls_input(program, "x", LS_F32, 1, (size_t[]){ COUNT });
    ls_output(program, "y", ls_scale(program, x, 0.1));
    ls_output(program, "sum", ls_sum(program, x, -1));
    OK(ls_program_compile(program, NULL));
}

static void readback_test_close(struct readback *r)
{
    readback_close(r);
    ls_program_release(&program);
    ls_store_release(&store);
}

/* Each run has numbers whose sum depends on the order. */
static void readback_test_run(int k)
{
    float x[COUNT];

    for (int e = 0; e < COUNT; e++)
        x[e] = (k % 7 == 3 ? 1e9f : 1.0f) / (float)(k + e + 1);
    OK(ls_program_write(program, "x", x, LS_F32, COUNT));
    OK(ls_program_run(program, LS_FORWARD));
}

static void check_sums(const char *device)
{
    double want[COUNT + 1] = { 0 }, got[COUNT + 1] = { 0 }, part[COUNT + 1];
    struct readback r = { 0 };

    readback_test_open(device);
    for (int k = 0; k < RUNS; k++) {
        readback_test_run(k);
        OK(ls_program_read(program, "y", part, LS_F64, COUNT));
        OK(ls_program_read(program, "sum", part + COUNT, LS_F64, 1));
        for (int e = 0; e <= COUNT; e++)
            want[e] += part[e];
    }
    for (int twice = 0; twice < 2; twice++) { /* nothing of the first is left */
        memset(got, 0, sizeof got);
        for (int k = 0; k < RUNS; k++) {
            readback_test_run(k);
            OK(readback_add(&r, program, "y", got, COUNT));
            OK(readback_add(&r, program, "sum", &got[COUNT], 1));
        }
        OK(readback_finish(&r));
        assert_memory_equal(got, want, sizeof got);
        OK(readback_finish(&r));
        assert_memory_equal(got, want, sizeof got);
    }
    readback_test_close(&r);
}

static void test_sums(void **state)
{
    (void)state;
    check_sums("cpu");
    for (int order = 0; order < CHECK_ORDERS; order++) {
        check_set_order((enum check_order)order);
        check_sums("check");
    }
}

/* Until it is finished the sum is empty, and a dropped output is never added. */
static void test_dropped(void **state)
{
    struct readback r = { 0 };
    double sum = 0;

    (void)state;
    check_set_order(CHECK_LAZY);
    readback_test_open("check");
    readback_test_run(1);
    OK(readback_add(&r, program, "sum", &sum, 1));
    assert_true(sum == 0);
    readback_drop(&r);
    OK(readback_finish(&r));
    assert_true(sum == 0);
    REFUSED(LS_EINVAL, "'sum' has 1 elements, 2 were given", readback_add(&r, program, "sum", &sum, 2));
    REFUSED(LS_EINVAL, "no input, output", readback_add(&r, program, "loss", &sum, 1));
    OK(readback_add(&r, program, "sum", &sum, 1)); /* closed while it is under way */
    readback_test_close(&r);
    assert_true(sum == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_sums), cmocka_unit_test(test_dropped) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
