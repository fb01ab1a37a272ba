/* test_program_errors.c - errors of programs: sticky, named, checked on write; frozen parameters; failing allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "helper_check.h"
#include "helper_layers.h"
#include "lockstep/ops.h"
#include "ir/program.h"
#include "train/faults/fault_points.h"

static void indices_are_checked_on_write(void **state)
{
    ls_store *s = layers_store(LS_F32);
    int32_t ids[3] = { 0, 4, 5 };
    ls_program *p;

    (void)state;
    OK(ls_program_new(s, &p));
    ls_output(p, "y", ls_embedding(p, ls_input(p, "ids", LS_I32, 1, (size_t[]){ 3 }),
                                   ls_param(p, "w", (ls_init){ LS_INIT_ONES, 0 }, 2, (size_t[]){ 5, 2 })));
    OK(ls_program_compile(p, NULL));
    assert_int_equal(ls_program_write(p, "ids", ids, LS_I32, 3), LS_EINVAL);
    assert_string_equal(ls_errmsg(), "'ids': element 2 is 5; 0 to 4 is possible");
    ids[2] = -1;
    assert_int_equal(ls_program_write(p, "ids", ids, LS_I32, 3), LS_EINVAL);
    ids[2] = 1;
    OK(ls_program_write(p, "ids", ids, LS_I32, 3));
    OK(ls_program_run(p, LS_FORWARD));
    ls_program_release(&p);
    ls_store_release(&s);
}

static void errors_are_sticky_and_name_shapes(void **state)
{
    ls_store *s = layers_store(LS_F32);
    ls_program *p;

    (void)state;
    OK(ls_program_new(s, &p));
    ls_value x = ls_input(p, "x", LS_F32, 2, (size_t[]){ 4, 5 });
    ls_value y = ls_linear(p, x, ls_param(p, "w", (ls_init){ LS_INIT_ZEROS, 0 }, 2, (size_t[]){ 3, 6 }), LS_NONE);
    assert_int_equal(y.id, 0);
    assert_int_equal(ls_relu(p, y).id, 0);
    assert_int_equal(ls_program_compile(p, NULL), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "linear: x is [4,5], w is [3,6]"));
    ls_program_release(&p);
    ls_store_release(&s);
}

static void first_infinity_is_named(void **state)
{
    ls_store *s = layers_store(LS_F32);
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    float big = 1e38f;
    ls_program *p;

    (void)state;
    o.check_finite = 1;
    OK(ls_program_new(s, &p));
    ls_value x = ls_input(p, "x", LS_F32, 1, (size_t[]){ 1 });
    ls_output(p, "y", ls_scale(p, x, 1e10));
    OK(ls_program_compile(p, &o));
    OK(ls_program_write(p, "x", &big, LS_F32, 1));
    assert_int_equal(ls_program_run(p, LS_FORWARD), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "scale of 'y'"));
    assert_non_null(strstr(ls_errmsg(), "infinite"));
    ls_program_release(&p);
    ls_store_release(&s);
}

static void frozen_parameters_have_no_gradient(void **state)
{
    ls_store *s = layers_store(LS_F32);
    ls_program *p;

    (void)state;
    OK(ls_program_new(s, &p));
    layers_build(p, LS_F32);
    int w = ls_store_find(s, "a.up.weight");
    OK(ls_store_freeze(s, (size_t)w));
    OK(ls_program_compile(p, NULL));
    assert_null(ls_store_grad(s, (size_t)w));
    assert_non_null(ls_store_grad(s, (size_t)ls_store_find(s, "in.weight")));
    ls_program_release(&p);
    ls_store_release(&s);
}

/* Half types with masters: a frozen weight has no master to fill. */
static void frozen_parameters_have_no_master(void **state)
{
    ls_store *s;
    ls_program *p;

    (void)state;
    OK(ls_store_new(&(ls_store_options){ "cpu", LS_BF16, 1, 7, 0 }, &s));
    OK(ls_program_new(s, &p));
    layers_build(p, LS_BF16);
    OK(ls_store_freeze(s, 0));
    OK(ls_program_compile(p, NULL));
    assert_null(ls_store_state(s, 0, "master"));
    assert_non_null(ls_store_state(s, 1, "master"));
    ls_program_release(&p);
    ls_store_release(&s);
}

/* Each allocation in building, compiling or running a program that fails gives a status and leaks nothing. */
static void programs_fail_cleanly_without_memory(void **state)
{
    struct mem_stats before, after;
    int failed = 0;

    (void)state;
    mem_read(&before);
    for (int64_t n = 1; ; n++) {
        ls_store *s = NULL;
        ls_program *p = NULL;

        mem_fail_at(n);
        ls_status st = ls_store_new(&(ls_store_options){ "cpu", LS_F32, 0, 7, 0 }, &s);
        if (st == LS_OK)
            st = ls_program_new(s, &p);
        if (st == LS_OK) {
            layers_build(p, LS_F32);
            st = ls_program_compile(p, &(ls_compile_options){ .recompute = LS_RECOMPUTE_FULL, .every = 1 });
        }
        mem_fail_at(0);
        ls_program_release(&p);
        ls_store_release(&s);
        mem_read(&after);
        assert_int_equal(after.total_now, before.total_now);
        if (st == LS_OK)
            break;
        assert_int_equal(st, LS_ENOMEM);
        failed++;
    }
    assert_true(failed > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(indices_are_checked_on_write),
        cmocka_unit_test(errors_are_sticky_and_name_shapes),
        cmocka_unit_test(first_infinity_is_named),
        cmocka_unit_test(frozen_parameters_have_no_gradient),
        cmocka_unit_test(frozen_parameters_have_no_master),
        cmocka_unit_test(programs_fail_cleanly_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
