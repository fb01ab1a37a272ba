/* test_schedule_file.c - pipeline schedules as files and drawings, and failing allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/base.h"
#include "base/mem.h"
#include "helper_schedule.h"
#include "lockstep/pipeline.h"
#include "lockstep/program.h"
#include "train/faults/fault_points.h"

/* ---- files ---- */

static void schedule_file_round_trips(void **state)
{
    char path[64], before[8192], after[8192];

    (void)state;
    snprintf(path, sizeof path, "/tmp/lockstep-schedule-%d", (int)getpid());
    for (int i = 0; ls_pipeline_schedule_name(i); i++) {
        const char *name = ls_pipeline_schedule_name(i);
        ls_pipeline_schedule s, t;

        assert_int_equal(ls_pipeline_schedule_make(name, 3,
                                                   strstr(name, "-v")                 ? 2
                                                   : strcmp(name, "interleaved") == 0 ? 3
                                                                                      : 1,
                                                   7, &s),
                         LS_OK);
        assert_int_equal(ls_pipeline_schedule_write(&s, path), LS_OK);
        assert_int_equal(ls_pipeline_schedule_read(path, &t), LS_OK);
        schedule_text(&s, before, sizeof before);
        schedule_text(&t, after, sizeof after);
        assert_string_equal(before, after);
        assert_true(s.split == t.split && s.backward == t.backward && s.order == t.order && s.chunks == t.chunks && s.micro == t.micro);
        assert_int_equal(strncmp(t.name, "file:lockstep-schedule-", 23), 0);
        assert_true(isnan(ls_pipeline_bubble(&t)));
        ls_pipeline_schedule_free(&s);
        ls_pipeline_schedule_free(&t);
    }
    schedule_write(path, "# mine\n\n  stages 1  chunks 1\tmicro 1 order loop # sizes\r\n0:F0.0 B0.0   \n# end B0.1 W0.0");
    ls_pipeline_schedule t;
    assert_int_equal(ls_pipeline_schedule_read(path, &t), LS_OK);
    assert_true(t.backward && !t.split && t.count[0] == 2);
    ls_pipeline_schedule_free(&t);
    unlink(path);
}

static void malformed_schedule_files_are_refused(void **state)
{
    (void)state;
    schedule_refused("", LS_EFORMAT, "the line \"stages P chunks");
    schedule_refused("# nothing\nstage 2\n", LS_EFORMAT, ":2: \"stage\": expected the first line \"stages P");
    schedule_refused("stages 0 chunks 1 micro 1 order loop\n", LS_EFORMAT, ":1: \"0\": expected a number >= 1");
    schedule_refused("stages 2 chunks 1 micro 2x order loop\n", LS_EFORMAT, "\"2x\": expected a number >= 1");
    schedule_refused("stages 2 chunks 1 micro 2 order w\n", LS_EFORMAT, "loop or v");
    schedule_refused("stages 2 chunks 1 micro 2 order loop now\n", LS_EFORMAT,
                     "\"now\": expected loop or v, and nothing after");
    schedule_refused("stages 2 chunks 1 micro 2\n", LS_EFORMAT, "expected \"order loop\"");
    schedule_refused(SCHEDULE_TWO_RANKS "0: F0.0\n", LS_EFORMAT, "the line of rank 1 of 2 is missing");
    schedule_refused(SCHEDULE_TWO_RANKS "0: F0.0\n0: F0.1\n", LS_EFORMAT, ":3: \"0\": this rank has a line already");
    schedule_refused(SCHEDULE_TWO_RANKS "2: F0.0\n", LS_EFORMAT, ":2: \"2\": the rank is out of range");
    schedule_refused(SCHEDULE_TWO_RANKS "F0.0 F0.1\n", LS_EFORMAT, "expected a line that begins with a rank and a colon");
    schedule_refused(SCHEDULE_TWO_RANKS "\n0: F0.0 X0.1\n", LS_EFORMAT, ":3: \"X0.1\": expected an action: F, B or W");
    schedule_refused(SCHEDULE_TWO_RANKS "0: F0.0 F1\n", LS_EFORMAT, "\"F1\": expected an action");
    schedule_refused(SCHEDULE_TWO_RANKS "0: F0.0 F0.-1\n", LS_EFORMAT, "\"F0.-1\": expected an action");
    schedule_refused(SCHEDULE_TWO_RANKS "0: F0.0 F0.2\n", LS_EFORMAT, "\"F0.2\": the micro-batch is out of range");
    schedule_refused(SCHEDULE_TWO_RANKS "0: F1.0\n", LS_EFORMAT, "\"F1.0\": the chunk is out of range");
    schedule_refused(SCHEDULE_TWO_RANKS "0: F0.0 F0.1 F0.0\n", LS_EFORMAT, "\"F0.0\": more actions than a rank has");
    schedule_refused("stages 1048576 chunks 1048576 micro 1048576 order loop\n", LS_EINVAL, "too many");
    ls_pipeline_schedule s;
    assert_int_equal(ls_pipeline_schedule_read("/nonexistent/schedule", &s), LS_EIO);
}

/* ---- pictures ---- */

static void terminal_drawing_is_exact(void **state)
{
    static const char want[] =
        "1f1b: 2 ranks, 2 micro-batches\n\n"
        "rank 0   F0 F1 ......B0    ...B1    \n"
        "rank 1   ...F0 B0    F1 B1    ......\n\n"
        "F forward, B backward, then the micro-batch; . idle\n"
        "bubble 33.3%; in flight by rank 2 1; 4 messages between ranks\n";
    ls_pipeline_times slow = { .forward = (double[]){ 1, 1 }, .backward = (double[]){ 2, 2 }, .message = 1 };
    ls_pipeline_schedule s;
    char *text;

    (void)state;
    assert_int_equal(ls_pipeline_schedule_make("1f1b", 2, 1, 2, &s), LS_OK);
    assert_int_equal(ls_pipeline_text(&s, NULL, 80, 0, &text), LS_OK);
    assert_string_equal(text, want);
    ls_free(text);
    assert_int_equal(ls_pipeline_text(&s, &slow, 80, 1, &text), LS_OK);
    assert_non_null(strstr(text, "\033[0;30;48;5;75mF0 \033[0;30;48;5;75mF1 \033[0;2m"));
    assert_non_null(strstr(text, "(equal stages: 33.3%)"));
    ls_free(text);
    ls_pipeline_schedule_free(&s);
    /* longer than a line: bands of whole cells, no wider than asked */
    assert_int_equal(ls_pipeline_schedule_make("zb-v", 4, 2, 16, &s), LS_OK);
    assert_int_equal(ls_pipeline_text(&s, NULL, 60, 0, &text), LS_OK);
    for (char *rest = text, *line; (line = strsep(&rest, "\n")); )
        if (strncmp(line, "rank ", 5) == 0) assert_true(strlen(line) <= 60);
    ls_free(text);
    ls_pipeline_schedule_free(&s);
}

static int occurrences(const char *text, const char *word)
{
    int n = 0;

    for (; (text = strstr(text, word)); text++) n++;
    return n;
}

static void svg_drawing_is_complete(void **state)
{
    ls_pipeline_schedule s;
    char *svg;

    (void)state;
    assert_int_equal(ls_pipeline_schedule_make("zb-v", 3, 2, 6, &s), LS_OK);
    snprintf(s.name, sizeof s.name, "file:<a&b>");
    assert_int_equal(ls_pipeline_svg(&s, NULL, &svg), LS_OK);
    assert_int_equal(strncmp(svg, "<svg xmlns=", 11), 0);
    assert_non_null(strstr(svg, "file:&lt;a&amp;b&gt;: 3 ranks, 2 chunks each in a V, 6 micro-batches"));
    assert_int_equal(occurrences(svg, "<g><title>"), 3 * 6 * 6);
    assert_int_equal(occurrences(svg, "</g>"), 3 * 6 * 6);
    assert_non_null(strstr(svg, "virtual stages 2, 3"));
    assert_non_null(strstr(svg, "weight gradients"));
    assert_non_null(strstr(svg, "6 in flight"));
    assert_string_equal(svg + strlen(svg) - 7, "</svg>\n");
    ls_free(svg);
    ls_pipeline_schedule_free(&s);
}

/* ---- memory ---- */

static ls_status everything(const char *path)
{
    ls_pipeline_schedule s, t;
    ls_pipeline_timeline p;
    char *text;
    int begin[4];

    LS_TRY(ls_pipeline_balance(3, (double[]){ 1, 2, 3 }, 0, 0, 2, begin));
    LS_TRY(ls_pipeline_schedule_make("zb-v", 3, 2, 6, &s));
    ls_status st = ls_pipeline_schedule_write(&s, path);
    if (st >= 0 && (st = ls_pipeline_schedule_read(path, &t)) >= 0) ls_pipeline_schedule_free(&t);
    if (st >= 0 && (st = ls_pipeline_play(&s, NULL, &p)) >= 0) ls_pipeline_played_free(&s, &p);
    if (st >= 0 && (st = ls_pipeline_text(&s, NULL, 80, 1, &text)) >= 0) ls_free(text);
    if (st >= 0 && (st = ls_pipeline_svg(&s, NULL, &text)) >= 0) ls_free(text);
    ls_pipeline_schedule_free(&s);
    return st;
}

static void schedules_fail_cleanly_without_memory(void **state)
{
    struct mem_stats before, after;
    int failures = 0;
    char path[64];

    (void)state;
    snprintf(path, sizeof path, "/tmp/lockstep-schedule-%d", (int)getpid());
    mem_read(&before);
    for (int nth = 1; ; nth++) {
        mem_fail_at(nth);
        ls_status st = everything(path);
        mem_fail_at(0);
        mem_read(&after);
        assert_int_equal(after.total_now, before.total_now);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_ENOMEM);
        failures++;
    }
    assert_true(failures > 30);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedule_file_round_trips),
        cmocka_unit_test(malformed_schedule_files_are_refused),
        cmocka_unit_test(terminal_drawing_is_exact),
        cmocka_unit_test(svg_drawing_is_complete),
        cmocka_unit_test(schedules_fail_cleanly_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
