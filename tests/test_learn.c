/* test_learn.c - cards, their review times, and the history. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "learn/cards.h"
#include "learn/fsrs.h"
#include "learn/history.h"
#include "learn/learn.h"
#include "learn/same_run.h"

/* Reviews and what follows from them, by version 6.3.2 of the Python package fsrs, without learning steps and
 * fuzz. first: of a card. */
static const struct reference {
    int first, grade;
    int64_t at;
    double stability, difficulty;
    int days;
} references[] = {
    { 1, 3, 0, 2.3065, 2.11810397046, 2 },
    { 0, 3, 172800, 10.9643323358, 2.11121423579, 11 },
    { 0, 3, 1123200, 46.2802172876, 2.10433139085, 46 },
    { 0, 3, 5097600, 162.862201639, 2.09745542875, 163 },
    { 0, 3, 19180800, 497.4471936, 2.09058634262, 497 },
    { 1, 1, 0, 0.212, 6.4133, 1 },
    { 0, 1, 864, 0.0833567171103, 8.80630446886, 1 },
    { 0, 3, 87264, 0.613944573602, 8.79272653368, 1 },
    { 0, 2, 173664, 1.27541559472, 9.18378398341, 1 },
    { 0, 4, 260064, 3.15270901156, 8.89627099563, 3 },
    { 0, 1, 519264, 0.69058147298, 9.62244015092, 1 },
    { 0, 3, 605664, 1.39268954172, 9.60804608006, 1 },
    { 1, 4, 0, 8.2956, 1, 8 },
    { 0, 2, 259200, 16.7466928893, 4.0106089693, 17 },
    { 0, 1, 3715200, 2.03644428579, 8.01655626536, 2 },
    { 0, 4, 3732480, 3.51269651994, 7.33901016702, 4 },
    { 0, 3, 38292480, 38.0753618166, 7.32689952615, 38 },
    { 1, 2, 0, 1.2931, 5.1121707056, 1 },
    { 0, 4, 43200, 2.2981513618, 3.46411429755, 2 },
    { 0, 4, 172800, 10.25757992, 1.26535423737, 10 },
    { 0, 1, 250560, 3.12460983392, 7.11420970271, 3 },
    { 0, 2, 1114560, 9.7797693541, 8.06950629213, 10 },
    { 1, 3, 0, 2.3065, 2.11810397046, 2 },
    { 0, 3, 6870528, 48.4392656102, 2.11121423579, 48 },
    { 0, 1, 6943104, 13.3226062435, 7.39223813234, 13 },
    { 0, 1, 7020864, 3.98904434589, 9.12807477618, 4 },
    { 0, 3, 7061472, 3.98904434589, 9.1141750707, 4 },
    { 0, 4, 11759904, 26.3199386413, 8.80340202807, 26 },
    { 0, 2, 11760768, 26.3199386413, 9.19087087406, 26 },
    { 1, 4, 0, 8.2956, 1, 8 },
    { 0, 3, 157248, 13.4850626115, 1, 13 },
    { 0, 2, 222912, 13.4850626115, 4.0106089693, 13 },
    { 0, 2, 756864, 24.0377203808, 6.00919149749, 24 },
    { 0, 2, 768096, 24.0377203808, 7.33594371366, 24 },
    { 0, 2, 834624, 24.0377203808, 8.2167036614, 24 },
    { 0, 2, 859680, 24.0377203808, 8.80139315812, 24 },
    { 1, 2, 0, 1.2931, 5.1121707056, 1 },
    { 0, 2, 8130239, 14.6724053059, 6.74045951083, 15 },
    { 0, 2, 8965727, 23.6288827629, 7.821393498, 24 },
    { 0, 3, 8984735, 23.6288827629, 7.8088004738, 24 },
    { 0, 2, 9793439, 30.3739549504, 8.53060801391, 30 },
    { 0, 1, 12661055, 2.28264741512, 9.50224921533, 2 },
    { 0, 1, 17810495, 0.910512854309, 9.82162107108, 1 },
    { 1, 3, 0, 2.3065, 2.11810397046, 2 },
    { 0, 1, 267840, 0.636850699241, 7.39450274128, 1 },
    { 0, 4, 328319, 1.18583390705, 6.50909534288, 1 },
    { 0, 4, 368927, 2.11955653062, 5.32782605193, 2 },
    { 0, 1, 391391, 0.716235303541, 8.44951656335, 1 },
    { 0, 3, 463967, 0.769272506015, 8.43629541608, 1 },
    { 0, 4, 3627935, 11.5059734573, 7.89900658207, 12 },
};

static void cards_return_as_published(void **state)
{
    struct fsrs_card c = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof references / sizeof references[0]; i++) {
        const struct reference *r = &references[i];

        if (r->first) c = (struct fsrs_card){ 0 };
        fsrs_review(&c, (enum fsrs_grade)r->grade, r->at);
        assert_true(fabs(c.stability - r->stability) < 1e-9 * r->stability);
        assert_true(fabs(c.difficulty - r->difficulty) < 1e-9 * r->difficulty);
        assert_int_equal(c.due, r->at + r->days * 86400);
    }
}

static void recall_falls_to_nine_tenths(void **state)
{
    struct fsrs_card c = { 0 };

    (void)state;
    assert_true(fsrs_recall(&c, 0) == 0);
    fsrs_review(&c, FSRS_GOOD, 1000);
    assert_true(fsrs_recall(&c, 1000) == 1);
    c.stability = 10;
    assert_true(fabs(fsrs_recall(&c, 1000 + 10 * 86400) - 0.9) < 1e-12);
    assert_int_equal(fsrs_grade_of(1), FSRS_AGAIN);
    assert_int_equal(fsrs_grade_of(2), FSRS_AGAIN);
    assert_int_equal(fsrs_grade_of(3), FSRS_HARD);
    assert_int_equal(fsrs_grade_of(5), FSRS_EASY);
}

/* A review under a clock that was ahead, and one after it was set right. */
static void clocks_may_be_set_back(void **state)
{
    struct fsrs_card c = { 0 };

    (void)state;
    fsrs_review(&c, FSRS_GOOD, 1000 + 3650 * (int64_t)86400);
    fsrs_review(&c, FSRS_GOOD, 1000);
    assert_true(c.due > 1000 && c.due <= 1000 + 10 * 86400);
    assert_true(fsrs_recall(&c, 0) == 1);
}

/* ---- cards ---- */

#define REQUIRED                                                                                       \
    "  topic: t\n  kind: k\n  question: q {n}\n  answer: a\n  why: w\n  trade_off: o\n  mistake: m\n"

static void cards_are_filled_in(void **state)
{
    static const char yaml[] = "A-01:\n" REQUIRED "  run: lab x --n {n} --m {m}\n  sizes: n=1,20 m=3,4,5\n"
                               "  ask: Q\n  row: r {n} {no}\n  expected: 2\n  tolerance: 0\n  grill: 3 51\n"
                               "A-02:\n" REQUIRED "  run: doctor\n";
    struct cards cards;

    (void)state;
    assert_int_equal(cards_read(yaml, strlen(yaml), "c.yaml", &cards), LS_OK);
    assert_int_equal(cards.count, 2);
    const struct card *c = cards_find(&cards, "a-01");
    assert_int_equal(card_variants(c), 6);
    char *text = card_fill(c, c->run, 0);
    assert_string_equal(text, "lab x --n 1 --m 3");
    mem_free(text);
    text = card_fill(c, c->run, 4);
    assert_string_equal(text, "lab x --n 20 --m 4");
    mem_free(text);
    text = card_fill(c, c->row, 5);
    assert_string_equal(text, "r 20 {no}");
    mem_free(text);
    assert_ptr_equal(cards_of_grill(&cards, 51), c);
    assert_null(cards_of_grill(&cards, 4));
    assert_true(card_has_number(c) && !card_has_number(&cards.card[1]));
    assert_int_equal(card_variants(&cards.card[1]), 1);
    cards_free(&cards);
}

static void wrong_cards_are_named(void **state)
{
    static const struct {
        const char *yaml, *message;
    } wrong[] = {
        { "A-01:\n  topic: t\n", "c.yaml:2: card A-01 has no 'kind'" },
        { "A-01:\n" REQUIRED "  run: x\n  color: red\n", "c.yaml:10: a card has no key 'color'" },
        { "A-01:\n" REQUIRED "  run: x\n  scale: big\n", "c.yaml:10: 'scale' is not a number: 'big'" },
        { "A-01:\n" REQUIRED "  run: x\n  grill: 61\n", "c.yaml:10: 'grill' must be one or two numbers, 1 to 60" },
        { "A-01:\n" REQUIRED "  run: x\n  ask: how many\n",
          "c.yaml:2: card A-01 asks for a number: it needs 'row', 'expected' and 'tolerance'" },
        { "A-01:\n" REQUIRED "  run: x\n  unit: GB\n", "c.yaml:2: card A-01 has keys of a number, but no 'ask'" },
        { "A-01:\n" REQUIRED "  run: x\n  sizes: n=1,2\n", "c.yaml:2: the command of card A-01 does not use the size {n}" },
        { "A-01:\n" REQUIRED "  run: x {n}\n  sizes: n=1,,2\n",
          "c.yaml:2: sizes of card A-01 must be NAME=VALUE,VALUE.. with spaces between" },
        { "A-01:\n" REQUIRED "  run: x {n}\n  sizes: n= m\n",
          "c.yaml:2: sizes of card A-01 must be NAME=VALUE,VALUE.. with spaces between" },
    };
    struct cards cards;

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(cards_read(wrong[i].yaml, strlen(wrong[i].yaml), "c.yaml", &cards), LS_EFORMAT);
        assert_string_equal(ls_errmsg(), wrong[i].message);
        assert_int_equal(cards.count, 0);
    }
}

/* Of a card that expects what is measured. */
static int rated(double predicted, double measured, double tolerance)
{
    return learn_rating_of(&(struct card){ .expected = measured, .tolerance = tolerance }, predicted, measured);
}

static void predictions_are_read_and_rated(void **state)
{
    double x;

    (void)state;
    assert_true(learn_read_number(" 1,234.5 GB ", "GB", &x) && x == 1234.5);
    assert_true(learn_read_number("15%", "%", &x) && x == 15);
    assert_true(learn_read_number("1e9", NULL, &x) && x == 1e9);
    assert_true(learn_read_number("-1,234,567", NULL, &x) && x == -1234567);
    assert_false(learn_read_number("12,5", NULL, &x));
    assert_false(learn_read_number("1,5", NULL, &x));
    assert_false(learn_read_number(",5", NULL, &x));
    assert_false(learn_read_number("1,,500", NULL, &x));
    assert_false(learn_read_number("1234,567", NULL, &x));
    assert_false(learn_read_number("1,2345", NULL, &x));
    assert_false(learn_read_number("about 5", "GB", &x));
    assert_false(learn_read_number("5 MB", "GB", &x));
    assert_false(learn_read_number("", NULL, &x));
    assert_int_equal(rated(8, 8, 0), 5);
    assert_int_equal(rated(65505, 65520, 0), 4);
    assert_int_equal(rated(15.8, 15.789, 0.01), 5);
    assert_int_equal(rated(16, 15.789, 0.02), 5);
    assert_int_equal(rated(16.5, 15.789, 0), 4);
    assert_int_equal(rated(19, 15.789, 0.02), 3);
    assert_int_equal(rated(30, 15.789, 0.02), 2);
    assert_int_equal(rated(-15.789, 15.789, 0.02), 1);
    assert_int_equal(rated(0, 0, 0), 5);
    assert_int_equal(rated(1, 0, 0), 1);
    /* A card that expects 0 and measures rounding. */
    assert_int_equal(learn_rating_of(&(struct card){ .expected = 0, .tolerance = 1e-5 }, 0, 5.6e-7), 5);
    assert_int_equal(learn_rating_of(&(struct card){ .expected = 0, .tolerance = 1e-5 }, 3, 5.6e-7), 1);
}

/* ---- the history ---- */

static ls_status count_reviews(void *ctx, const struct review *r)
{
    int *n = ctx;

    assert_int_equal(r->rating, *n % 5 + 1);
    assert_true(*n % 2 ? isnan(r->predicted) : r->predicted == *n + 0.5);
    ++*n;
    return LS_OK;
}

static ls_status add_review(history *h, int i)
{
    return history_add(h, &(struct review){ .at = 1000 + i,
                                            .card = i % 3 ? "A-01" : "B-02",
                                            .sizes = "lab x",
                                            .mode = "learn",
                                            .predicted = i % 2 ? NAN : i + 0.5,
                                            .measured = 1,
                                            .rating = i % 5 + 1 });
}

/* Giving a lab's default sizes does not make it a different run. */
static void equal_runs_are_found(void **state)
{
    static const char labs[] =
        "{\"claim\":\"Z6\",\"program\":\"z6_offload\",\"sizes\":[{\"name\":\"ranks\",\"value\":2},{\"name\":\"layers\",\"value\":8}]}\n"
        "{\"claim\":\"P3\",\"program\":\"p2_bubble\",\"sizes\":[]}\n";
    static const struct { const char *command, *key, *program; } cases[] = {
        { "lab z6", "lab z6_offload", "z6_offload" },
        { "lab z6 --ranks 2", "lab z6_offload", "z6_offload" },
        { "lab Z6  --layers 8 --ranks 2", "lab z6_offload", "z6_offload" },
        { "lab z6 --layers 8 --ranks 4", "lab z6_offload --ranks 4", "" },
        { "lab z6 --ranks 2x", "lab z6_offload --ranks 2x", "" },
        { "lab z6 --steps 2", "lab z6_offload --steps 2", "" },
        { "lab z6 --json", "lab z6_offload --json", "" },
        { "lab p3", "lab p2_bubble", "p2_bubble" },
        { "lab nothing --ranks 2", "lab nothing --ranks 2", "" },
        { "plan -n 2", "plan -n 2", "" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct same_run same;

        assert_int_equal(same_run_of(cases[i].command, labs, &same), LS_OK);
        assert_string_equal(same.key.data, cases[i].key);
        assert_string_equal(same.program, cases[i].program);
        text_free(&same.key);
    }
    struct same_run same;
    assert_int_equal(same_run_of("lab z6", "not JSON", &same), LS_EFORMAT);
}

static void reviews_are_kept(void **state)
{
    struct fsrs_card c;
    history *h;
    int n = 0;

    (void)state;
    assert_int_equal(history_open("history/learn.db", true, &h), LS_OK);
    for (int i = 0; i < 10; i++) assert_int_equal(add_review(h, i), LS_OK);
    history_close(&h);
    assert_int_equal(history_open("history/learn.db", true, &h), LS_OK);
    assert_int_equal(history_each(h, count_reviews, &n), LS_OK);
    assert_int_equal(n, 10);
    assert_int_equal(history_card(h, "B-02", &c), LS_OK);
    assert_int_equal(c.reviews, 4);
    assert_int_equal(c.reviewed, 1009);
    assert_int_equal(history_card(h, "C-03", &c), LS_OK);
    assert_int_equal(c.reviews, 0);
    history_close(&h);
}

/* A process that adds reviews and reports each is killed: the reported ones are stored, and at most one more. */
static void reviews_survive_a_kill(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        int ends[2], said = 0, kept = 0, status;
        char byte;
        history *h;

        unlink("killed.db");
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        if (child == 0) {
            if (history_open("killed.db", true, &h) != LS_OK) _exit(1);
            for (int i = 0; write(ends[1], "+", 1) == 1 && add_review(h, i) == LS_OK;) i++;
            _exit(1);
        }
        close(ends[1]);
        for (int want = 1 + round; said < want && read(ends[0], &byte, 1) == 1;) said++;
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        while (read(ends[0], &byte, 1) == 1) said++;
        close(ends[0]);
        assert_int_equal(history_open("killed.db", true, &h), LS_OK);
        assert_int_equal(history_each(h, count_reviews, &kept), LS_OK);
        assert_in_range(kept, said - 1, said); /* '+' is written before each review */
        history_close(&h);
    }
}

static void other_files_are_refused(void **state)
{
    history *h;

    (void)state;
    assert_int_equal(file_write("no.db", "this is not a database, but a text of some length\n", 50), LS_OK);
    assert_int_equal(history_open("no.db", true, &h), LS_EFORMAT);
    assert_string_equal(ls_errmsg(), "no.db: file is not a database");
    assert_int_equal(history_open("no.db/learn.db", true, &h), LS_EIO);
    assert_null(h);
}

static char learn_folder[] = "learn-XXXXXX";

static int enter_folder(void **state)
{
    (void)state;
    return mkdtemp(learn_folder) && chdir(learn_folder) == 0 ? 0 : -1;
}

static int leave_folder(void **state)
{
    (void)state;
    return chdir("..") == 0 && file_remove_tree(learn_folder) == LS_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cards_return_as_published),
        cmocka_unit_test(recall_falls_to_nine_tenths),
        cmocka_unit_test(clocks_may_be_set_back),
        cmocka_unit_test(cards_are_filled_in),
        cmocka_unit_test(wrong_cards_are_named),
        cmocka_unit_test(predictions_are_read_and_rated),
        cmocka_unit_test(equal_runs_are_found),
        cmocka_unit_test(reviews_are_kept),
        cmocka_unit_test(reviews_survive_a_kill),
        cmocka_unit_test(other_files_are_refused),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
