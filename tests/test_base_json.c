/* test_base_json.c - JSON: values of every kind, refused input, large objects, failing allocations, and texts that read back. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "train/faults/fault_points.h"

static json_node *parse(const char *text)
{
    json_node *root = NULL;

    assert_int_equal(json_parse(text, strlen(text), "test", &root), LS_OK);
    return root;
}

static void every_type_is_read(void **state)
{
    json_node *r = parse(" {\"n\": null, \"t\": true, \"f\": false, \"i\": -9007199254740993, \"r\": 2.5e-3,"
                         " \"s\": \"a\\u00e9\\n\", \"a\": [1, [], {}], \"o\": {\"x\": 1}} ");
    const json_node *a = json_get(r, "a"), *o = json_get(r, "o");

    (void)state;
    assert_int_equal(json_kind_of(r), JSON_OBJECT);
    assert_int_equal(json_size(r), 8);
    assert_int_equal(json_kind_of(json_get(r, "n")), JSON_NULL);
    assert_int_equal(json_kind_of(json_get(r, "t")), JSON_BOOL);
    assert_int_equal(json_bool(json_get(r, "t"), 0), 1);
    assert_int_equal(json_bool(json_get(r, "f"), 1), 0);
    assert_true(json_int(json_get(r, "i"), 0) == -9007199254740993);
    assert_true(json_real(json_get(r, "r"), 0) == 2.5e-3);
    assert_int_equal(json_kind_of(json_get(r, "r")), JSON_REAL);
    assert_string_equal(json_string(json_get(r, "s"), ""), "a\xc3\xa9\n");
    assert_int_equal(json_kind_of(a), JSON_ARRAY);
    assert_int_equal(json_size(a), 3);
    assert_true(json_real(json_at(a, 0), 0) == 1.0);
    assert_int_equal(json_size(json_at(a, 1)), 0);
    assert_int_equal(json_kind_of(json_at(a, 2)), JSON_OBJECT);
    assert_null(json_at(a, 3));
    assert_int_equal(json_int(json_get(o, "x"), 0), 1);
    json_close(&r);
    assert_null(r);
    json_close(&r);
}

static void absent_members_give_the_fallback(void **state)
{
    json_node *r = parse("{\"s\": \"x\", \"r\": 1.5, \"i\": 3}");
    const char *key = "untouched";

    (void)state;
    assert_int_equal(json_kind_of(NULL), JSON_NONE);
    assert_null(json_get(NULL, "a"));
    assert_null(json_get(json_get(r, "s"), "a"));
    assert_null(json_get(r, "absent"));
    assert_null(json_at(r, 0));
    assert_null(json_at(json_get(json_get(r, "absent"), "more"), 0));
    assert_null(json_member(r, 3, &key));
    assert_null(json_member(NULL, 0, &key));
    assert_string_equal(key, "untouched");
    assert_int_equal(json_size(NULL), 0);
    assert_int_equal(json_size(json_get(r, "s")), 0);
    assert_int_equal(json_int(json_get(r, "r"), -7), -7); /* a real is not an integer */
    assert_int_equal(json_int(NULL, -7), -7);
    assert_true(json_real(json_get(r, "s"), 0.5) == 0.5);
    assert_null(json_string(json_get(r, "i"), NULL));
    assert_int_equal(json_bool(json_get(r, "i"), 1), 1);
    json_close(&r);
}

static void members_keep_the_order_of_the_file(void **state)
{
    static const char *const names[] = { "zeta", "alpha", "mid", "beta" };
    json_node *r = parse("{\"zeta\":0,\"alpha\":1,\"mid\":2,\"beta\":3}");

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        const char *key;

        assert_int_equal(json_int(json_member(r, i, &key), -1), i);
        assert_string_equal(key, names[i]);
    }
    json_close(&r);
}

/* Around the size from which an object has a table of hashes, and far above it. */
static void objects_of_any_size_are_searched(void **state)
{
    static const int sizes[] = { 0, 1, 7, 8, 9, 16, 17, 1000, 20000 };

    (void)state;
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        struct json_out j = { 0 };
        char key[32];

        json_begin_object(&j, NULL);
        for (int i = 0; i < sizes[s]; i++) snprintf(key, sizeof key, "key %d", i), json_put_int(&j, key, i);
        json_end_object(&j);
        json_node *r = parse(j.text);
        for (int i = 0; i < sizes[s]; i++) {
            snprintf(key, sizeof key, "key %d", i);
            assert_int_equal(json_int(json_get(r, key), -1), i);
            snprintf(key, sizeof key, "not %d", i);
            assert_null(json_get(r, key));
        }
        json_close(&r);
        json_out_free(&j);
    }
}

static void json_refused(const char *text, size_t bytes, const char *says)
{
    json_node *root = NULL;

    assert_int_equal(json_parse(text, bytes, "file.json", &root), LS_EFORMAT);
    assert_null(root);
    assert_memory_equal(ls_errmsg(), "file.json: ", 11);
    if (!strstr(ls_errmsg(), says)) fail_msg("'%s' does not say '%s'", ls_errmsg(), says);
}

static void invalid_json_is_refused(void **state)
{
    static const struct { const char *text, *says; } cases[] = {
        { "", "line" },           { "{", "line 1" },          { "{\"a\":1,}", "line 1" },  { "\n\n[1 2]", "line 3" },
        { "[1] x", "line 1" },    { "{\"a\":1,\"a\":2}", "duplicate" }, { "[\"\xff\"]", "byte 0xff" }, { "[\"\\ud800\"]", "line" },
        { "[\"a\\u0000b\"]", "\\u0000" }, { "{\"a\\u0000b\":1}", "NUL" }, { "[01]", "line" }, { "[NaN]", "line" },
        { "[1e999]", "overflow" }, { "[99999999999999999999]", "too big" }, { "nul", "line" }, { "['a']", "line" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) json_refused(cases[i].text, strlen(cases[i].text), cases[i].says);
    json_refused("[\0]", 3, "line 1");
}

static void nest(char *text, int levels)
{
    memset(text, '[', (size_t)levels);
    text[levels] = '1';
    memset(text + levels + 1, ']', (size_t)levels);
    text[2 * levels + 1] = '\0';
}

static void depth_is_limited(void **state)
{
    char text[20001];

    (void)state;
    nest(text, 64);
    json_node *r = parse(text);
    json_close(&r);
    nest(text, 65);
    json_refused(text, strlen(text), "deeper than 64");
    memset(text, '[', 20000);
    json_refused(text, 20000, "line 1");
}

static void root_can_be_any_value(void **state)
{
    json_node *r = parse("-0.0");

    (void)state;
    assert_true(signbit(json_real(r, 1)));
    json_close(&r);
    r = parse("\"x\"");
    assert_string_equal(json_string(r, ""), "x");
    json_close(&r);
}

static void reals_read_back_to_the_same_bits(void **state)
{
    static const double values[] = { 0.0, -0.0, 1, -1, 0.1, 1.0 / 3, 1e22, 1e-5, 5e-324, 1.7976931348623157e308, 123456789012345678.0,
                                     2.5e-3 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        struct json_out j = { 0 };

        json_put_real(&j, NULL, values[i]);
        json_node *r = parse(j.text);
        double back = json_real(r, 7);
        assert_memory_equal(&back, &values[i], sizeof back);
        assert_int_equal(json_kind_of(r), JSON_REAL);
        json_close(&r);
        json_out_free(&j);
    }
}

static void json_text_is_built(void **state)
{
    struct json_out j = { 0 };

    (void)state;
    json_begin_object(&j, NULL);
    json_put_int(&j, "i", INT64_MIN);
    json_put_real(&j, "nan", NAN);
    json_put_real(&j, "inf", -INFINITY);
    json_put_real(&j, "r", 0.1);
    json_begin_array(&j, "a");
    json_put_bool(&j, NULL, 1);
    json_put_bool(&j, NULL, 0);
    json_begin_object(&j, NULL);
    json_end_object(&j);
    json_put_string(&j, NULL, "q\"b\\n\nu\x01\x7f\xc3\xa9\xff\xf0\x9f\x98\x80");
    json_end_array(&j);
    json_put_string(&j, "k\"", "");
    json_end_object(&j);
    assert_int_equal(json_out_status(&j), LS_OK);
    assert_string_equal(j.text, "{\"i\":-9223372036854775808,\"nan\":null,\"inf\":null,\"r\":0.1,\"a\":[true,false,{},"
                                "\"q\\\"b\\\\n\\u000au\\u0001\\u007f\xc3\xa9\xef\xbf\xbd\xf0\x9f\x98\x80\"],\"k\\\"\":\"\"}");
    assert_int_equal(j.bytes, strlen(j.text));
    json_node *r = parse(j.text);
    assert_true(json_int(json_get(r, "i"), 0) == INT64_MIN);
    json_close(&r);
    json_out_free(&j);
    assert_null(j.text);
}

static ls_status build_and_read(void)
{
    struct json_out j = { 0 };
    json_node *r = NULL;

    json_begin_array(&j, NULL);
    for (int i = 0; i < 500; i++) json_put_string(&j, NULL, "some text");
    json_end_array(&j);
    ls_status st = json_out_status(&j);
    if (st == LS_OK) st = json_parse(j.text, j.bytes, "test", &r);
    json_close(&r);
    json_out_free(&j);
    return st;
}

static void json_calls_fail_cleanly_without_memory(void **state)
{
    struct mem_stats before, after;
    int64_t nth = 1;

    (void)state;
    mem_read(&before);
    for (;; nth++) {
        mem_fail_at(nth);
        ls_status st = build_and_read();
        mem_fail_at(0);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_ENOMEM);
        assert_non_null(strstr(ls_errmsg(), "out of memory"));
    }
    mem_read(&after);
    assert_true(nth > 4);
    assert_int_equal(after.total_now, before.total_now);
}

static void files_are_read(void **state)
{
    json_node *r = NULL;

    (void)state;
    assert_int_equal(file_write("base_json.json", "{\"a\": [1]}", 10), LS_OK);
    assert_int_equal(json_read("base_json.json", &r), LS_OK);
    assert_int_equal(json_int(json_at(json_get(r, "a"), 0), 0), 1);
    json_close(&r);
    assert_int_equal(file_write("base_json.json", "{\n\n\"a\" [1]}", 11), LS_OK);
    assert_int_equal(json_read("base_json.json", &r), LS_EFORMAT);
    assert_non_null(strstr(ls_errmsg(), "base_json.json: not JSON: line 3"));
    assert_int_equal(json_read("base_json_none.json", &r), LS_EIO);
    unlink("base_json.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_read),       cmocka_unit_test(absent_members_give_the_fallback),
        cmocka_unit_test(members_keep_the_order_of_the_file), cmocka_unit_test(objects_of_any_size_are_searched),
        cmocka_unit_test(invalid_json_is_refused), cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(root_can_be_any_value), cmocka_unit_test(reals_read_back_to_the_same_bits),
        cmocka_unit_test(json_text_is_built),          cmocka_unit_test(json_calls_fail_cleanly_without_memory),
        cmocka_unit_test(files_are_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
