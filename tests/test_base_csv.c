/* test_base_csv.c - tables of comma-separated values that are read, refused and written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/csv.h"
#include "base/file.h"
#include "helper_check.h"

static char path[] = "/tmp/test_csv-XXXXXX";

static ls_status read_csv(const char *text, struct csv *out)
{
    OK(file_write(path, text, strlen(text)));
    return csv_read(path, out);
}

static void fields_are_read(void **state)
{
    struct csv c;

    (void)state;
    OK(read_csv("a,b,c\r\n1,\"x, \"\"y\"\"\",\n\n,\"two\nlines\",3", &c));
    assert_int_equal(c.columns, 3);
    assert_int_equal(c.rows, 2);
    assert_string_equal(csv_field(&c, 0, "a"), "1");
    assert_string_equal(csv_field(&c, 0, "b"), "x, \"y\"");
    assert_string_equal(csv_field(&c, 0, "c"), "");
    assert_string_equal(csv_field(&c, 1, "a"), "");
    assert_string_equal(csv_field(&c, 1, "b"), "two\nlines");
    assert_string_equal(csv_field(&c, 1, "c"), "3");
    assert_string_equal(csv_field(&c, 1, "d"), "");
    assert_true(csv_has(&c, "c") && !csv_has(&c, "d"));
    csv_free(&c);
    OK(read_csv("a\n", &c));
    assert_int_equal(c.rows, 0);
    csv_free(&c);
}

static void wrong_tables_are_refused(void **state)
{
    static const struct { const char *text, *says; } wrong[] = {
        { "a,b\n1,2\n1,2,3\n", ":3: 3 fields; the first line names 2 columns" },
        { "a,b\n\"1\n2\",3\n4\n", ":4: 1 fields" },
        { "a,b\n1,\"2\n3", ":2: a quote is not closed" },
        { "", "it is empty" },
    };
    struct csv c;

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_true(read_csv(wrong[i].text, &c) < 0);
        if (!strstr(ls_errmsg(), wrong[i].says)) fail_msg("'%s' lacks '%s'", ls_errmsg(), wrong[i].says);
        assert_null(c.text);
    }
}

static void what_is_written_reads_back(void **state)
{
    static const char *const fields[] = { "plain", "with, comma", "with \"quotes\"", "two\nlines", "" };
    struct text out = { 0 };
    struct csv c;

    (void)state;
    text_put(&out, "x,y\n");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        csv_put(&out, fields[i]);
        text_put(&out, ",1\n");
    }
    OK(text_status(&out));
    OK(read_csv(out.data, &c));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) assert_string_equal(csv_field(&c, (int)i, "x"), fields[i]);
    csv_free(&c);
    text_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(fields_are_read), cmocka_unit_test(wrong_tables_are_refused),
                                        cmocka_unit_test(what_is_written_reads_back) };
    int file = mkstemp(path);

    if (file < 0) return 1;
    close(file);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
