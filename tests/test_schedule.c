/* Pipeline schedules as data: every one of them for many sizes against its closed forms; the validator against injected mistakes;
 * files; uneven times by hand; blocks balanced against every cut there is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "lockstep/pipeline.h"
#include "lockstep/program.h"

/* Lists as text: "F0.0 B0.0 | F0.0 B0.0", a rank after the other. */
static void text_of(const ls_pipeline_schedule *s, char *out, size_t room)
{
    size_t n = 0;

    *out = '\0';
    for (int r = 0; r < s->stages; r++)
        for (int i = 0; i < s->count[r]; i++) {
            const ls_action *a = &s->list[r][i];

            n += (size_t)snprintf(out + n, room - n, "%s%c%d.%d", i ? " " : r ? " | " : "", "FBW"[a->kind], a->chunk, a->micro);
        }
}

static void expect_lists(const char *name, int stages, int chunks, int micro, const char *want)
{
    ls_pipeline_schedule s;
    char have[2048];

    assert_int_equal(ls_pipeline_schedule_make(name, stages, chunks, micro, &s), LS_OK);
    text_of(&s, have, sizeof have);
    assert_string_equal(have, want);
    ls_pipeline_schedule_free(&s);
}

/* As their papers draw them. */
static void small_schedules_are_exact(void **state)
{
    (void)state;
    expect_lists("gpipe", 2, 1, 2, "F0.0 F0.1 B0.0 B0.1 | F0.0 F0.1 B0.0 B0.1");
    expect_lists("1f1b", 3, 1, 4,
                 "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3 | F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3 | "
                 "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3");
    expect_lists("interleaved", 2, 2, 2,
                 "F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1 | F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 B0.0 B0.1");
    expect_lists("zb-h1", 2, 1, 3,
                 "F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2 | F0.0 B0.0 F0.1 B0.1 W0.0 F0.2 B0.2 W0.1 W0.2");
    expect_lists("zb-v", 2, 2, 3,
                 "F0.0 F0.1 F0.2 F1.0 B1.0 W1.0 F1.1 B1.1 W1.1 B0.0 W0.0 F1.2 B1.2 W1.2 B0.1 W0.1 B0.2 W0.2 | "
                 "F0.0 F1.0 F0.1 F1.1 B1.0 W1.0 F0.2 B0.0 W0.0 F1.2 B1.1 W1.1 B0.1 B1.2 B0.2 W0.1 W1.2 W0.2");
    expect_lists("forward", 2, 2, 2, "F0.0 F0.1 F1.0 F1.1 | F0.0 F0.1 F1.0 F1.1");
    expect_lists("forward-v", 2, 2, 2, "F0.0 F0.1 F1.0 F1.1 | F0.0 F1.0 F0.1 F1.1");
}

/* ---- every schedule, many sizes ---- */

/* In flight on a rank, all chunks together, as documented. */
static int flying(const char *name, int P, int v, int M, int r)
{
    int rounds = MAX(1, M / P), round = (M + rounds - 1) / rounds;

    if (strcmp(name, "gpipe") == 0) return M;
    if (strcmp(name, "1f1b") == 0 || (strcmp(name, "interleaved") == 0 && v == 1)) return MIN(M, P - r);
    if (strcmp(name, "interleaved") == 0) return MIN(v * M, (v - 1) * round + 2 * (P - 1 - r) + 1);
    if (strcmp(name, "zb-h1") == 0) return MIN(M, P);
    if (strcmp(name, "zb-v") == 0) return MIN(2 * M, 2 * P);
    return 1;
}

static int peak(const ls_pipeline_schedule *s, int rank)
{
    ls_action_kind last = s->split ? LS_ACTION_WEIGHTS : s->backward ? LS_ACTION_BACKWARD : LS_ACTION_FORWARD;
    int now = 0, most = 0;

    for (int i = 0; i < s->count[rank]; i++) {
        now += s->list[rank][i].kind == LS_ACTION_FORWARD;
        most = MAX(most, now);
        now -= s->list[rank][i].kind == last;
    }
    return most;
}

static void check_one(const char *name, int P, int v, int M)
{
    ls_pipeline_schedule s;
    ls_pipeline_played p;
    double ideal, closed;

    assert_int_equal(ls_pipeline_schedule_make(name, P, v, M, &s), LS_OK);
    if (ls_pipeline_schedule_check(&s) < 0) fail_msg("%s", ls_errmsg());
    for (int r = 0; r < P; r++) {
        int sum = 0;

        assert_int_equal(s.count[r], M * v * (1 + s.backward + s.split));
        if (s.split && v == 2 ? peak(&s, r) > flying(name, P, v, M, r) : peak(&s, r) != flying(name, P, v, M, r))
            fail_msg("%s P %d v %d M %d: rank %d has %d in flight, not %d", name, P, v, M, r, peak(&s, r), flying(name, P, v, M, r));
        for (int c = 0; c < v; c++) {
            int chunk = -1, stage = ls_pipeline_stage(&s, r, c), slots = ls_pipeline_schedule_slots(&s, r, c);

            assert_int_equal(ls_pipeline_rank(&s, stage, &chunk), r);
            assert_int_equal(chunk, c);
            assert_in_range(slots, 1, peak(&s, r));
            sum += slots;
        }
        assert_true(sum >= peak(&s, r));
    }
    assert_int_equal(ls_pipeline_play(&s, NULL, &p), LS_OK);
    ideal = (double)(s.backward ? 3 : 1) * v * M;                   /* of a rank that never waits */
    closed = ls_pipeline_bubble(&s);
    assert_true(p.bubble == (p.seconds - ideal) / p.seconds || fabs(p.bubble - (p.seconds - ideal) / p.seconds) < 1e-15);
    if (p.seconds != round(ideal / (1 - closed)) || fabs(p.bubble - closed) > 1e-15)
        fail_msg("%s P %d v %d M %d: played %g s, bubble %.17g; closed form %.17g", name, P, v, M, p.seconds, p.bubble, closed);
    ls_pipeline_played_free(&s, &p);
    ls_pipeline_schedule_free(&s);
}

static void every_schedule_is_valid(void **state)
{
    int named = 0;

    (void)state;
    for (; ls_pipeline_schedule_name(named); named++)
        for (int P = 1; P <= 8; P++)
            for (int M = 1; M <= 32; M++)
                for (int v = 1; v <= 4; v++) {
                    const char *name = ls_pipeline_schedule_name(named);
                    bool any = strcmp(name, "interleaved") == 0 || strcmp(name, "forward") == 0, two = strstr(name, "-v") != NULL;

                    if (any || v == 1 + two) check_one(name, P, v, M);
                }
    assert_int_equal(named, 7);
}

/* The figures that people quote. */
static void published_bubbles_are_reproduced(void **state)
{
    ls_pipeline_schedule s;

    (void)state;
    assert_int_equal(ls_pipeline_schedule_make("1f1b", 4, 1, 16, &s), LS_OK);
    assert_true(fabs(ls_pipeline_bubble(&s) - 3.0 / 19) < 1e-15);
    ls_pipeline_schedule_free(&s);
    assert_int_equal(ls_pipeline_schedule_make("zb-h1", 4, 1, 16, &s), LS_OK);
    assert_true(fabs(ls_pipeline_bubble(&s) - 3.0 / 51) < 1e-15);    /* 3 idle seconds; 1f1b: 9 of 57 */
    ls_pipeline_schedule_free(&s);
    assert_int_equal(ls_pipeline_schedule_make("interleaved", 4, 2, 16, &s), LS_OK);
    assert_true(fabs(ls_pipeline_bubble(&s) - 3.0 / 35) < 1e-15);
    snprintf(s.name, sizeof s.name, "mine");
    assert_true(isnan(ls_pipeline_bubble(&s)));
    ls_pipeline_schedule_free(&s);
}

static void impossible_sizes_are_refused(void **state)
{
    ls_pipeline_schedule s;

    (void)state;
    assert_int_equal(ls_pipeline_schedule_make("1f1b", 4, 2, 8, &s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "1f1b: 2 chunks a rank: it has 1; interleaved has several"));
    assert_int_equal(ls_pipeline_schedule_make("zb-v", 4, 1, 8, &s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "zb-v: 1 chunks a rank: it has 2"));
    assert_int_equal(ls_pipeline_schedule_make("zbv", 4, 2, 8, &s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "no schedule \"zbv\": gpipe"));
    assert_int_equal(ls_pipeline_schedule_make("gpipe", 0, 1, 8, &s), LS_EINVAL);
    assert_int_equal(ls_pipeline_schedule_make("gpipe", 4, 1, 0, &s), LS_EINVAL);
    assert_int_equal(ls_pipeline_schedule_make("interleaved", 4, 0, 1, &s), LS_EINVAL);
    assert_int_equal(ls_pipeline_schedule_make("interleaved", 1 << 20, 1 << 10, 1 << 20, &s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "too many"));
}

/* ---- the validator ---- */

static void write_text(const char *path, const char *text)
{
    assert_int_equal(file_write(path, text, strlen(text)), LS_OK);
}

static void read_fails(const char *text, ls_status st, const char *words)
{
    ls_pipeline_schedule s = { .stages = 77 };
    char path[64];

    snprintf(path, sizeof path, "/tmp/lockstep-schedule-%d", (int)getpid());
    write_text(path, text);
    assert_int_equal(ls_pipeline_schedule_read(path, &s), st);
    if (!strstr(ls_errmsg(), words)) fail_msg("\"%s\" is not in \"%s\"", words, ls_errmsg());
    assert_int_equal(s.stages, 77);
    unlink(path);
}

#define TWO "stages 2 chunks 1 micro 2 order loop\n"

static void invalid_schedules_are_refused(void **state)
{
    (void)state;
    read_fails(TWO "0: F0.0 F0.1 B0.0\n1: F0.0 B0.0 F0.1 B0.1\n", LS_EINVAL, "rank 0 never takes B0.1");
    read_fails(TWO "0: F0.0 F0.0 B0.0 B0.1\n1: F0.0 B0.0 F0.1 B0.1\n", LS_EINVAL, "rank 0, action 1 (F0.0): a second time");
    read_fails(TWO "0: F0.0 F0.1 B0.0 B0.1\n1: B0.0 F0.0 F0.1 B0.1\n", LS_EINVAL, "rank 1, action 0 (B0.0): its forward has not been");
    read_fails(TWO "0: F0.0 F0.1 B0.0 B0.1 W0.0 W0.1\n1: F0.0 W0.0 B0.0 F0.1 B0.1 W0.1\n", LS_EINVAL,
               "rank 1, action 1 (W0.0): its backward has not been");
    read_fails(TWO "0: F0.0 F0.1 B0.0 W0.0 B0.1\n1: F0.0 B0.0 W0.0 F0.1 B0.1 W0.1\n", LS_EINVAL, "rank 0 never takes W0.1");
    read_fails(TWO "0: F0.0 F0.1 B0.0 B0.1\n1: F0.1 B0.1 F0.0 B0.0\n", LS_EINVAL,
               "rank 1, action 0 (F0.1) takes a message out of turn: rank 0 sends the one for F0.0 then (its action 0)");
    read_fails(TWO "0: F0.0 F0.1 B0.0 B0.1\n1: F0.0 F0.1 B0.1 B0.0\n", LS_EINVAL,
               "rank 0, action 2 (B0.0) takes a message out of turn: rank 1 sends the one for B0.1 then (its action 2)");
    read_fails(TWO "0: F0.0 B0.0 F0.1 B0.1\n1: F0.0 F0.1 B0.0 B0.1\n", LS_EINVAL,
               "deadlock: 2 of 2 ranks wait for ever: rank 0 at its action 1 (B0.0) for rank 1, rank 1 at its action 1 (F0.1) for rank 0");
    read_fails("stages 1 chunks 2 micro 1 order loop\n0: F1.0 F0.0 B1.0 B0.0\n", LS_EINVAL, "deadlock: 1 of 1 ranks");
    read_fails("stages 2 chunks 3 micro 1 order v\n0: F0.0 F1.0 F2.0\n1: F0.0 F1.0 F2.0\n", LS_EINVAL, "2 chunks a rank, not 3");
}

/* What the reader can't say: actions out of range, backwards in a schedule of forwards. */
static void out_of_range_actions_are_refused(void **state)
{
    ls_pipeline_schedule s;

    (void)state;
    assert_int_equal(ls_pipeline_schedule_make("1f1b", 2, 1, 2, &s), LS_OK);
    s.list[1][2].micro = 2;
    assert_int_equal(ls_pipeline_schedule_check(&s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "rank 1, action 2 (F0.2): micro-batch 2 of 2"));
    s.list[1][2] = (ls_action){ LS_ACTION_FORWARD, -1, 0 };
    assert_int_equal(ls_pipeline_schedule_check(&s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "chunk -1 of 1"));
    s.list[1][2] = (ls_action){ LS_ACTION_WEIGHTS, 0, 0 };
    assert_int_equal(ls_pipeline_schedule_check(&s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "weights are not actions of their own"));
    s.list[1][2] = (ls_action){ (ls_action_kind)3, 0, 0 };
    assert_int_equal(ls_pipeline_schedule_check(&s), LS_EINVAL);
    s.list[1][2] = (ls_action){ LS_ACTION_FORWARD, 0, 1 };
    assert_int_equal(ls_pipeline_schedule_check(&s), LS_OK);
    s.backward = 0;
    assert_int_equal(ls_pipeline_schedule_check(&s), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "a schedule of forwards has no backward"));
    ls_pipeline_schedule_free(&s);
}

/* Neighbours in a rank's list exchanged, everywhere: what the validator lets pass runs as it says, and it refuses some. */
static void swapped_actions_are_detected(void **state)
{
    int passed = 0, refused = 0;
    ls_pipeline_schedule s;
    ls_pipeline_played p;

    (void)state;
    assert_int_equal(ls_pipeline_schedule_make("zb-v", 3, 2, 6, &s), LS_OK);
    for (int r = 0; r < s.stages; r++)
        for (int i = 0; i + 1 < s.count[r]; i++) {
            ls_action a = s.list[r][i], b = s.list[r][i + 1];

            s.list[r][i] = b;
            s.list[r][i + 1] = a;
            if (a.kind == b.kind && a.chunk == b.chunk && a.kind != LS_ACTION_WEIGHTS && !(a.kind == LS_ACTION_BACKWARD && r + a.chunk == 0) &&
                ls_pipeline_schedule_check(&s) == LS_OK && !(a.chunk == 1 && r == 0 && a.kind == LS_ACTION_FORWARD))
                fail_msg("rank %d: %d exchanged with the next, and nobody minds", r, i);
            if (ls_pipeline_play(&s, NULL, &p) == LS_OK) {
                passed++;
                ls_pipeline_played_free(&s, &p);
            } else refused++;
            s.list[r][i] = a;
            s.list[r][i + 1] = b;
        }
    assert_true(passed > 20 && refused > 20);
    ls_pipeline_schedule_free(&s);
}

/* ---- files ---- */

static void schedule_file_round_trips(void **state)
{
    char path[64], before[8192], after[8192];

    (void)state;
    snprintf(path, sizeof path, "/tmp/lockstep-schedule-%d", (int)getpid());
    for (int i = 0; ls_pipeline_schedule_name(i); i++) {
        const char *name = ls_pipeline_schedule_name(i);
        ls_pipeline_schedule s, t;

        assert_int_equal(ls_pipeline_schedule_make(name, 3, strstr(name, "-v") ? 2 : strcmp(name, "interleaved") == 0 ? 3 : 1, 7, &s), LS_OK);
        assert_int_equal(ls_pipeline_schedule_write(&s, path), LS_OK);
        assert_int_equal(ls_pipeline_schedule_read(path, &t), LS_OK);
        text_of(&s, before, sizeof before);
        text_of(&t, after, sizeof after);
        assert_string_equal(before, after);
        assert_true(s.split == t.split && s.backward == t.backward && s.order == t.order && s.chunks == t.chunks && s.micro == t.micro);
        assert_int_equal(strncmp(t.name, "file:lockstep-schedule-", 23), 0);
        assert_true(isnan(ls_pipeline_bubble(&t)));
        ls_pipeline_schedule_free(&s);
        ls_pipeline_schedule_free(&t);
    }
    write_text(path, "# mine\n\n  stages 1  chunks 1\tmicro 1 order loop # sizes\r\n0:F0.0 B0.0   \n# end B0.1 W0.0");
    ls_pipeline_schedule t;
    assert_int_equal(ls_pipeline_schedule_read(path, &t), LS_OK);
    assert_true(t.backward && !t.split && t.count[0] == 2);
    ls_pipeline_schedule_free(&t);
    unlink(path);
}

static void malformed_schedule_files_are_refused(void **state)
{
    (void)state;
    read_fails("", LS_EFORMAT, "no line \"stages P chunks");
    read_fails("# nothing\nstage 2\n", LS_EFORMAT, ":2: \"stage\": the first line is \"stages P");
    read_fails("stages 0 chunks 1 micro 1 order loop\n", LS_EFORMAT, ":1: \"0\": a number from 1 on");
    read_fails("stages 2 chunks 1 micro 2x order loop\n", LS_EFORMAT, "\"2x\": a number from 1 on");
    read_fails("stages 2 chunks 1 micro 2 order w\n", LS_EFORMAT, "loop or v");
    read_fails("stages 2 chunks 1 micro 2 order loop now\n", LS_EFORMAT, "\"now\": the order of stages is loop or v, and nothing stands behind");
    read_fails("stages 2 chunks 1 micro 2\n", LS_EFORMAT, "here stands \"order loop\"");
    read_fails(TWO "0: F0.0\n", LS_EFORMAT, "no line for rank 1 of 2");
    read_fails(TWO "0: F0.0\n0: F0.1\n", LS_EFORMAT, ":3: \"0\": this rank has had its line");
    read_fails(TWO "2: F0.0\n", LS_EFORMAT, ":2: \"2\": there are not as many ranks");
    read_fails(TWO "F0.0 F0.1\n", LS_EFORMAT, "a line begins with a rank and a colon");
    read_fails(TWO "\n0: F0.0 X0.1\n", LS_EFORMAT, ":3: \"X0.1\": an action is F, B or W");
    read_fails(TWO "0: F0.0 F1\n", LS_EFORMAT, "\"F1\": an action is");
    read_fails(TWO "0: F0.0 F0.-1\n", LS_EFORMAT, "\"F0.-1\": an action is");
    read_fails(TWO "0: F0.0 F0.2\n", LS_EFORMAT, "\"F0.2\": there are not as many micro-batches");
    read_fails(TWO "0: F1.0\n", LS_EFORMAT, "\"F1.0\": there are not as many chunks");
    read_fails(TWO "0: F0.0 F0.1 F0.0\n", LS_EFORMAT, "\"F0.0\": more actions than a rank has");
    read_fails("stages 1048576 chunks 1048576 micro 1048576 order loop\n", LS_EINVAL, "too many");
    ls_pipeline_schedule s;
    assert_int_equal(ls_pipeline_schedule_read("/nonexistent/schedule", &s), LS_EIO);
}

/* ---- times ---- */

/* Two stages, F 1 and 2, B 3 and 4, a message 0.5, two micro-batches of gpipe, by hand. */
static void simulated_times_equal_hand_computed(void **state)
{
    static const double want[2][4] = { { 0, 1, 9.5, 13.5 }, { 1.5, 3.5, 5.5, 9.5 } };
    ls_pipeline_times t = { (double[]){ 1, 2 }, (double[]){ 3, 4 }, NULL, 0.5 };
    ls_pipeline_schedule s;
    ls_pipeline_played p;

    (void)state;
    assert_int_equal(ls_pipeline_schedule_make("gpipe", 2, 1, 2, &s), LS_OK);
    /* rank 0's second backward waits for rank 1's, which ends at 13.5, and the message */
    assert_int_equal(ls_pipeline_play(&s, &t, &p), LS_OK);
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < 4; i++)
            if (r || i < 2) assert_true(p.begin[r][i] == want[r][i]);
    assert_true(p.begin[0][2] == 10 && p.begin[0][3] == 14);
    assert_true(p.seconds == 17);
    assert_true(fabs(p.bubble - (34.0 - 8 - 12) / 34) < 1e-15);
    ls_pipeline_played_free(&s, &p);
    t.message = -1;
    assert_int_equal(ls_pipeline_play(&s, &t, &p), LS_EINVAL);
    t = (ls_pipeline_times){ (double[]){ 1, NAN }, (double[]){ 3, 4 }, NULL, 0 };
    assert_int_equal(ls_pipeline_play(&s, &t, &p), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "seconds of F on stage 1"));
    ls_pipeline_schedule_free(&s);
    assert_int_equal(ls_pipeline_schedule_make("zb-h1", 2, 1, 2, &s), LS_OK);
    t.forward = t.backward;
    assert_int_equal(ls_pipeline_play(&s, &t, &p), LS_EINVAL);       /* no weights */
    assert_non_null(strstr(ls_errmsg(), "seconds of W on stage 0"));
    ls_pipeline_schedule_free(&s);
}

/* With one dear stage the pace is its: M times its work, and the way there and back. */
static void slowest_stage_sets_the_pace(void **state)
{
    double f[4] = { 1, 1, 3, 1 }, b[4] = { 2, 2, 6, 2 };
    ls_pipeline_times t = { f, b, NULL, 0 };
    ls_pipeline_schedule s;
    ls_pipeline_played p;

    (void)state;
    assert_int_equal(ls_pipeline_schedule_make("1f1b", 4, 1, 64, &s), LS_OK);
    assert_int_equal(ls_pipeline_play(&s, &t, &p), LS_OK);
    assert_true(p.seconds >= 64 * 9 + 2 + 2 * 2 && p.seconds <= 64 * 9 + 9);
    ls_pipeline_played_free(&s, &p);
    ls_pipeline_schedule_free(&s);
}

/* ---- balance ---- */

static double dearest(int blocks, const double *cost, double before, double behind, int stages, const int *begin)
{
    double most = 0;

    for (int k = 0; k < stages; k++) {
        double sum = (k == 0 ? before : 0) + (k == stages - 1 ? behind : 0);

        for (int i = begin[k]; i < begin[k + 1]; i++) sum += cost[i];
        most = fmax(most, sum);
    }
    assert_int_equal(begin[stages], blocks);
    return most;
}

/* The best of every cut. */
static double brute(int blocks, const double *cost, double before, double behind, int stages, int *begin, int k)
{
    double best = INFINITY;

    if (k == stages) {
        begin[k] = blocks;
        return begin[k - 1] < blocks ? dearest(blocks, cost, before, behind, stages, begin) : INFINITY;
    }
    for (begin[k] = k ? begin[k - 1] + 1 : 0; begin[k] < blocks; begin[k]++) {
        best = fmin(best, brute(blocks, cost, before, behind, stages, begin, k + 1));
        if (k == 0) break;
    }
    return best;
}

static void balance_is_optimal(void **state)
{
    unsigned seed = 1;
    int begin[16], other[16];

    (void)state;
    for (int trial = 0; trial < 300; trial++) {
        double cost[10], before = 0, behind = 0;
        int blocks = 1 + trial % 10, stages = 1 + (trial / 10) % blocks;

        for (int i = 0; i < blocks; i++) cost[i] = (double)((seed = seed * 1103515245u + 12345u) >> 16 & 15);
        if (trial % 3) before = cost[0] / 2, behind = 3 * cost[blocks - 1];
        assert_int_equal(ls_pipeline_balance(blocks, cost, before, behind, stages, begin), LS_OK);
        assert_int_equal(begin[0], 0);
        for (int k = 0; k < stages; k++) assert_true(begin[k] < begin[k + 1]);
        double have = dearest(blocks, cost, before, behind, stages, begin), best = brute(blocks, cost, before, behind, stages, other, 0);
        if (have != best) fail_msg("%d blocks, %d stages: %g, the best is %g", blocks, stages, have, best);
    }
}

/* Equal blocks: as even as can be, also among the stages that are not the pace; an output layer takes blocks from its stage. */
static void balance_of_usual_models(void **state)
{
    double one[12];
    int b[8];

    (void)state;
    for (int i = 0; i < 12; i++) one[i] = 1;
    assert_int_equal(ls_pipeline_balance(12, one, 0, 0, 4, b), LS_OK);
    for (int k = 0; k <= 4; k++) assert_int_equal(b[k], 3 * k);
    assert_int_equal(ls_pipeline_balance(9, one, 0, 0, 4, b), LS_OK);
    int twos = 0;
    for (int k = 0; k < 4; k++) twos += b[k + 1] - b[k] == 2;
    assert_int_equal(twos, 3);
    assert_int_equal(ls_pipeline_balance(12, one, 0.5, 3, 4, b), LS_OK);
    assert_int_equal(b[4] - b[3], 1);
    assert_int_equal(ls_pipeline_balance(3, one, 0, 0, 4, b), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "3 blocks over 4 stages: every stage needs a block, so at most 3 stages"));
    one[1] = -1;
    assert_int_equal(ls_pipeline_balance(3, one, 0, 0, 2, b), LS_EINVAL);
    one[1] = 1e300;
    assert_int_equal(ls_pipeline_balance(3, one, 0, 0, 2, b), LS_OK);
    assert_int_equal(ls_pipeline_balance(3, (double[]){ 0, 0, 0 }, 0, 0, 3, b), LS_OK);
    assert_true(b[1] == 1 && b[2] == 2 && b[3] == 3);
}

/* ---- pictures ---- */

static void terminal_drawing_is_exact(void **state)
{
    static const char want[] =
        "1f1b: 2 ranks, 2 micro-batches\n\n"
        "rank 0   F0 F1 ......B0    ...B1    \n"
        "rank 1   ...F0 B0    F1 B1    ......\n\n"
        "F forward, B backward, then the micro-batch; . nothing to do\n"
        "bubble 33.3%; in flight by rank 2 1; 4 messages between ranks\n";
    ls_pipeline_times slow = { (double[]){ 1, 1 }, (double[]){ 2, 2 }, NULL, 1 };
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
    ls_pipeline_played p;
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
        cmocka_unit_test(small_schedules_are_exact),   cmocka_unit_test(every_schedule_is_valid),  cmocka_unit_test(published_bubbles_are_reproduced),
        cmocka_unit_test(impossible_sizes_are_refused), cmocka_unit_test(invalid_schedules_are_refused),    cmocka_unit_test(out_of_range_actions_are_refused),
        cmocka_unit_test(swapped_actions_are_detected), cmocka_unit_test(schedule_file_round_trips), cmocka_unit_test(malformed_schedule_files_are_refused),
        cmocka_unit_test(simulated_times_equal_hand_computed),      cmocka_unit_test(slowest_stage_sets_the_pace), cmocka_unit_test(balance_is_optimal),
        cmocka_unit_test(balance_of_usual_models), cmocka_unit_test(terminal_drawing_is_exact), cmocka_unit_test(svg_drawing_is_complete),
        cmocka_unit_test(schedules_fail_cleanly_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
