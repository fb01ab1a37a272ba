/* grill.c - 60 questions cold. Two things are said at the end, which must not be mixed up: how many were right, and which kinds of
 * knowledge, by the numbers of the questions, the wrong ones belong to. */
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
} parts[] = {
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
/* What it means to miss questions of these numbers. */
static const struct grill_kind {
    int first, last;
    const char *meaning;
} kinds[] = {
    { 1, 15, "the arithmetic of memory: without it one cannot follow a talk about training" },
    { 16, 35, "how layouts communicate: asked of everyone who builds training systems" },
    { 36, 50, "large systems: experts, overlap, failures" },
};

struct question {
    const struct card *card;
    int variant, right; /* right: 1, 0; -1: not answered */
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
            q->typed[0] = '\0';
        }
        bool empty = !q->typed[strspn(q->typed, " ")];
        if (g->stop || empty || !card_has_number(c) || learn_read_number(q->typed, c->unit, &q->predicted)) {
            q->right = empty || grill_left(g) < 0 ? -1 : 0;
            return;
        }
        page_put(g->page, PAGE_PLAIN, "'%s' is not a number", q->typed);
    }
}

/* ---- grading ---- */

static ls_status grade_number(struct grill *g, struct question *q)
{
    struct answer a;
    ls_status st = answer_run(q->card, q->variant, &g->cache, NULL, NULL, &a);

    if (st != LS_OK && st != LS_EFORMAT) return st;
    q->measured = a.measured;
    if (st == LS_EFORMAT || !isfinite(a.measured)) {
        page_put(g->page, PAGE_PLAIN, "%s: not graded: %s", q->card->id, st == LS_EFORMAT ? ls_errmsg() : "the run failed");
        q->right = -1;
        return LS_OK;
    }
    q->right = learn_rating_of(q->predicted, a.measured, q->card->tolerance) == 5;
    page_put(g->page, PAGE_PLAIN, "%s: yours %.6g, measured %.6g: %s", q->card->id, q->predicted, a.measured, q->right ? "right" : "wrong");
    return LS_OK;
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
    while (page_ask(g->page, "did you know it? y, n:", NULL, NULL, typed, sizeof typed)) {
        q->right = strcasecmp(typed, "y") == 0;
        if (q->right || strcasecmp(typed, "n") == 0) return;
        page_put(g->page, PAGE_PLAIN, "type y or n");
    }
    q->right = -1;
}

static ls_status note_question(struct grill *g, const struct question *q)
{
    char *run = card_fill(q->card, q->card->run, q->variant);
    ls_status st = run ? history_add(g->l->history, &(struct review){ .at = time(NULL),
                                                                      .card = q->card->id,
                                                                      .sizes = run,
                                                                      .mode = "grill",
                                                                      .predicted = q->predicted,
                                                                      .measured = q->measured,
                                                                      .rating = q->right ? KNOWN : MISSED })
                       : LS_ENOMEM;

    mem_free(run);
    return st;
}

static ls_status grade_all(struct grill *g)
{
    page_title(g->page, "lockstep learn --grill   the runs");
    page_put(g->page, PAGE_PLAIN, "Numbers are graded by their runs, which takes a minute or two.");
    for (int i = 1; i <= GRILL_QUESTIONS; i++)
        if (g->q[i].right == 0 && card_has_number(g->q[i].card)) LS_TRY(grade_number(g, &g->q[i]));
    for (int i = 1; i <= GRILL_QUESTIONS; i++)
        if (g->q[i].right == 0 && !card_has_number(g->q[i].card)) grade_words(g, i);
    for (int i = 1; i <= GRILL_QUESTIONS; i++)
        if (g->q[i].right >= 0) LS_TRY(note_question(g, &g->q[i]));
    return LS_OK;
}

/* ---- the report ---- */

static int right_of(const struct grill *g, int first, int last)
{
    int n = 0;

    for (int i = first; i <= last; i++) n += g->q[i].right == 1;
    return n;
}

static void put_study_list(const struct grill *g)
{
    printf("\nstudy next:");
    int listed = 0;
    for (int i = 1; i <= GRILL_QUESTIONS; i++) {
        bool before = false;

        for (int k = 1; k < i; k++) before |= g->q[k].card == g->q[i].card && g->q[k].right != 1;
        if (g->q[i].right != 1 && !before) printf("%s %s", listed++ ? "," : "", g->q[i].card->id);
    }
    printf("%s\n", listed ? "" : " nothing: all were right");
    if (listed) printf("  lockstep learn ID asks one of them; those that you answered wrong are due tomorrow\n");
}

static void put_report(const struct grill *g)
{
    int numbered = right_of(g, 1, MAIN_QUESTIONS), all = right_of(g, 1, GRILL_QUESTIONS);

    printf("%-36s %s\n", "part", "right");
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        printf("%-36s %d of %d\n", parts[i].name, right_of(g, parts[i].first, parts[i].last), parts[i].last - parts[i].first + 1);
    printf("\nscore: %d of the first %d (%d: enough drill), %d of all %d (%d: the goal, cold)\n", numbered, MAIN_QUESTIONS, MAIN_GOAL, all,
           GRILL_QUESTIONS, ALL_GOAL);
    printf("kinds of knowledge, by the numbers of the questions:\n");
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        int count = kinds[i].last - kinds[i].first + 1;

        printf("  %2d to %d: %d of %d; %s\n", kinds[i].first, kinds[i].last, right_of(g, kinds[i].first, kinds[i].last), count,
               kinds[i].meaning);
    }
    put_study_list(g);
}

static ls_status choose_questions(struct grill *g)
{
    for (int i = 1; i <= GRILL_QUESTIONS; i++) {
        const struct card *c = cards_of_grill(&g->l->cards, i);

        if (!c) return ls_fail(LS_EFORMAT, "no card is question %d of the grill", i);
        g->q[i] = (struct question){ .card = c, .right = -1, .predicted = NAN, .measured = NAN };
        g->q[i].variant = learn_variant(g->l, c, i);
    }
    return LS_OK;
}

ls_status learn_grill(struct learn *l)
{
    struct grill *g = mem_zalloc(MEM_OTHER, sizeof *g);

    if (!g) return LS_ENOMEM;
    g->l = l;
    ls_status st = choose_questions(g);
    if (st == LS_OK) st = page_open(&g->page);
    g->ends = base_now() + 60 * l->minutes;
    for (int i = 1; st == LS_OK && i <= GRILL_QUESTIONS && !g->stop && grill_left(g) > 0; i++) ask_question(g, i);
    if (st == LS_OK) st = grade_all(g);
    page_close(&g->page);
    answer_cache_free(&g->cache);
    if (st == LS_OK) put_report(g);
    mem_free(g);
    return st;
}
