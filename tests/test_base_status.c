/* test_base_status.c - statuses, messages, assertions, the clock. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"
#include "helper_child.h"

static void every_status_has_a_text(void **state)
{
    (void)state;
#define CHECK(name, value, text)              \
    assert_int_equal(LS_##name, value);       \
    assert_string_equal(ls_status_text(LS_##name), text);
    LS_STATUS_MAP(CHECK)
#undef CHECK
    assert_string_equal(ls_status_text((ls_status)-99), "unknown status");
}

static void messages_are_set_and_prefixed(void **state)
{
    (void)state;
    assert_int_equal(ls_fail(LS_EINVAL, "%d of %s", 3, "x"), LS_EINVAL);
    assert_string_equal(ls_errmsg(), "3 of x");
    assert_int_equal(ls_fail_at(LS_EIO, "file:%d", 7), LS_EIO);
    assert_string_equal(ls_errmsg(), "file:7: 3 of x");
    ls_fail(LS_EFORMAT, "tensor '%s'", "a\nb\x7f\x1b[31m\xc3\xa9");  /* one line, whatever a file's names hold */
    assert_string_equal(ls_errmsg(), "tensor 'a b  [31m\xc3\xa9'");
    ls_fail(LS_EIO, "file:7: 3 of x");
    ls_fail(LS_EIO, "again (%s)", ls_errmsg());  /* its own message as an argument */
    assert_string_equal(ls_errmsg(), "again (file:7: 3 of x)");
}

static void long_messages_are_marked_as_truncated(void **state)
{
    char big[5000];

    (void)state;
    memset(big, 'a', sizeof big);
    big[sizeof big - 1] = '\0';
    ls_fail(LS_EIO, "%s", big);
    assert_int_equal(strlen(ls_errmsg()), 2047);
    assert_string_equal(ls_errmsg() + 2044, "...");
    ls_fail_at(LS_EIO, "here");
    assert_memory_equal(ls_errmsg(), "here: aaa", 9);
    assert_string_equal(ls_errmsg() + 2044, "...");
}

static void *fresh_thread(void *arg)
{
    bool *right = arg;

    *right = ls_errmsg()[0] == '\0';
    ls_fail(LS_EIO, "theirs");
    return NULL;
}

static void messages_are_per_thread(void **state)
{
    pthread_t t;
    bool right = false;

    (void)state;
    ls_fail(LS_EIO, "ours");
    assert_int_equal(pthread_create(&t, NULL, fresh_thread, &right), 0);
    pthread_join(t, NULL);
    assert_true(right);
    assert_string_equal(ls_errmsg(), "ours");
}

static ls_status tries(ls_status inner, int *passed)
{
    LS_TRY(inner);
    ++*passed;
    return LS_OK;
}

static void ls_try_returns_only_on_failure(void **state)
{
    int passed = 0;

    (void)state;
    assert_int_equal(tries(LS_ETIMEOUT, &passed), LS_ETIMEOUT);
    assert_int_equal(passed, 0);
    assert_int_equal(tries(LS_BUSY, &passed), LS_OK);
    assert_int_equal(passed, 1);
}

static int fail_assertion(void)
{
    ASSERT(1 + 1 == 3);
    return 0;
}

static void failed_assertion_names_the_line_and_aborts(void **state)
{
    struct child c = child_run(NULL, fail_assertion);

    (void)state;
    child_expect(&c, -SIGABRT, "test_base_status.c:");
    child_expect(&c, -SIGABRT, "1 + 1 == 3");
}

static void clock_is_monotonic(void **state)
{
    double before = base_now(), after = before;

    (void)state;
    while (after == before) after = base_now();
    assert_true(after > before);
}

static void size_overflow_is_detected(void **state)
{
    size_t out = 0;

    (void)state;
    assert_true(size_mul(1u << 20, 1u << 20, &out));
    assert_true(out == (size_t)1 << 40);
    assert_false(size_mul((size_t)1 << 40, (size_t)1 << 24, &out));
    assert_true(size_add(SIZE_MAX - 1, 1, &out));
    assert_false(size_add(SIZE_MAX, 1, &out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_text),   cmocka_unit_test(messages_are_set_and_prefixed),
        cmocka_unit_test(long_messages_are_marked_as_truncated), cmocka_unit_test(messages_are_per_thread),
        cmocka_unit_test(ls_try_returns_only_on_failure), cmocka_unit_test(failed_assertion_names_the_line_and_aborts),
        cmocka_unit_test(clock_is_monotonic),    cmocka_unit_test(size_overflow_is_detected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
