/* test_base_log.c - log lines: which reach stderr, which reach the file, and their format. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

static const char *const log_path = "base_log.log", *const console_path = "base_log.stderr";
static int real_stderr;

static void catch_stderr(void)
{
    int to = open(console_path, O_CREAT | O_TRUNC | O_WRONLY, 0600);

    fflush(stderr);
    real_stderr = dup(STDERR_FILENO);
    dup2(to, STDERR_FILENO);
    close(to);
}

static char *caught_stderr(void)  /* mem_free() it */
{
    char *text;

    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    assert_int_equal(file_read(console_path, &text, NULL), LS_OK);
    unlink(console_path);
    return text;
}

static void console_filters_by_level(void **state)
{
    (void)state;
    catch_stderr();
    log_line(LOG_ERROR, "error %d", 1);
    log_line(LOG_WARN, "warning %s", "two");
    log_line(LOG_INFO, "hidden");
    log_set_console(LOG_DEBUG);
    log_line(LOG_DEBUG, "shown");
    log_set_console(LOG_ERROR);
    log_line(LOG_WARN, "hidden");
    log_set_console(LOG_WARN);
    char *text = caught_stderr();
    assert_string_equal(text, "error 1\nwarning two\nshown\n");
    mem_free(text);
}

static void file_has_every_level_with_a_timestamp(void **state)
{
    char *text;
    int year, month, day, hour, minute, second, thousandth, used = 0;

    (void)state;
    unlink(log_path);
    assert_int_equal(log_open(log_path), LS_OK);
    log_line(LOG_DEBUG, "first");
    log_close();
    log_line(LOG_DEBUG, "lost");
    assert_int_equal(log_open(log_path), LS_OK);  /* appends */
    log_line(LOG_INFO, "two\nlines\t.");
    log_close();
    assert_int_equal(file_read(log_path, &text, NULL), LS_OK);
    assert_int_equal(sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %n", &year, &month, &day, &hour, &minute, &second, &thousandth, &used), 7);
    assert_int_equal(used, 25);
    assert_in_range(year, 2000, 9999);
    assert_memory_equal(text + used, "debug: first\n", 13);
    char *line = text + used + 13;
    assert_string_equal(line + 25, "info: two lines .\n");
    mem_free(text);
    unlink(log_path);
}

static void long_lines_are_truncated(void **state)
{
    char big[10000];

    (void)state;
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    catch_stderr();
    log_line(LOG_ERROR, "%s", big);
    char *text = caught_stderr();
    assert_int_equal(strlen(text), 4096);
    assert_string_equal(text + 4092, "...\n");
    mem_free(text);
}

static void bad_path_is_refused(void **state)
{
    (void)state;
    assert_int_equal(log_open("base_log_none/x.log"), LS_EIO);
    assert_non_null(strstr(ls_errmsg(), "base_log_none/x.log: cannot open the log"));
}

static void *many_lines(void *arg)
{
    for (int i = 0; i < 300; i++) log_line(LOG_INFO, "%s", (const char *)arg);
    return NULL;
}

static void lines_of_threads_do_not_mix(void **state)
{
    char *text, *rest;
    pthread_t a, b;
    int lines = 0;

    (void)state;
    assert_int_equal(log_open(log_path), LS_OK);
    assert_int_equal(pthread_create(&a, NULL, many_lines, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), 0);
    assert_int_equal(pthread_create(&b, NULL, many_lines, "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"), 0);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    log_close();
    assert_int_equal(file_read(log_path, &text, NULL), LS_OK);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), lines++) {
        assert_int_equal(strlen(line), 25 + 6 + 36);
        assert_int_equal(strspn(line + 31, line[31] == 'a' ? "a" : "b"), 36);
    }
    assert_int_equal(lines, 600);
    mem_free(text);
    unlink(log_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(console_filters_by_level), cmocka_unit_test(file_has_every_level_with_a_timestamp),
        cmocka_unit_test(long_lines_are_truncated),           cmocka_unit_test(bad_path_is_refused),
        cmocka_unit_test(lines_of_threads_do_not_mix),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
