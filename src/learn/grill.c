/* grill.c - 60 questions without preparation. The report has two separate parts: how many answers were right, and which kinds of knowledge,
 * by the numbers of the questions, the wrong ones belong to. */
#include <math.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include "base/base.h"
#include "base/mem.h"
#include "learn/answer.h"
#include "learn/learn.h"
#include "learn/page.h"

enum { WORDS_ROOM = 256, MAIN_QUESTIONS = 50, MAIN_GOAL = 35, ALL_GOAL = 40, MISSED = 1, KNOWN = 4 };

static const struct grill_part {
    const char *name;
    int first, last;
} grill_parts[] = {
    { "memory arithmetic", 1, 8 },
    { "data parallelism and sharding", 9, 18 },
    { "tensor and sequence parallelism", 19, 25 },
    { "pipelines", 26, 31 },
    { "layouts and context parallelism", 32, 35 },
    { "experts", 36, 40 },
    { "overlap and utilization", 41, 44 },
    { "failures", 45, 50 },
    { "quick: a number or a word", 51, 60 },
};
/* What it means to answer questions of these numbers wrong. */
static const struct grill_kind {
    int first, last;
    const char *meaning;
} grill_kinds[] = {
    { 1, 15, "the arithmetic of memory: without it one cannot follow a talk about training" },
    { 16, 35, "how layouts communicate: asked of everyone who builds training systems" },
    { 36, 50, "large systems: experts, overlap, failures" },
};

enum outcome { NOT_ASKED, NOT_KNOWN /* answered with Enter */, TOO_LATE, ANSWERED, NOT_GRADED, WRONG, RIGHT };
static const char *const outcome_names[] = { "not asked", "not known", "too late", "not graded", "not graded", "wrong", "right" };

struct question {
    const struct card *card;
    int variant;
    enum outcome outcome;
    bool noted;
    double predicted, measured;
    char typed[WORDS_ROOM];
};
struct grill {
    struct learn *l;
    page *page;
    struct question q[GRILL_QUESTIONS + 1]; /* from 1 */
    struct answer_cache cache;
    double ends;
    bool stop;
};

static double grill_left(void *ctx) { return ((struct grill *)ctx)->ends - base_now(); }

static void put_filled(struct grill *g, enum page_style style, const char *label, const struct question *q, const char *text)
{
    char *filled = card_fill(q->card, text, q->variant);

    if (filled) page_put(g->page, style, "%s%s", label, filled);
    mem_free(filled);
}

static void ask_question(struct grill *g, int number)
{
    struct question *q = &g->q[number];
    const struct card *c = q->card;
    char prompt[WORDS_ROOM];

    page_title(g->page, "lockstep learn --grill   %d of %d", number, GRILL_QUESTIONS);
    put_filled(g, PAGE_BOLD, "", q, card_has_number(c) ? c->ask : c->question);
    snprintf(prompt, sizeof prompt, "%s%s%s%s (Enter: don't know; q: stop):", card_has_number(c) ? "number" : "in a few words",
             c->unit ? " [" : "", c->unit ? c->unit : "", c->unit ? "]" : "");
    for (;;) {
        if (!page_ask(g->page, prompt, grill_left, g, q->typed, sizeof q->typed) || strcasecmp(q->typed, "q") == 0) {
            g->stop = true;
            return;
        }
        bool empty = !q->typed[strspn(q->typed, " ")];
        if (empty || !card_has_number(c) || learn_read_number(q->typed, c->unit, &q->predicted)) {
            q->outcome = grill_left(g) < 0 ? TOO_LATE : empty ? NOT_KNOWN : ANSWERED;
            return;
        }
        page_put(g->page, PAGE_PLAIN, "'%s' is not a number", q->typed);
    }
}

/* ---- grading ---- */

static ls_status note_question(struct grill *g, const struct question *q)
{
    char *run = card_fill(q->card, q->card->run, q->variant);
    ls_status st = run ? history_add(g->l->history, &(struct review){ .at = time(NULL),
                                                                      .card = q->card->id,
                                                                      .sizes = run,
                                                                      .mode = "grill",
                                                                      .predicted = q->predicted,
                                                                      .measured = q->measured,
                                                                      .rating = q->outcome == RIGHT ? KNOWN : MISSED })
                       : LS_ENOMEM;

    mem_free(run);
    return st;
}

static void grade_number(struct grill *g, struct question *q)
{
    struct answer a;
    ls_status st = answer_run(q->card, q->variant, &g->cache, NULL, NULL, &a);

    q->measured = a.measured;
    if (st != LS_OK || !isfinite(a.measured)) {
        page_put(g->page, PAGE_PLAIN, "%s: not graded: %s", q->card->id, st != LS_OK ? ls_errmsg() : "the run failed");
        q->outcome = NOT_GRADED;
        return;
    }
    q->outcome = learn_rating_of(q->card, q->predicted, a.measured) == 5 ? RIGHT : WRONG;
    page_put(g->page, PAGE_PLAIN, "%s: yours %.6g, measured %.6g: %s", q->card->id, q->predicted, a.measured, outcome_names[q->outcome]);
}

static void grade_words(struct grill *g, int number)
{
    struct question *q = &g->q[number];
    char typed[WORDS_ROOM];

    page_title(g->page, "lockstep learn --grill   grading %d of %d   %s", number, GRILL_QUESTIONS, q->card->id);
    put_filled(g, PAGE_BOLD, "", q, q->card->question);
    page_put(g->page, PAGE_PLAIN, "Yours: %s", q->typed);
    put_filled(g, PAGE_PLAIN, "Answer: ", q, q->card->answer);
    put_filled(g, PAGE_PLAIN, "Mistake: ", q, q->card->mistake);
    while (page_ask(g->page, "was your answer right? y or n (q: grade no more):", NULL, NULL, typed, sizeof typed)) {
        if (strcasecmp(typed, "q") == 0) break;
        q->outcome = strcasecmp(typed, "y") == 0 ? RIGHT : strcasecmp(typed, "n") == 0 ? WRONG : ANSWERED;
        if (q->outcome != ANSWERED) return;
        page_put(g->page, PAGE_PLAIN, "type y or n");
    }
    q->outcome = NOT_GRADED;
    g->stop = true;
}

/* A grade is saved as soon as it is given. A question whose run fails, or whose grade cannot be saved, does not end the grill: *unnoted
 * counts those that could not be saved. */
static void grade_all(struct grill *g, int *unnoted)
{
    g->stop = false;
    page_title(g->page, "lockstep learn --grill   the runs");
    page_put(g->page, PAGE_PLAIN, "Numbers are graded by their runs, which takes a minute or two.");
    for (int pass = 0; pass < 2; pass++)
        for (int i = 1; i <= GRILL_QUESTIONS; i++) {
            struct question *q = &g->q[i];

            if (q->outcome == ANSWERED && pass == 0 && card_has_number(q->card)) grade_number(g, q);
            if (q->outcome == ANSWERED && pass == 1 && !g->stop) page_forget_keys(g->page), grade_words(g, i);
            bool graded = q->outcome == RIGHT || q->outcome == WRONG || q->outcome == NOT_KNOWN;
            if (graded && !q->noted) *unnoted += note_question(g, q) != LS_OK;
            q->noted |= graded;
        }
}

/* ---- the report ---- */

static int right_of(const struct grill *g, int first, int last)
{
    int n = 0;

    for (int i = first; i <= last; i++) n += g->q[i].outcome == RIGHT;
    return n;
}

static void put_study_list(const struct grill *g)
{
    printf("\nstudy next:");
    int listed = 0;
    for (int i = 1; i <= GRILL_QUESTIONS; i++) {
        bool before = false;

        for (int k = 1; k < i; k++) before |= g->q[k].card == g->q[i].card && g->q[k].outcome != RIGHT;
        if (g->q[i].outcome != RIGHT && !before) printf("%s %s", listed++ ? "," : "", g->q[i].card->id);
    }
    printf("%s\n", listed ? "" : " nothing: all were right");
    if (listed) printf("  'lockstep learn ID' asks one of them; those that you did not know return sooner\n");
}

static void put_answered(const struct grill *g)
{
    for (int i = 1; i <= GRILL_QUESTIONS; i++) {
        const struct question *q = &g->q[i];

        if (q->outcome == NOT_ASKED) continue;
        printf("%2d  %s  %-10s", i, q->card->id, outcome_names[q->outcome]);
        if (isfinite(q->measured)) printf("  yours %.6g, measured %.6g", q->predicted, q->measured);
        printf("\n");
    }
    printf("\n");
}

static void put_report(const struct grill *g)
{
    int numbered = right_of(g, 1, MAIN_QUESTIONS), all = right_of(g, 1, GRILL_QUESTIONS);

    put_answered(g);
    printf("%-36s %s\n", "part", "right");
    for (size_t i = 0; i < COUNT_OF(grill_parts); i++)
        printf("%-36s %d of %d\n", grill_parts[i].name, right_of(g, grill_parts[i].first, grill_parts[i].last),
               grill_parts[i].last - grill_parts[i].first + 1);
    printf("\nscore: %d of the first %d (%d is a pass), %d of all %d (goal: %d)\n", numbered, MAIN_QUESTIONS, MAIN_GOAL, all,
           GRILL_QUESTIONS, ALL_GOAL);
    printf("kinds of knowledge, by the numbers of the questions:\n");
    for (size_t i = 0; i < COUNT_OF(grill_kinds); i++) {
        int count = grill_kinds[i].last - grill_kinds[i].first + 1;

        printf("  %2d to %d: %d of %d; %s\n", grill_kinds[i].first, grill_kinds[i].last,
               right_of(g, grill_kinds[i].first, grill_kinds[i].last), count, grill_kinds[i].meaning);
    }
    put_study_list(g);
}

static ls_status choose_questions(struct grill *g)
{
    for (int i = 1; i <= GRILL_QUESTIONS; i++) {
        const struct card *c = cards_of_grill(&g->l->cards, i);

        if (!c) return ls_fail(LS_EFORMAT, "no card is question %d of the grill", i);
        g->q[i] = (struct question){ .card = c, .predicted = NAN, .measured = NAN };
        g->q[i].variant = learn_variant(g->l, c, i);
    }
    return LS_OK;
}

ls_status learn_grill(struct learn *l)
{
    struct grill *g = mem_zalloc(MEM_OTHER, sizeof *g);
    int unnoted = 0;

    if (!g) return LS_ENOMEM;
    g->l = l;
    ls_status st = choose_questions(g);
    if (st == LS_OK) st = page_open(&g->page);
    g->ends = base_now() + 60 * l->minutes;
    for (int i = 1; st == LS_OK && i <= GRILL_QUESTIONS && !g->stop && grill_left(g) > 0; i++) ask_question(g, i);
    if (st == LS_OK) grade_all(g, &unnoted);
    page_close(&g->page);
    answer_cache_free(&g->cache);
    if (st == LS_OK) put_report(g);
    if (unnoted) st = ls_fail(LS_EIO, "%d answers were not saved in the history: %s", unnoted, ls_errmsg());
    mem_free(g);
    return st;
}
