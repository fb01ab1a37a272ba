/* test_base_options.c - options: every kind from every source, every refusal, origins, and the documents written from the table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/options.h"
#include "train/faults/fault_points.h"

enum { TRAIN = 1, PLAN = 2, BENCH = 4 };
enum update { ADAMW, SGD, OFF };

struct config {
    int64_t steps, seed, rest, batch;
    double lr, decay;
    enum update name;
    bool verbose, per_rank, all;
    bool derived;  /* without an option */
    char *folder, *note;
    size_t limit, bucket;
};

static const char *const verbs[] = { "train", "plan", "bench" };
static const struct option base_options_rows[] = {
    OPTION_INT(struct config, steps, "train.steps", "1000", 1, 1e9, "steps", TRAIN | PLAN, "steps to take"),
    OPTION_INT(struct config, seed, "train.seed", "-3", 0, 0, "", TRAIN,
               "of everything random: initial weights, dropout and the order of the data"),
    OPTION_INT(struct config, rest, "train.rest", "-1", -1, 64, "ranks", TRAIN | PLAN | BENCH, "ranks, -1: the rest"),
    OPTION_INT(struct config, batch, "train.batch", "-1", 1, 64, "samples", TRAIN, "samples; -1: as many as fit", .special = "-1"),
    OPTION_ENUM(struct config, name, "optim.name", "adamw", "adamw|sgd|off", TRAIN, "update rule"),
    OPTION_REAL(struct config, lr, "optim.lr", "3e-4", 0, 1e18, "", TRAIN, "highest learning rate", .alias = "train.rate"),
    OPTION_REAL(struct config, decay, "optim.decay", "1e-5", 0, 1, "a step", TRAIN, "weight decay"),
    OPTION_STRING(struct config, folder, "run.dir", "runs/new", TRAIN, "folder of the run", .value = "FOLDER"),
    OPTION_STRING(struct config, note, "run.note", "", TRAIN | PLAN, "free text"),
    OPTION_BYTES(struct config, limit, "memory.limit", "0", 0, 0, TRAIN | PLAN, "most bytes of a rank"),
    OPTION_BYTES(struct config, bucket, "memory.bucket", "25MiB", 4096, 1u << 30, TRAIN, "size of a gradient bucket"),
    OPTION_BOOL(struct config, verbose, "log.verbose", "off", TRAIN | BENCH, "say more"),
    OPTION_BOOL(struct config, per_rank, "log.per_rank", "yes", TRAIN, "a metrics file for each rank", .alias = "log.joint",
                .alias_inverts = true),
    OPTION_BOOL(struct config, all, "log.every_micro_batch", "0", TRAIN, "say even more"),
};
static const struct option_hint hints[] = { { "iters", "train.steps", NULL }, { "plain_sgd", "optim.name", "sgd" } };
static const struct option_table base_options_table = {
    sizeof(struct config), base_options_rows, COUNT_OF(base_options_rows), verbs, COUNT_OF(verbs), hints, COUNT_OF(hints)
};

static struct config config;
static struct options options;

static int options_set_up(void **state)
{
    (void)state;
    memset(&config, 0xa5, sizeof config);
    return options_open(&base_options_table, &config, TRAIN, &options);
}

static int options_tear_down(void **state)
{
    struct mem_stats held;

    (void)state;
    options_close(&options);
    options_close(&options);
    mem_read(&held);
    return held.total_now == 0 ? 0 : -1;
}

static void defaults_are_set(void **state)
{
    (void)state;
    assert_false(config.derived);
    assert_int_equal(config.steps, 1000);
    assert_int_equal(config.seed, -3);
    assert_int_equal(config.rest, -1);
    assert_true(config.lr == 3e-4);
    assert_int_equal(config.name, ADAMW);
    assert_string_equal(config.folder, "runs/new");
    assert_string_equal(config.note, "");
    assert_int_equal(config.bucket, 25 << 20);
    assert_false(config.verbose);
    assert_true(config.per_rank);
    for (size_t i = 0; i < base_options_table.count; i++)
        assert_string_equal(options_origin(&options, base_options_rows[i].name), "default");
}

static ls_status base_options_test_take(const char *const *arguments, int count)
{
    ls_status st = LS_OK;
    int at = 0;

    while (st == LS_OK && at < count) {
        int before = at;

        assert_true(options_is_argument(arguments[at]));
        st = options_take_argument(&options, count, (char *const *)(uintptr_t)arguments, &at);
        if (st == LS_OK) assert_true(at > before);
        else assert_int_equal(at, before);
    }
    return st;
}
#define TAKE(...) base_options_test_take((const char *const[]){ __VA_ARGS__ }, (int)COUNT_OF(((const char *const[]){ __VA_ARGS__ })))

static void arguments_are_read_in_both_forms(void **state)
{
    (void)state;
    assert_int_equal(TAKE("--train.steps=5", "--optim.lr", "0.25", "--train.seed", "-9", "--run.note=a=b --c", "--log.verbose",
                          "--log.per_rank", "off", "--optim.name", "sgd", "--memory.limit=1.5 GiB", "--train.rest=64"), LS_OK);
    assert_int_equal(config.steps, 5);
    assert_true(config.lr == 0.25);
    assert_int_equal(config.seed, -9);
    assert_string_equal(config.note, "a=b --c");
    assert_true(config.verbose);
    assert_false(config.per_rank);
    assert_int_equal(config.name, SGD);
    assert_int_equal(config.limit, 3ull << 29);
    assert_string_equal(options_origin(&options, "train.steps"), "command line");
    assert_string_equal(options_origin(&options, "optim.decay"), "default");
    assert_int_equal(TAKE("--log.verbose=0", "--train.steps=6", "--run.note="), LS_OK);  /* later wins */
    assert_int_equal(config.steps, 6);
    assert_false(config.verbose);
    assert_string_equal(config.note, "");
    assert_int_equal(TAKE("--log.verbose"), LS_OK);  /* a switch at the very end */
    assert_true(config.verbose);
}

static void alias_sets_the_same_option(void **state)
{
    const char *const arguments[] = { "--train.rate=0.25" };

    (void)state;
    assert_int_equal(base_options_test_take(arguments, 1), LS_OK);
    assert_true(config.lr == 0.25);
    assert_string_equal(options_origin(&options, "optim.lr"), "command line");
    assert_string_equal(options_origin(&options, "train.rate"), "command line");
    assert_int_equal(file_write("base_options.yaml", "train:\n  rate: 0.5\n", 19), LS_OK);
    assert_int_equal(options_load_yaml(&options, "base_options.yaml"), LS_OK);
    unlink("base_options.yaml");
    assert_true(config.lr == 0.5);
}

/* A switch whose old name meant the opposite. */
static void alias_can_invert(void **state)
{
    (void)state;
    assert_int_equal(TAKE("--log.joint"), LS_OK);
    assert_false(config.per_rank);
    assert_int_equal(TAKE("--log.joint=no"), LS_OK);
    assert_true(config.per_rank);
    assert_int_equal(TAKE("--log.joint=perhaps"), LS_EINVAL);
    assert_int_equal(file_write("base_options.yaml", "log:\n  joint: true\n", 19), LS_OK);
    assert_int_equal(options_load_yaml(&options, "base_options.yaml"), LS_OK);
    unlink("base_options.yaml");
    assert_false(config.per_rank);
}

/* Help about the row names the other name; lists, files and documents have only the row's name. */
static void alias_is_never_written(void **state)
{
    struct text out = { 0 };

    (void)state;
    assert_int_equal(TAKE("--train.rate=0.25"), LS_OK);
    options_put_yaml(&options, true, &out);
    options_put_help(&base_options_table, 0, OPTIONS_ALL, &out);
    options_put_markdown(&base_options_table, &out);
    options_put_names(&base_options_table, 0, &out);
    assert_int_equal(text_status(&out), LS_OK);
    assert_null(strstr(out.data, "rate:"));
    assert_null(strstr(out.data, "train.rate"));
    assert_non_null(strstr(out.data, "  lr: 0.25"));
    options_put_row(&base_options_table, options_find(&base_options_table, "train.rate"), &out);
    assert_non_null(strstr(out.data, "also accepted as --train.rate\n"));
    text_free(&out);
}

static void other_flags_are_left_to_the_caller(void **state)
{
    (void)state;
    assert_false(options_is_argument("--help"));
    assert_false(options_is_argument("--config=a.yaml"));
    assert_false(options_is_argument("-n"));
    assert_false(options_is_argument("train.steps=1"));
    assert_false(options_is_argument(""));
    assert_true(options_is_argument("--a.b"));
}

static void every_boolean_word_is_read(void **state)
{
    static const char *const words[] = { "false", "true", "no", "yes", "off", "on", "0", "1" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        assert_int_equal(options_set(&options, "log.verbose", words[i], "here"), LS_OK);
        assert_int_equal(config.verbose, i % 2);
    }
}

static void option_refused(const char *name, const char *text, const char *says)
{
    struct config before = config;

    assert_int_equal(options_set(&options, name, text, "here"), LS_EINVAL);
    if (!strstr(ls_errmsg(), says)) fail_msg("'%s' does not say '%s'", ls_errmsg(), says);
    assert_memory_equal(&config, &before, sizeof config);
}

static void refusals_suggest_a_correct_value(void **state)
{
    (void)state;
    option_refused("train.stepz", "1", "unknown option 'train.stepz'; did you mean 'train.steps'?");
    option_refused("optim.steps", "1", "did you mean '--train.steps=1'?");
    option_refused("steps", "1", "did you mean '--train.steps=1'?");
    option_refused("train.Iters", "5", "unknown option 'train.Iters'; did you mean '--train.steps=5'?");
    option_refused("plain-sgd", "true", "did you mean '--optim.name=sgd'?");
    option_refused("memory.bukcet", "1", "did you mean 'memory.bucket'?");
    option_refused("something.else", "1", "unknown option 'something.else'; see --help");
    option_refused("train.steps", "many", "train.steps: 'many' is not a whole number such as 8");
    option_refused("train.steps", "1e6", "train.steps: '1e6' is not written as a whole number: write 1000000");
    option_refused("train.steps", "", "train.steps: '' is not a whole number");
    option_refused("train.steps", "0", "train.steps: 0 is out of range: at least 1, at most 1000000000 steps");
    option_refused("train.steps", "99999999999999999999", "99999999999999999999 is out of range: it does not fit into 64 bits");
    option_refused("train.rest", "-2", "at least -1, at most 64 ranks");
    option_refused("train.batch", "0", "train.batch: 0 is out of range: -1, or at least 1, at most 64 samples");
    option_refused("train.batch", "-2", "-1, or at least 1, at most 64 samples");
    option_refused("train.rat", "1", "unknown option 'train.rat'; did you mean 'optim.lr'?");
    option_refused("log.joit", "true", "unknown option 'log.joit'; did you mean 'log.per_rank'?");
    option_refused("train.sensor", "1", "unknown option 'train.sensor'; see --help");
    option_refused("optim.lr", "fast", "optim.lr: 'fast' is not a number such as 0.1");
    option_refused("optim.lr", "nan", "is not a number");
    option_refused("optim.decay", "1.5", "optim.decay: 1.5 is out of range: at least 0, at most 1 a step");
    option_refused("optim.name", "adam", "optim.name: 'adam' is not one of adamw|sgd|off");
    option_refused("optim.name", "adamw|sgd", "is not one of");
    option_refused("optim.name", "", "is not one of");
    option_refused("log.verbose", "maybe", "log.verbose: 'maybe' is neither true");
    option_refused("memory.limit", "lots", "memory.limit: 'lots' is not a number of bytes such as 4096, 64KiB");
    option_refused("memory.bucket", "1KiB", "memory.bucket: 1KiB is out of range: at least 4KiB, at most 1GiB");
    option_refused("run.note", "a\xff", "run.note: the text is not UTF-8 at byte 1");
    assert_int_equal(TAKE("--train.steps"), LS_EINVAL);
    assert_string_equal(ls_errmsg(), "option 'train.steps' needs a value: --train.steps=...");
    assert_int_equal(TAKE("--train.steps", "--log.verbose"), LS_EINVAL);
    assert_int_equal(TAKE("--train.stepz"), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "did you mean 'train.steps'?"));
}

static void option_of_another_command_is_refused(void **state)
{
    (void)state;
    options_close(&options);
    assert_int_equal(options_open(&base_options_table, &config, PLAN, &options), LS_OK);
    assert_int_equal(TAKE("--train.steps=5"), LS_OK);
    option_refused("log.verbose", "1", "option 'log.verbose' does nothing in 'plan'; it applies to: train, bench");
    /* One file serves several verbs: its values for another verb are checked, not refused. */
    assert_int_equal(file_write("base_options.yaml", "log.verbose: on\n", 16), LS_OK);
    assert_int_equal(options_load_yaml(&options, "base_options.yaml"), LS_OK);
    assert_int_equal(file_write("base_options.yaml", "log.verbose: om\n", 16), LS_OK);
    assert_int_equal(options_load_yaml(&options, "base_options.yaml"), LS_EINVAL);
    unlink("base_options.yaml");
    options_close(&options);
    assert_int_equal(options_open(&base_options_table, &config, 0, &options), LS_OK);
    assert_int_equal(TAKE("--log.verbose"), LS_OK);
}

static void files_and_arguments_apply_in_order(void **state)
{
    static const char yaml[] = "train:\n  steps: 7\n  seed: 8\nrun:\n  note: no\noptim.lr: 1\nlog:\n  verbose: yes\n";

    (void)state;
    assert_int_equal(file_write("base_options.yaml", yaml, sizeof yaml - 1), LS_OK);
    assert_int_equal(TAKE("--train.seed=1"), LS_OK);
    assert_int_equal(options_load_yaml(&options, "base_options.yaml"), LS_OK);
    assert_int_equal(TAKE("--optim.lr=2"), LS_OK);
    unlink("base_options.yaml");
    assert_int_equal(config.steps, 7);
    assert_int_equal(config.seed, 8);
    assert_true(config.lr == 2);
    assert_true(config.verbose);
    assert_string_equal(config.note, "no");
    assert_string_equal(options_origin(&options, "train.steps"), "base_options.yaml:2");
    assert_string_equal(options_origin(&options, "optim.lr"), "command line");
    assert_string_equal(options_origin(&options, "log.verbose"), "base_options.yaml:8");
}

static void bad_file_is_refused_with_its_line(void **state)
{
    static const struct { const char *yaml, *message; } cases[] = {
        { "train:\n  stepz: 7\n", "base_options.yaml:2: unknown option 'train.stepz'; did you mean 'train.steps'?" },
        { "train:\n  steps: 0\n", "base_options.yaml:2: train.steps: 0 is out of range: at least 1, at most 1000000000 steps" },
        { "log:\n  verbose: 2\n", "base_options.yaml:2: log.verbose: '2' is neither true (yes, on, 1) nor false (no, off, 0)" },
        { "train:\n  steps: [1]\n", "base_options.yaml:2: lists are not supported: an option has one value" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(file_write("base_options.yaml", cases[i].yaml, strlen(cases[i].yaml)), LS_OK);
        assert_true(options_load_yaml(&options, "base_options.yaml") < 0);
        assert_string_equal(ls_errmsg(), cases[i].message);
    }
    unlink("base_options.yaml");
    assert_int_equal(options_load_yaml(&options, "base_options.yaml"), LS_EIO);
}

static void resolved_config_shows_origins(void **state)
{
    struct text out = { 0 };

    (void)state;
    assert_int_equal(TAKE("--train.steps=5", "--run.note=a \"quote\" \\ \xc3\xa9\n\xef\xbb\xbf\xf3\xa0\x80\x81", "--optim.name=off",
                          "--memory.limit=123", "--optim.lr=1e17"), LS_OK);
    options_put_yaml(&options, true, &out);
    assert_int_equal(text_status(&out), LS_OK);
    assert_string_equal(out.data,
        "train:\n"
        "  steps: 5                               # command line\n"
        "  seed: -3                               # default\n"
        "  rest: -1                               # default\n"
        "  batch: -1                              # default\n"
        "optim:\n"
        "  name: \"off\"                            # command line\n"
        "  lr: 1.0e+17                            # command line\n"
        "  decay: 1.0e-05                         # default\n"
        "run:\n"
        "  dir: \"runs/new\"                        # default\n"
        "  note: \"a \\\"quote\\\" \\\\ \xc3\xa9\\u000a\\ufeff\xf3\xa0\x80\x81\" # command line\n"
        "memory:\n"
        "  limit: 123                             # command line\n"
        "  bucket: 25MiB                          # default\n"
        "log:\n"
        "  verbose: false                         # default\n"
        "  per_rank: true                         # default\n"
        "  every_micro_batch: false               # default\n");
    text_free(&out);
}

/* An option that is set aside has its default here; the file that is written has the value that it had, until it is set again. */
static void value_set_aside_is_written(void **state)
{
    static const struct option_note none[1];
    struct text out = { 0 };

    (void)state;
    assert_int_equal(TAKE("--train.seed=5", "--run.note=a b"), LS_OK);
    assert_int_equal(options_set_aside(&options, "train.seed"), LS_OK);
    assert_int_equal(options_set_aside(&options, "run.note"), LS_OK);
    assert_string_equal(options_origin(&options, "train.seed"), "default");
    assert_string_equal(config.note, "");
    options_put_yaml(&options, true, &out);
    assert_non_null(strstr(out.data, "  seed: -3                               # default\n"));
    text_free(&out);
    options_put_yaml_notes(&options, none, 0, &out);
    assert_non_null(strstr(out.data, "  seed: 5                                # without effect in this run\n"));
    assert_non_null(strstr(out.data, "  note: \"a b\""));
    text_free(&out);
    assert_int_equal(TAKE("--train.seed=7"), LS_OK);
    options_put_yaml_notes(&options, none, 0, &out);
    assert_non_null(strstr(out.data, "  seed: 7\n"));
    text_free(&out);
}

/* Printed values load back to the same bits. */
static void printed_config_loads_back(void **state)
{
    struct text out = { 0 }, again = { 0 };

    (void)state;
    assert_int_equal(TAKE("--train.steps=5", "--run.note=# : - \"x\"\t\x01 \xc2\x85 \xf0\x9f\x98\x80 ~", "--optim.name=off",
                          "--optim.lr=0.1",
                          "--run.dir=null", "--optim.decay=0.30000000000000004", "--memory.limit=3GiB", "--train.seed=-9223372036854775808",
                          "--log.verbose", "--log.per_rank=no", "--memory.bucket=4097"), LS_OK);
    for (int origins = 0; origins < 2; origins++) {
        struct options second;
        struct config loaded = { 0 };

        options_put_yaml(&options, origins, &out);
        assert_int_equal(file_write("base_options.yaml", out.data, out.bytes), LS_OK);
        assert_int_equal(options_open(&base_options_table, &loaded, TRAIN, &second), LS_OK);
        if (options_load_yaml(&second, "base_options.yaml") != LS_OK) fail_msg("%s", ls_errmsg());
        assert_string_equal(loaded.note, config.note);
        assert_string_equal(loaded.folder, config.folder);
        assert_memory_equal(&loaded.lr, &config.lr, sizeof config.lr);
        assert_memory_equal(&loaded.decay, &config.decay, sizeof config.decay);
        assert_int_equal(loaded.limit, config.limit);
        options_put_yaml(&second, origins, &again);
        if (!origins) assert_string_equal(again.data, out.data);
        options_close(&second);
        text_free(&out);
        text_free(&again);
    }
    unlink("base_options.yaml");
}

static void help_fits_a_terminal(void **state)
{
    struct text out = { 0 };

    (void)state;
    options_put_help(&base_options_table, TRAIN, OPTIONS_ALL, &out);
    assert_int_equal(text_status(&out), LS_OK);
    assert_non_null(strstr(out.data, "train:\n  --train.steps=N             steps to take, 1 to 1000000000 steps [1000]\n"));
    assert_non_null(strstr(out.data, "\n\noptim:\n  --optim.name=adamw|sgd|off  update rule [adamw]\n"));
    assert_non_null(strstr(out.data, "highest learning rate, at least 0 [3e-4]\n"));
    assert_non_null(strstr(out.data, "  --train.batch=N             samples; -1: as many as fit; otherwise 1 to 64\n"));
    assert_non_null(strstr(out.data, "  --run.dir=FOLDER            folder of the run [runs/new]\n"));
    assert_non_null(strstr(out.data, "--log.every_micro_batch=true|false\n                              say even more [0]\n"));
    for (const char *line = out.data; *line; line += strcspn(line, "\n") + 1) assert_true(strcspn(line, "\n") <= 80);
    for (size_t i = 0; i < base_options_table.count; i++) assert_non_null(strstr(out.data, base_options_rows[i].name));
    text_free(&out);
    options_put_help(&base_options_table, BENCH, OPTIONS_ALL, &out);
    assert_null(strstr(out.data, "train.steps"));
    assert_memory_equal(out.data, "train:\n  --train.rest=N", 23);
    assert_non_null(strstr(out.data, "log.verbose"));
    text_free(&out);
}

static void manual_page_has_every_row(void **state)
{
    struct text out = { 0 };

    (void)state;
    options_put_markdown(&base_options_table, &out);
    assert_non_null(strstr(out.data, "## train\n\n| option | value | default | range, unit | commands | meaning |\n|---|---|---|---|"));
    assert_non_null(strstr(out.data, "ing |\n|---|---|---|---|---|---|\n| `train.steps` | `N` | `1000` | 1 to 1000000000 steps |"));
    assert_non_null(strstr(out.data, "\n\n## optim\n\n"));
    assert_non_null(strstr(out.data, "| `optim.name` | `adamw\\|sgd\\|off` | `adamw` |  | train | update rule |\n"));
    assert_non_null(strstr(out.data, "| `run.note` | `TEXT` |  |  | train, plan | free text |\n"));
    assert_non_null(strstr(out.data, "| `train.batch` | `N` | `-1` | -1, or 1 to 64 samples | train |"));
    assert_non_null(strstr(out.data, "| `memory.bucket` | `SIZE` | `25MiB` | 4KiB to 1GiB | train |"));
    for (size_t i = 0; i < base_options_table.count; i++) assert_non_null(strstr(out.data, base_options_rows[i].name));
    text_free(&out);
    options_put_names(&base_options_table, BENCH, &out);
    assert_string_equal(out.data, "--train.rest\n--log.verbose\n");
    text_free(&out);
}

static ls_status whole_life(void)
{
    struct options o;
    struct config c;
    struct text out = { 0 };
    char *arguments[] = { "--run.note=x", "--train.steps", "5" };
    int at = 0;

    LS_TRY(options_open(&base_options_table, &c, TRAIN, &o));
    ls_status st = options_load_yaml(&o, "base_options.yaml");
    while (st == LS_OK && at < 3) st = options_take_argument(&o, 3, arguments, &at);
    if (st == LS_OK) {
        options_put_help(&base_options_table, TRAIN, OPTIONS_ALL, &out);
        options_put_yaml(&o, true, &out);
        options_put_markdown(&base_options_table, &out);
        options_put_names(&base_options_table, TRAIN, &out);
        st = text_status(&out);
    }
    text_free(&out);
    options_close(&o);
    return st;
}

static void option_calls_fail_cleanly_without_memory(void **state)
{
    struct mem_stats before, after;
    int64_t nth = 1;

    (void)state;
    assert_int_equal(file_write("base_options.yaml", "run:\n  dir: y\n", 14), LS_OK);
    mem_read(&before);
    for (;; nth++) {
        mem_fail_at(nth);
        ls_status st = whole_life();
        mem_fail_at(0);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_ENOMEM);
        assert_non_null(strstr(ls_errmsg(), "out of memory"));
    }
    mem_read(&after);
    assert_true(nth > 20);
    assert_int_equal(after.total_now, before.total_now);
    unlink("base_options.yaml");
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, options_set_up, options_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(defaults_are_set),              TEST(arguments_are_read_in_both_forms),
        TEST(alias_sets_the_same_option),    TEST(alias_is_never_written),
        TEST(alias_can_invert),              TEST(other_flags_are_left_to_the_caller),
        TEST(every_boolean_word_is_read),
        TEST(refusals_suggest_a_correct_value), TEST(option_of_another_command_is_refused),
        TEST(files_and_arguments_apply_in_order),  TEST(bad_file_is_refused_with_its_line),
        TEST(resolved_config_shows_origins), TEST(value_set_aside_is_written), TEST(printed_config_loads_back),
        TEST(help_fits_a_terminal),          TEST(manual_page_has_every_row),
        TEST(option_calls_fail_cleanly_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
