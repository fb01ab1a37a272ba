/* test_base_yaml.c - config files: what is accepted, and a one-line error with file and line for everything else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/yaml.h"
#include "train/faults/fault_points.h"

static ls_status note(void *ctx, const char *key, const char *value, int line)
{
    struct text *seen = ctx;

    text_put(seen, "%s=%s@%d\n", key, value, line);
    LS_TRY(text_status(seen));
    return strcmp(value, "stop") == 0 ? ls_fail(LS_EINVAL, "stop requested") : LS_OK;
}

static void check_taken(const char *yaml, const char *wanted)
{
    struct text seen = { 0 };
    ls_status st = yaml_parse(yaml, strlen(yaml), "f.yaml", note, &seen);

    if (st != LS_OK) fail_msg("%s", ls_errmsg());
    assert_string_equal(seen.data ? seen.data : "", wanted);
    text_free(&seen);
}

static void yaml_of_configs_is_read(void **state)
{
    (void)state;
    check_taken("", "");
    check_taken("# nothing\n", "");
    check_taken("---\n...\n", "");
    check_taken("{}\n", "");
    check_taken("train:\n  steps: 1000\n  seed: 7 # comment\noptim.lr: 3e-4\n", "train.steps=1000@2\ntrain.seed=7@3\noptim.lr=3e-4@4\n");
    check_taken("a:\n  b: \"x: #\\ty\"\n  c: 'it''s'\n  d: no\n  e: \"\"\n  f: ~\n",
                "a.b=x: #\ty@2\na.c=it's@3\na.d=no@4\na.e=@5\na.f=~@6\n");
    check_taken("a: {b: 1, c: 2}\nd: {}\n", "a.b=1@1\na.c=2@1\n");
    check_taken("a:\n  b: 1\nc:\n  b: 1\n", "a.b=1@2\nc.b=1@4\n");
    check_taken("\xef\xbb\xbf" "a.b: \xc3\xa9\r\nc.d: 2\r\n", "a.b=\xc3\xa9@1\nc.d=2@2\n");
}

static void yaml_refused(const char *yaml, const char *place, const char *says)
{
    struct text seen = { 0 };
    ls_status st = yaml_parse(yaml, strlen(yaml), "f.yaml", note, &seen);

    text_free(&seen);
    if (st != LS_EFORMAT) fail_msg("taken: %s", yaml);
    if (strncmp(ls_errmsg(), place, strlen(place)) != 0 || !strstr(ls_errmsg(), says))
        fail_msg("'%s' is not '%s ... %s'", ls_errmsg(), place, says);
    assert_null(strchr(ls_errmsg(), '\n'));
}

static void other_yaml_is_refused_with_its_line(void **state)
{
    (void)state;
    yaml_refused("a:\n  b: &x 1\n", "f.yaml:2: ", "anchors");
    yaml_refused("a: &x\n  b: 1\n", "f.yaml:1: ", "anchors");
    yaml_refused("a:\n  b: *x\n", "f.yaml:2: ", "aliases");
    yaml_refused("*x : 1\n", "f.yaml:1: ", "aliases");
    yaml_refused("a:\n  b: !!int 1\n", "f.yaml:2: ", "tags");
    yaml_refused("a: !x\n  b: 1\n", "f.yaml:1: ", "tags");
    yaml_refused("a:\n  b: [1, 2]\n", "f.yaml:2: ", "lists");
    yaml_refused("- a\n", "f.yaml:1: ", "lists");
    yaml_refused("a:\n  - b\n", "f.yaml:2: ", "lists");
    yaml_refused("a:\n  b:\n    c: 1\n", "f.yaml:3: ", "'a.b' holds a mapping");
    yaml_refused("a.b:\n  c: 1\n", "f.yaml:2: ", "'a.b' holds a mapping");
    yaml_refused("a:\n  b: 1\n  c: 2\n  b: 3\n", "f.yaml:4: ", "'a.b' occurs twice: here and in line 2");
    yaml_refused("a:\n  b: 1\na.b: 2\n", "f.yaml:3: ", "'a.b' occurs twice");
    yaml_refused("a:\n  b: 1\na:\n  c: 1\n", "f.yaml:4: ", "'a' occurs twice");
    yaml_refused("a:\n  b:\n", "f.yaml:2: ", "'a.b' has no value");
    yaml_refused("a: 1\n", "f.yaml:1: ", "'a' is a section");
    yaml_refused("a:\nb:\n  c: 1\n", "f.yaml:1: ", "'a' is a section");
    yaml_refused("a:\n  b: |\n    x\n", "f.yaml:2: ", "block scalars");
    yaml_refused("a:\n  b: \"x\\0y\"\n", "f.yaml:2: ", "NUL");
    yaml_refused("just words\n", "f.yaml:1: ", "expected sections");
    yaml_refused("a.b: 1\n---\na.b: 2\n", "f.yaml:2: ", "second document");
    yaml_refused("{a: 1}: 2\n", "f.yaml:1: ", "a key must be a scalar");
    yaml_refused("? [a]\n: 2\n", "f.yaml:1: ", "lists");
    yaml_refused("a:\n  b: {c\n", "f.yaml:", "");
    yaml_refused("a:\n\tb: 1\n", "f.yaml:2: ", "not YAML");
    yaml_refused("a: \"x\n", "f.yaml:", "not YAML");
    yaml_refused("a.b: \xff\n", "f.yaml:", "not YAML");
}

static void callback_failure_gets_file_and_line(void **state)
{
    struct text seen = { 0 };
    const char *yaml = "a:\n  b: 1\n  c: stop\n  d: 2\n";

    (void)state;
    assert_int_equal(yaml_parse(yaml, strlen(yaml), "f.yaml", note, &seen), LS_EINVAL);
    assert_string_equal(ls_errmsg(), "f.yaml:3: stop requested");
    assert_string_equal(seen.data, "a.b=1@2\na.c=stop@3\n");
    text_free(&seen);
}

static void sizes_are_limited(void **state)
{
    struct text yaml = { 0 }, seen = { 0 };

    (void)state;
    for (int i = 0; i < 4097; i++) text_put(&yaml, "a.k%d: 1\n", i);
    assert_int_equal(yaml_parse(yaml.data, yaml.bytes, "f.yaml", note, &seen), LS_EFORMAT);
    assert_string_equal(ls_errmsg(), "f.yaml:4097: more than 4096 keys or sections");
    text_free(&yaml);
    for (int i = 0; i < 513; i++) text_put(&yaml, "s%d: {}\n", i);
    assert_int_equal(yaml_parse(yaml.data, yaml.bytes, "f.yaml", note, &seen), LS_EFORMAT);
    assert_string_equal(ls_errmsg(), "f.yaml:513: more than 512 keys or sections");
    text_free(&yaml);
    while (yaml.bytes <= 1 << 20) text_put(&yaml, "#%*s\n", 1000, "");
    assert_int_equal(yaml_parse(yaml.data, yaml.bytes, "f.yaml", note, &seen), LS_EFORMAT);
    assert_non_null(strstr(ls_errmsg(), "the config file is too large"));
    text_free(&yaml);
    text_free(&seen);
}

static void files_are_read(void **state)
{
    struct text seen = { 0 };

    (void)state;
    assert_int_equal(file_write("base_yaml.yaml", "a.b: 1\n", 7), LS_OK);
    assert_int_equal(yaml_read("base_yaml.yaml", note, &seen), LS_OK);
    assert_string_equal(seen.data, "a.b=1@1\n");
    assert_int_equal(file_write("base_yaml.yaml", "", 0), LS_OK);
    assert_int_equal(yaml_read("base_yaml.yaml", note, &seen), LS_OK);
    unlink("base_yaml.yaml");
    assert_int_equal(yaml_read("base_yaml.yaml", note, &seen), LS_EIO);
    assert_non_null(strstr(ls_errmsg(), "base_yaml.yaml: cannot open"));
    text_free(&seen);
}

static void yaml_calls_fail_cleanly_without_memory(void **state)
{
    const char *yaml = "a:\n  b: 1\n  c: 2\nd.e: 3\n";
    struct mem_stats before, after;
    int64_t nth = 1;

    (void)state;
    mem_read(&before);
    for (ls_status st = LS_ENOMEM; ; nth++) {
        struct text seen = { 0 };

        mem_fail_at(nth);
        st = yaml_parse(yaml, strlen(yaml), "f.yaml", note, &seen);
        mem_fail_at(0);
        text_free(&seen);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_ENOMEM);
        assert_non_null(strstr(ls_errmsg(), "out of memory"));
    }
    mem_read(&after);
    assert_true(nth > 7);
    assert_int_equal(after.total_now, before.total_now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yaml_of_configs_is_read), cmocka_unit_test(other_yaml_is_refused_with_its_line),
        cmocka_unit_test(callback_failure_gets_file_and_line), cmocka_unit_test(sizes_are_limited),
        cmocka_unit_test(files_are_read),             cmocka_unit_test(yaml_calls_fail_cleanly_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
