/* test_tensor.c - tensors, views and their storages. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "helper_check.h"
#include "kernels/kernel.h"
#include "train/faults/fault_points.h"

#define SIZES(...) (const size_t[]){ __VA_ARGS__ }
#define STRIDES(...) (const ptrdiff_t[]){ __VA_ARGS__ }

static ls_tensor *fresh(ls_dtype type, int ndim, const size_t *size)
{
    ls_tensor *t = NULL;

    assert_int_equal(ls_tensor_new("cpu", type, ndim, size, LS_OTHER, &t), LS_OK);
    return t;
}

/* 0, 1, 2, ... in row-major order. */
static ls_tensor *counting(ls_dtype type, int ndim, const size_t *size)
{
    ls_tensor *t = fresh(type, ndim, size);
    float x[256];

    for (int i = 0; i < 256; i++)
        x[i] = (float)i;
    assert_int_equal(ls_tensor_write(t, x, LS_F32, ls_tensor_count(t)), LS_OK);
    return t;
}

static void test_new(void **state)
{
    ls_tensor *t = fresh(LS_BF16, 3, SIZES(2, 3, 4));
    const uint16_t *bits = ls_tensor_data(t);

    (void)state;
    assert_int_equal(ls_tensor_dtype(t), LS_BF16);
    assert_int_equal(ls_tensor_ndim(t), 3);
    assert_int_equal(ls_tensor_size(t, 1), 3);
    assert_int_equal(ls_tensor_stride(t, 0), 12);
    assert_int_equal(ls_tensor_stride(t, 2), 1);
    assert_int_equal(ls_tensor_count(t), 24);
    assert_true(ls_tensor_is_contiguous(t));
    for (int i = 0; i < 24; i++)
        assert_int_equal(bits[i], 0);
    ls_tensor_release(&t);
    assert_null(t);
    ls_tensor_release(&t);
    ls_tensor_release(NULL);
}

static void test_scalar_and_empty(void **state)
{
    ls_tensor *scalar = fresh(LS_F64, 0, NULL), *empty = fresh(LS_F32, 2, SIZES(0, 5)), *view = NULL;
    double x = 2.5, y = 0;

    (void)state;
    assert_int_equal(ls_tensor_count(scalar), 1);
    assert_int_equal(ls_tensor_write(scalar, &x, LS_F64, 1), LS_OK);
    assert_int_equal(ls_tensor_read(scalar, &y, LS_F64, 1), LS_OK);
    assert_true(x == y);
    assert_int_equal(ls_tensor_count(empty), 0);
    assert_int_equal(ls_tensor_read(empty, NULL, LS_F32, 0), LS_OK);
    assert_int_equal(ls_tensor_view(empty, 2, SIZES(5, 0), STRIDES(1, 1), 0, &view), LS_OK);
    assert_int_equal(ls_tensor_count(view), 0);
    ls_tensor_release(&view);
    ls_tensor_release(&empty);
    ls_tensor_release(&scalar);
}

/* The ledger sees the bytes in the tensor's category until the last view is released. */
static void test_ledger_and_lifetime(void **state)
{
    struct mem_stats before, held, after;
    ls_tensor *t = NULL, *view = NULL;
    float x[4];

    (void)state;
    mem_read(&before);
    assert_int_equal(ls_tensor_new("cpu", LS_F32, 2, SIZES(10, 10), LS_GRADIENTS, &t), LS_OK);
    ls_tensor *again = ls_tensor_retain(t);
    assert_ptr_equal(again, t);
    assert_int_equal(ls_tensor_view(t, 1, SIZES(4), STRIDES(10), 3, &view), LS_OK);
    mem_read(&held);
    assert_int_equal(held.now[MEM_GRADIENTS] - before.now[MEM_GRADIENTS], 400);
    ls_tensor_release(&t);
    ls_tensor_release(&again);
    mem_read(&held);
    assert_int_equal(held.now[MEM_GRADIENTS] - before.now[MEM_GRADIENTS], 400);
    assert_int_equal(ls_tensor_read(view, x, LS_F32, 4), LS_OK);
    ls_tensor_release(&view);
    mem_read(&after);
    assert_int_equal(after.total_now, before.total_now);
}

static void test_views(void **state)
{
    ls_tensor *t = counting(LS_F32, 2, SIZES(3, 4)), *transposed = NULL, *reversed = NULL, *inner = NULL;
    static const float want[] = { 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11 }, backwards[] = { 11, 10, 9, 8 };
    float x[12];

    (void)state;
    assert_int_equal(ls_tensor_view(t, 2, SIZES(4, 3), STRIDES(1, 4), 0, &transposed), LS_OK);
    assert_false(ls_tensor_is_contiguous(transposed));
    assert_int_equal(ls_tensor_read(transposed, x, LS_F32, 12), LS_OK);
    assert_memory_equal(x, want, sizeof want);
    assert_int_equal(ls_tensor_view(t, 1, SIZES(4), STRIDES(-1), 11, &reversed), LS_OK);
    assert_int_equal(ls_tensor_read(reversed, x, LS_F32, 4), LS_OK);
    assert_memory_equal(x, backwards, sizeof backwards);
    /* a view of a view counts from its own first element */
    assert_int_equal(ls_tensor_view(reversed, 1, SIZES(2), STRIDES(2), -8, &inner), LS_OK);
    assert_int_equal(ls_tensor_read(inner, x, LS_F32, 2), LS_OK);
    assert_true(x[0] == 3 && x[1] == 5);
    x[0] = 70;
    x[1] = 71;
    assert_int_equal(ls_tensor_write(inner, x, LS_F32, 2), LS_OK);
    assert_true(((float *)ls_tensor_data(t))[3] == 70 && ((float *)ls_tensor_data(t))[5] == 71);
    assert_true(((float *)ls_tensor_data(t))[4] == 4);
    ls_tensor_release(&inner);
    ls_tensor_release(&reversed);
    ls_tensor_release(&transposed);
    ls_tensor_release(&t);
}

static void test_repeated_dim(void **state)
{
    ls_tensor *t = counting(LS_I32, 1, SIZES(3)), *repeated = NULL;
    static const int32_t want[] = { 0, 1, 2, 0, 1, 2 };
    int32_t x[6];

    (void)state;
    assert_int_equal(ls_tensor_view(t, 2, SIZES(2, 3), STRIDES(0, 1), 0, &repeated), LS_OK);
    assert_int_equal(ls_tensor_read(repeated, x, LS_I32, 6), LS_OK);
    assert_memory_equal(x, want, sizeof want);
    ls_tensor_release(&repeated);
    ls_tensor_release(&t);
}

static void test_converts(void **state)
{
    static const ls_dtype types[] = { LS_F32, LS_BF16, LS_F16, LS_F64, LS_I64, LS_I32, LS_U16, LS_U8 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        ls_tensor *t = counting(types[i], 2, SIZES(5, 5));
        double x[25];

        assert_int_equal(ls_tensor_read(t, x, LS_F64, 25), LS_OK);
        for (int k = 0; k < 25; k++)
            assert_true(x[k] == k);
        ls_tensor_release(&t);
    }
}

static void impossible_tensors_are_refused(void **state)
{
    ls_tensor *t = fresh(LS_F32, 1, SIZES(10)), *v = t;
    const size_t huge = SIZE_MAX / 2;
    float x[11];

    (void)state;
    REFUSED(LS_EINVAL, "7 dims", ls_tensor_new("cpu", LS_F32, 7, SIZES(1, 1, 1, 1, 1, 1, 1), LS_OTHER, &v));
    REFUSED(LS_EINVAL, "-1 dims", ls_tensor_new("cpu", LS_F32, -1, NULL, LS_OTHER, &v));
    REFUSED(LS_EINVAL, "larger than any memory", ls_tensor_new("cpu", LS_F32, 2, SIZES(huge, huge), LS_OTHER, &v));
    REFUSED(LS_EINVAL, "99", ls_tensor_new("cpu", (ls_dtype)99, 1, SIZES(1), LS_OTHER, &v));
    REFUSED(LS_EINVAL, "77", ls_tensor_new("cpu", LS_F32, 1, SIZES(1), (ls_memory)77, &v));
    assert_int_equal(ls_tensor_new("gpu9", LS_F32, 1, SIZES(1), LS_OTHER, &v), LS_EUNSUPPORTED);
    REFUSED(LS_EINVAL, "10 elements", ls_tensor_view(t, 1, SIZES(11), STRIDES(1), 0, &v));
    REFUSED(LS_EINVAL, "leaves its storage", ls_tensor_view(t, 1, SIZES(5), STRIDES(2), 2, &v));
    REFUSED(LS_EINVAL, "leaves its storage", ls_tensor_view(t, 1, SIZES(2), STRIDES(-1), 0, &v));
    REFUSED(LS_EINVAL, "leaves its storage", ls_tensor_view(t, 1, SIZES(1), STRIDES(1), -1, &v));
    REFUSED(LS_EINVAL, "leaves its storage", ls_tensor_view(t, 1, SIZES(1), STRIDES(1), 10, &v));
    REFUSED(LS_EINVAL, "leaves its storage", ls_tensor_view(t, 1, SIZES(0), STRIDES(1), 11, &v));
    REFUSED(LS_EINVAL, "leaves its storage", ls_tensor_view(t, 1, SIZES(1), STRIDES(1), PTRDIFF_MAX, &v));
    REFUSED(LS_EINVAL, "leaves its storage", ls_tensor_view(t, 2, SIZES(3, 3), STRIDES(PTRDIFF_MAX, PTRDIFF_MAX), 0, &v));
    REFUSED(LS_EINVAL, "larger than any memory", ls_tensor_view(t, 2, SIZES(huge, 2), STRIDES(0, 1), 0, &v));
    REFUSED(LS_EINVAL, "7 dims", ls_tensor_view(t, 7, NULL, NULL, 0, &v));
    REFUSED(LS_EINVAL, "11 elements", ls_tensor_read(t, x, LS_F32, 11));
    REFUSED(LS_EINVAL, "9 elements", ls_tensor_write(t, x, LS_F32, 9));
    REFUSED(LS_EINVAL, "element type", ls_tensor_read(t, x, (ls_dtype)-1, 10));
    assert_ptr_equal(v, t);  /* never set by a failure */
    ls_tensor_release(&t);
}

/* Each allocation of a new tensor and of a view may fail: nothing is kept, the next try succeeds. */
static void test_allocation_failures(void **state)
{
    struct mem_stats before, after;
    ls_tensor *t = NULL, *v = NULL;
    int failures = 0;

    (void)state;
    mem_read(&before);
    for (int64_t nth = 1; !t; nth++) {
        mem_fail_at(nth);
        if (ls_tensor_new("cpu", LS_F32, 1, SIZES(100), LS_PARAMETERS, &t) != LS_OK) {
            failures++;
            assert_null(t);
            mem_read(&after);
            assert_int_equal(after.total_now, before.total_now);
        }
    }
    mem_fail_at(1);
    assert_int_equal(ls_tensor_view(t, 1, SIZES(10), STRIDES(1), 0, &v), LS_ENOMEM);
    mem_fail_at(0);
    assert_null(v);
    assert_int_equal(failures, 3);
    ls_tensor_release(&t);
    mem_read(&after);
    assert_int_equal(after.total_now, before.total_now);
}

static void test_view_properties(void **state)
{
    float data[24];
    struct view v = view_of(data, LS_F32, 3, SIZES(2, 3, 4)), absent = { .ndim = VIEW_ABSENT };
    struct call c = { .op = OP_LINEAR, .nin = 2 };

    (void)state;
    assert_int_equal(view_count(&v), 24);
    assert_int_equal(view_bytes(&v), 96);
    assert_int_equal(view_rows(&v), 6);
    assert_int_equal(view_last(&v), 4);
    assert_int_equal(view_offset(&v, 17), 17);
    struct view part = view_narrow(&v, 1, 1, 2);
    assert_ptr_equal(part.data, data + 4);
    assert_int_equal(view_count(&part), 16);
    assert_false(view_is_contiguous(&part));
    assert_int_equal(view_offset(&part, 9), 13);
    part = view_narrow(&v, 0, 1, 1);
    assert_true(view_is_contiguous(&part));
    assert_int_equal(view_count(&absent), 0);
    assert_int_equal(view_rows(&absent), 0);
    assert_false(view_is_contiguous(&absent));
    c.in[0] = v;
    c.in[1] = absent;
    c.in[2] = v;
    assert_true(call_has_in(&c, 0));
    assert_false(call_has_in(&c, 1));
    assert_false(call_has_in(&c, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new),
        cmocka_unit_test(test_scalar_and_empty),
        cmocka_unit_test(test_ledger_and_lifetime),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_repeated_dim),
        cmocka_unit_test(test_converts),
        cmocka_unit_test(impossible_tensors_are_refused),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_view_properties),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
