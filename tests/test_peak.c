/* test_peak.c - the processor's peak: measured once and cached per machine, whatever the cache file holds. A stub measures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/cores.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/threads.h"
#include "device/device.h"
#include "helper_check.h"
#include "train/run/machine.h"
#include "train/run/peak.h"
#include "train/run/peak_cache.h"

static char peak_folder[64];
static int measured, team;

static ls_status fake(ls_dtype type, double *flops)
{
    measured++;
    team = threads_count();
    *flops = 1e9 * measured + (type == LS_BF16 ? 0.5 : 0);
    return LS_OK;
}

static ls_status failing(ls_dtype type, double *flops)
{
    (void)type;
    (void)flops;
    return ls_fail(LS_ENOMEM, "no memory for a matrix");
}

static int peak_test_open_folder(void **state)
{
    char absolute[512];

    (void)state;
    strcpy(peak_folder, "test_peak.XXXXXX");
    assert_non_null(mkdtemp(peak_folder));
    assert_non_null(getcwd(absolute, sizeof absolute));
    char *cache = file_path("%s/%s", absolute, peak_folder);
    assert_int_equal(setenv("XDG_CACHE_HOME", cache, 1), 0);
    mem_free(cache);
    measured = 0;
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    OK(file_remove_tree(peak_folder));
    return 0;
}

static struct peak peak_test_find(ls_dtype type, int threads, enum peak_mode mode)
{
    struct peak p;

    OK(peak_find(type, threads, false, mode, fake, &p));
    return p;
}

static int processors(void)
{
    cpu_set_t set;

    return cores_of_job(false, &set);
}

static void second_run_uses_the_cache(void **state)
{
    int all = processors(), before = threads_count();

    (void)state;
    struct peak first = peak_test_find(LS_F32, all, PEAK_AUTO), second = peak_test_find(LS_F32, all, PEAK_AUTO);
    assert_int_equal(measured, 1);
    assert_true(first.measured && !second.measured);
    assert_true(first.flops == second.flops && first.when == second.when);
    assert_string_equal(first.path, second.path);
    assert_true(file_exists(first.path));
    assert_string_equal(first.note, "");
    assert_int_equal(team, all);
    assert_int_equal(threads_count(), before);
}

static void types_and_threads_have_separate_peaks(void **state)
{
    int all = processors();

    (void)state;
    if (all < 2) skip();
    struct peak one = peak_test_find(LS_F32, 1, PEAK_AUTO);
    assert_int_equal(measured, 2);  /* all processors first, then one */
    assert_int_equal(team, 1);
    assert_true(one.flops == 2e9);
    assert_true(peak_test_find(LS_F32, all, PEAK_AUTO).flops ==
                2e9); /* 1e9 was measured, but more threads have at least the peak of fewer */
    assert_int_equal(measured, 2);
    assert_true(peak_test_find(LS_BF16, all, PEAK_AUTO).flops == 3e9 + 0.5);
    assert_true(peak_test_find(LS_F32, 4 * all, PEAK_AUTO).flops == 2e9); /* more threads than processors have no higher peak */
    assert_int_equal(measured, 3);
}

/* One entry in the cache, written `ago` seconds before, while other processes used `busy` of the processors. */
static void peak_test_put_entry(double flops, double busy, int64_t ago)
{
    cpu_set_t set;
    ls_machine machine;
    struct peak_entries known = { 0 };
    char *where = file_cache_folder();

    assert_non_null(where);
    OK(file_make_folders(where));
    machine_find(false, &machine, &set);
    char *path = peak_cache_path(where, &machine);
    assert_non_null(path);
    struct peak_entry e = { .type = LS_F32, .threads = processors(), .flops = flops, .busy = busy, .when = (int64_t)time(NULL) - ago };
    peak_entry_put(&known, &e);
    OK(peak_cache_write(where, path, &machine, &known));
    mem_free(path);
    mem_free(where);
}

static void peak_measured_under_load_is_repeated(void **state)
{
    int all = processors();

    (void)state;
    peak_test_put_entry(5e8, 0.05, 1000);  /* a quiet one */
    assert_true(peak_test_find(LS_F32, all, PEAK_AUTO).flops == 5e8);
    peak_test_put_entry(5e8, 0.8, 5);      /* a busy one, too recent */
    assert_true(peak_test_find(LS_F32, all, PEAK_AUTO).flops == 5e8);
    assert_int_equal(measured, 0);
    peak_test_put_entry(5e8, 0.8, 1000);
    assert_true(peak_test_find(LS_F32, all, PEAK_AUTO).flops == 1e9);
    assert_int_equal(measured, 1);
    peak_test_put_entry(9e10, 0.8, 1000);
    struct peak kept = peak_test_find(LS_F32, all, PEAK_AUTO);
    assert_true(kept.flops == 9e10);
    assert_true(kept.busy <= 0.8);
    assert_int_equal(measured, 2);
}

/* Whoever measured it, on a quiet machine or not, long ago or now. */
static void impossible_peak_is_measured_again(void **state)
{
    int all = processors();

    (void)state;
    for (int busy = 0; busy < 2; busy++)
        for (int old = 0; old < 2; old++) {
            int before = measured;

            peak_test_put_entry(all * 4e13, 0.8 * busy, 1000 * old);
            assert_true(peak_test_find(LS_F32, all, PEAK_AUTO).flops == 1e9 * (before + 1));
            assert_int_equal(measured, before + 1);
            assert_false(peak_test_find(LS_F32, all, PEAK_AUTO).measured);
        }
}

static ls_status impossible_at_first(ls_dtype type, double *flops)
{
    LS_TRY(fake(type, flops));
    if (measured < 3) *flops = 1e18;
    return LS_OK;
}

static ls_status impossible(ls_dtype type, double *flops)
{
    (void)type;
    measured++;
    *flops = 1e18;
    return LS_OK;
}

static void impossible_measurement_is_not_kept(void **state)
{
    int all = processors();
    struct peak p;

    (void)state;
    OK(peak_find(LS_F32, all, false, PEAK_AUTO, impossible, &p));
    assert_true(isnan(p.flops) && measured == 3);
    assert_non_null(strstr(p.note, "more than this processor can reach"));
    measured = 0;
    OK(peak_find(LS_F32, all, false, PEAK_AUTO, impossible_at_first, &p));
    assert_true(p.flops == 3e9 && measured == 3);
    assert_string_equal(p.note, "");
    assert_true(peak_test_find(LS_F32, all, PEAK_AUTO).flops == 3e9);
    assert_int_equal(measured, 3);
}

static void again_replaces_and_off_measures_nothing(void **state)
{
    int all = processors();

    (void)state;
    peak_test_find(LS_F32, all, PEAK_AUTO);
    assert_true(peak_test_find(LS_F32, all, PEAK_AGAIN).flops == 2e9);
    assert_true(peak_test_find(LS_F32, all, PEAK_AUTO).flops == 2e9);
    assert_true(isnan(peak_test_find(LS_F32, all, PEAK_OFF).flops));
    assert_int_equal(measured, 2);
}

/* Each is replaced by a valid one, and the note says what was wrong. */
static void damaged_files_are_measured_again(void **state)
{
    static const struct { const char *text, *words; } bad[] = {
        { "", "not JSON" }, { "{\"version\":1,", "not JSON" }, { "[1,2]", "another machine" }, { "{\"version\":99}", "another machine" },
        { "\x00\xff\xfe", "not JSON" },
    };
    int all = processors();
    char path[512];

    (void)state;
    snprintf(path, sizeof path, "%s", peak_test_find(LS_F32, all, PEAK_AUTO).path);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        OK(file_write(path, bad[i].text, MAX(strlen(bad[i].text), (size_t)(i == 4 ? 3 : 0))));
        int before = measured;
        struct peak p = peak_test_find(LS_F32, all, PEAK_AUTO);
        assert_int_equal(measured, before + 1);
        assert_true(p.measured);
        if (!strstr(p.note, path)) fail_msg("case %zu: '%s' does not name %s", i, p.note, path);
        if (!strstr(p.note, bad[i].words)) fail_msg("case %zu: '%s' does not say %s", i, p.note, bad[i].words);
        assert_null(strchr(p.note, '\n'));
        assert_false(peak_test_find(LS_F32, all, PEAK_AUTO).measured);
    }
}

static void damaged_numbers_are_refused(void **state)
{
    static const char *const bad[] = {
        "{\"type\":\"f32\",\"threads\":1,\"flops\":-1,\"busy\":0,\"when\":1}",
        "{\"type\":\"f32\",\"threads\":1,\"flops\":null,\"busy\":0,\"when\":1}",
        "{\"type\":\"f32\",\"threads\":0,\"flops\":1e9,\"busy\":0,\"when\":1}",
        "{\"type\":\"f99\",\"threads\":1,\"flops\":1e9,\"busy\":0,\"when\":1}",
        "{\"type\":\"f32\",\"threads\":1,\"flops\":1e9,\"busy\":7,\"when\":1}", "3",
    };
    ls_machine m = { .name = "A processor", .isa = "avx2", .processors = 3 };
    struct peak_entries e = { .n = 0 };
    char *path = file_path("%s/file.json", peak_folder), *text;

    (void)state;
    OK(peak_cache_write(peak_folder, path, &m, &e));
    OK(peak_cache_read(path, &m, &e));
    OK(file_read(path, &text, NULL));
    char *list = strstr(text, "[]");
    assert_non_null(list);
    *list = '\0';
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char *broken = file_path("%s[%s]%s", text, bad[i], list + 2);

        OK(file_write(path, broken, strlen(broken)));
        assert_int_equal(peak_cache_read(path, &m, &e), LS_EFORMAT);
        assert_int_equal(e.n, 0);
        mem_free(broken);
    }
    mem_free(text);
    mem_free(path);
}

static void another_machine_has_another_file(void **state)
{
    ls_machine m = { .name = "A processor", .isa = "avx2", .processors = 3 };

    (void)state;
    ls_machine other = m;
    strcpy(other.name, "Another processor");
    char *path = peak_cache_path(peak_folder, &m), *another = peak_cache_path(peak_folder, &other);
    assert_string_not_equal(path, another);
    struct peak_entries e = { .n = 0 };
    peak_entry_put(&e, &(struct peak_entry){ LS_F32, 2, 1e9, 0, 5 });
    OK(peak_cache_write(peak_folder, path, &m, &e));
    assert_int_equal(peak_cache_read(path, &other, &e), LS_EFORMAT); /* a copied file is not used */
    mem_free(path);
    mem_free(another);
}

/* A measured peak is returned; one that was not measured or cannot be read is 0. */
static void machine_knows_its_peaks(void **state)
{
    ls_machine m;
    size_t bytes;
    char *total;

    (void)state;
    OK(ls_machine_this(&m));
    assert_int_equal(m.processors, processors());
    assert_true(m.name[0] && m.isa[0]);
    OK(file_read("/proc/meminfo", &total, &bytes));
    assert_in_range(m.memory, 1, strtoull(total + strlen("MemTotal:"), NULL, 10) * 1024);
    mem_free(total);
    for (int t = 0; t < LS_DTYPES; t++) assert_true(m.flops[t] == 0);
    struct peak p = peak_test_find(LS_F32, m.processors, PEAK_AUTO);
    assert_true(p.machine.flops[LS_F32] == p.flops);
    OK(ls_machine_this(&m));
    assert_true(m.flops[LS_F32] == p.flops);
    assert_true(m.flops[LS_BF16] == 0);
    peak_test_find(LS_BF16, 1, PEAK_AUTO);
    OK(ls_machine_this(&m));
    assert_true(m.flops[LS_BF16] > 0);
    OK(file_write(p.path, "{", 1));
    OK(ls_machine_this(&m));
    assert_true(m.flops[LS_F32] == 0);
}

static void oldest_entry_is_replaced(void **state)
{
    struct peak_entries e = { .n = 0 };

    (void)state;
    for (int k = 1; k <= PEAK_ENTRIES + 1; k++) peak_entry_put(&e, &(struct peak_entry){ LS_F32, k, 1e9 * k, 0, k == 7 ? 0 : k });
    assert_int_equal(e.n, PEAK_ENTRIES);
    assert_null(peak_entry_of(&e, LS_F32, 7));
    assert_non_null(peak_entry_of(&e, LS_F32, 1));
    assert_non_null(peak_entry_of(&e, LS_F32, PEAK_ENTRIES + 1));
}

/* If no file can be created (a file has the folder's name; no home), each run measures, and says why. */
static void missing_cache_folder_is_no_failure(void **state)
{
    int all = processors();
    char *blocked = file_path("%s/blocked", getenv("XDG_CACHE_HOME"));

    (void)state;
    OK(file_write(blocked, "x", 1));
    setenv("XDG_CACHE_HOME", blocked, 1);
    struct peak p = peak_test_find(LS_F32, all, PEAK_AUTO);
    assert_true(p.measured && p.flops == 1e9);
    assert_string_equal(p.path, "");
    if (!strstr(p.note, "blocked")) fail_msg("'%s'", p.note);
    assert_true(peak_test_find(LS_F32, all, PEAK_AUTO).measured);

    char *home = getenv("HOME") ? mem_strdup(getenv("HOME")) : NULL;
    setenv("XDG_CACHE_HOME", "relative", 1);  /* to be ignored, by the XDG specification */
    unsetenv("HOME");
    p = peak_test_find(LS_F32, all, PEAK_AUTO);
    assert_true(p.measured);
    if (!strstr(p.note, "XDG_CACHE_HOME")) fail_msg("'%s'", p.note);
    if (home) setenv("HOME", home, 1);
    mem_free(home);
    mem_free(blocked);
}

static void failed_measurement_is_reported(void **state)
{
    struct peak p;

    (void)state;
    assert_int_equal(peak_find(LS_F32, 1, false, PEAK_AUTO, failing, &p), LS_ENOMEM);
    assert_non_null(strstr(ls_errmsg(), "no memory for a matrix"));
}

/* The matrices of the real measurement do not count against the limit. */
static void measurement_ignores_the_memory_limit(void **state)
{
    struct mem_stats now;
    double flops;

    (void)state;
    mem_read(&now);
    mem_set_limit(now.total_now + 1000);
    OK(machine_peak_flops(LS_F32, &flops));
    assert_true(flops > 0);
    assert_int_equal(mem_limit(), now.total_now + 1000);
    mem_set_limit(0);
}

/* ---- operands of matmuls ---- */

static struct device timed_device;
static int timed_matmuls;

/* Neither operand is zero, or one number, or a row that repeats. */
static ls_status timed_enqueue(struct device_stream *s, const struct device_operation *o)
{
    enum { K = 16 };
    uint16_t x[32 * K];

    for (int k = 0; strcmp(o->name, "linear") == 0 && timed_matmuls == 0 && k < 2; k++) {
        size_t n = o->access[k].bytes / sizeof *x, other = 0, zeros = 0;

        assert_true(!o->access[k].write && n >= 2 * K && n <= COUNT_OF(x));
        OK(device_read(&device_check, x, o->access[k].data, o->access[k].bytes));
        for (size_t i = 0; i < n; i++) {
            other += x[i] != x[i % K];
            zeros += x[i] == 0;
        }
        assert_true(zeros == 0);
        assert_true(other > (n - K) / 2);
    }
    timed_matmuls += strcmp(o->name, "linear") == 0;
    return device_check.enqueue(s, o);
}

static void matmuls_are_timed_on_random_operands(void **state)
{
    const char *kernel = NULL;
    double seconds;

    (void)state;
    timed_device = device_check;
    timed_device.enqueue = timed_enqueue;
    OK(machine_time_linear(&timed_device, LS_BF16, 8, 24, 16, &kernel, &seconds));
    assert_true(seconds > 0);
    assert_true(timed_matmuls > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(second_run_uses_the_cache, peak_test_open_folder, close_folder),
        cmocka_unit_test_setup_teardown(types_and_threads_have_separate_peaks, peak_test_open_folder, close_folder),
        cmocka_unit_test_setup_teardown(peak_measured_under_load_is_repeated, peak_test_open_folder, close_folder),
        cmocka_unit_test_setup_teardown(impossible_peak_is_measured_again, peak_test_open_folder, close_folder),
        cmocka_unit_test_setup_teardown(impossible_measurement_is_not_kept, peak_test_open_folder, close_folder),
        cmocka_unit_test_setup_teardown(again_replaces_and_off_measures_nothing, peak_test_open_folder, close_folder),
        cmocka_unit_test_setup_teardown(damaged_files_are_measured_again, peak_test_open_folder, close_folder),
        cmocka_unit_test_setup_teardown(damaged_numbers_are_refused, peak_test_open_folder, close_folder),
        cmocka_unit_test_setup_teardown(another_machine_has_another_file, peak_test_open_folder, close_folder),
        cmocka_unit_test(machine_knows_its_peaks),
        cmocka_unit_test(oldest_entry_is_replaced),
        cmocka_unit_test_setup_teardown(missing_cache_folder_is_no_failure, peak_test_open_folder, close_folder),
        cmocka_unit_test_setup_teardown(failed_measurement_is_reported, peak_test_open_folder, close_folder),
        cmocka_unit_test_setup_teardown(measurement_ignores_the_memory_limit, peak_test_open_folder, close_folder),
        cmocka_unit_test(matmuls_are_timed_on_random_operands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
