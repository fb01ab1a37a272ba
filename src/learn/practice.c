/* practice.c - the dialogue of one card after the other. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include "base/base.h"
#include "base/mem.h"
#include "learn/answer.h"
#include "learn/learn.h"
#include "learn/page.h"

enum {
    TYPED_ROOM = 256,
    LINES_SHOWN = 10 /* lines of a run's output that are shown */,
    FORGOTTEN = 2 /* ratings up to this one return in the same session */
};

/* A card of this session. */
struct turn {
    const struct card *card;
    double recall;        /* probability that it is recalled; -1: new */
    int reviews, variant; /* reviews before this session; the variant that was asked when the card was not known */
    bool again;           /* it is asked again because it was not known */
};
struct session {
    struct learn *l;
    page *page;
    struct turn *turn;
    size_t count, done;
    int lines, rated; /* lines that the run has printed so far; ratings that were saved */
    char note[128];   /* the note about the previous card */
    bool stop;
};

/* ---- which cards ---- */

static int by_recall(const void *a, const void *b)
{
    const struct turn *x = a, *y = b;

    if (x->recall != y->recall) return x->recall < y->recall ? -1 : 1;
    return x->card < y->card ? -1 : x->card > y->card;
}

/* Those due, least likely recalled first; then new ones. */
static ls_status choose_cards(struct session *s)
{
    struct learn *l = s->l;
    size_t due = 0, fresh = 0;
    struct turn *new_ones = mem_array(MEM_OTHER, l->cards.count, sizeof *new_ones);
    ls_status st = new_ones ? LS_OK : LS_ENOMEM;

    for (size_t i = 0; st == LS_OK && i < l->cards.count; i++) {
        const struct card *c = &l->cards.card[i];
        struct fsrs_card state;

        if (!learn_in_topic(l, c)) continue;
        st = history_card(l->history, c->id, &state);
        if (state.reviews == 0 && (int64_t)fresh < l->new_cards) new_ones[fresh++] = (struct turn){ .card = c, .recall = -1 };
        if (state.reviews > 0 && state.due <= l->now)
            s->turn[due++] = (struct turn){ .card = c, .recall = fsrs_recall(&state, l->now), .reviews = state.reviews };
    }
    qsort(s->turn, due, sizeof *s->turn, by_recall);
    if (fresh) memcpy(s->turn + due, new_ones, fresh * sizeof *new_ones);
    s->count = due + fresh;
    mem_free(new_ones);
    return st;
}

/* ---- one card ---- */

static void put_text(struct session *s, enum page_style style, const char *label, const struct card *c, const char *text, int variant)
{
    char *filled = card_fill(c, text, variant);

    if (filled) page_put(s->page, style, "%s%s%s", label, label[0] ? ": " : "", filled);
    mem_free(filled);
}

/* Asks; false: the reader stops. */
static bool session_ask(struct session *s, const char *prompt, char typed[TYPED_ROOM])
{
    if (page_ask(s->page, prompt, NULL, NULL, typed, TYPED_ROOM) && strcasecmp(typed, "q") != 0) return true;
    s->stop = true;
    return false;
}

/* NAN: the reader only thought of an answer. */
static double ask_prediction(struct session *s, const struct card *c)
{
    char typed[TYPED_ROOM], prompt[TYPED_ROOM];
    double x;

    snprintf(prompt, sizeof prompt, "your number%s%s%s (Enter: only think; q: stop):", c->unit ? " [" : "", c->unit ? c->unit : "",
             c->unit ? "]" : "");
    while (session_ask(s, prompt, typed)) {
        if (!typed[strspn(typed, " ")]) return NAN;
        if (learn_read_number(typed, c->unit, &x)) return x;
        page_put(s->page, PAGE_PLAIN, "'%s' is not a number; type one as 12.5 or 1.2e9%s%s", typed, c->unit ? ", in " : "",
                 c->unit ? c->unit : "");
    }
    return NAN;
}

/* The first lines of a run, and the one that answers the card. */
static void show_line(void *ctx, const char *line)
{
    struct session *s = ctx;

    if (s->lines++ < LINES_SHOWN || line[0] == '>') page_put(s->page, PAGE_COLUMNS, "%s", line);
}

static void put_cell(char *out, size_t room, double x, const char *unit)
{
    if (isfinite(x))
        snprintf(out, room, "%.6g%s%s", x, unit ? " " : "", unit ? unit : "");
    else
        snprintf(out, room, "-");
}

static void put_numbers(struct session *s, const struct card *c, const struct answer *a, double predicted)
{
    char claimed[64], yours[64], measured[64];

    put_cell(claimed, sizeof claimed, a->claimed, c->unit);
    put_cell(yours, sizeof yours, predicted, c->unit);
    put_cell(measured, sizeof measured, a->measured, c->unit);
    page_put(s->page, PAGE_BOLD, "%-18s%-18s%s", "claimed", "yours", "measured");
    page_put(s->page, PAGE_BOLD, "%-18s%-18s%s", claimed, yours, measured);
    if (isfinite(predicted) && isfinite(a->measured) && a->measured != 0 && c->expected != 0) {
        double off = (predicted - a->measured) / fabs(a->measured);

        if (fabs(off) >= 0.0005) page_put(s->page, PAGE_PLAIN, "yours is %.1f%% too %s", 100 * fabs(off), off < 0 ? "low" : "high");
    }
}

/* The answer stays on the screen until the reader presses Enter. */
static void put_answer(struct session *s, const struct card *c, int variant)
{
    char typed[TYPED_ROOM];

    page_put(s->page, PAGE_PLAIN, "%s", "");
    put_text(s, PAGE_PLAIN, "Answer", c, c->answer, variant);
    put_text(s, PAGE_PLAIN, "Why", c, c->why, variant);
    put_text(s, PAGE_PLAIN, "Trade-off", c, c->trade_off, variant);
    put_text(s, PAGE_PLAIN, "Mistake", c, c->mistake, variant);
    session_ask(s, "Enter: run it; q: stop:", typed);
}

static ls_status run_card(struct session *s, const struct card *c, int variant, struct answer *a)
{
    char *command = card_fill(c, c->run, variant);

    page_put(s->page, PAGE_DIM, "%s", "");
    page_put(s->page, PAGE_DIM, "lockstep %s", command ? command : c->run);
    mem_free(command);
    if (strncmp(c->run, "lab ", 4) == 0) page_put(s->page, PAGE_DIM, "  %10s %10s  %-9s", "claimed", "measured", "verdict");
    s->lines = 0;
    ls_status st = answer_run(c, variant, NULL, show_line, s, a);
    page_forget_keys(s->page); /* typed while it ran */
    if (s->lines > LINES_SHOWN) page_put(s->page, PAGE_DIM, "  the run printed %d lines", s->lines);
    if (st == LS_OK && a->code) page_put(s->page, PAGE_PLAIN, "  it ended with exit code %d", a->code);
    if (st != LS_EFORMAT) return st;
    page_put(s->page, PAGE_PLAIN, "  no number: %s", ls_errmsg());
    return LS_OK;
}

/* The reader ticks which of the four checks the answer had: "134". -1: stop. */
static int ask_checks(struct session *s)
{
    char typed[TYPED_ROOM];
    int had = 0;

    if (!session_ask(s, "type those it had, as 134 (Enter: none; q: stop):", typed)) return -1;
    for (char k = '1'; k <= '4'; k++) had += strchr(typed, k) != NULL;
    return had;
}

/* 1 .. 5; 0: again with other sizes; -1: stop. */
static int ask_rating(struct session *s, const struct card *c, int proposal)
{
    char typed[TYPED_ROOM], prompt[TYPED_ROOM];
    bool sizes = card_variants(c) > 1;

    snprintf(prompt, sizeof prompt, "how well? 1 (not at all) .. 5 (perfectly), Enter: %d%s, q: stop:", proposal,
             sizes ? ", s: other sizes" : "");
    while (session_ask(s, prompt, typed)) {
        if (!typed[strspn(typed, " ")]) return proposal;
        if (sizes && strcasecmp(typed, "s") == 0) return 0;
        if (typed[0] >= '1' && typed[0] <= '5' && !typed[1]) return typed[0] - '0';
        page_put(s->page, PAGE_PLAIN, "'%s' is not a rating: type a number from 1 to 5", typed);
    }
    return -1;
}

static ls_status note_rating(struct session *s, const struct card *c, int variant, double predicted, double measured, int rating)
{
    struct fsrs_card state;
    char *run = card_fill(c, c->run, variant);
    int64_t now = time(NULL);
    ls_status st = run ? history_add(s->l->history, &(struct review){ .at = now,
                                                                      .card = c->id,
                                                                      .sizes = run,
                                                                      .mode = "learn",
                                                                      .predicted = predicted,
                                                                      .measured = measured,
                                                                      .rating = rating })
                       : LS_ENOMEM;

    mem_free(run);
    if (st == LS_OK) st = history_card(s->l->history, c->id, &state);
    if (st != LS_OK) return st;
    int64_t days = (state.due - now) / 86400;
    snprintf(s->note, sizeof s->note, "saved %s: %d; it returns in %" PRId64 " day%s", c->id, rating, days, days == 1 ? "" : "s");
    s->rated++;
    return LS_OK;
}

/* A history that cannot be written now does not lose the rating: the reader may fix the cause. */
static ls_status keep_rating(struct session *s, const struct card *c, int variant, double predicted, double measured, int rating)
{
    char typed[TYPED_ROOM];
    ls_status st;

    while ((st = note_rating(s, c, variant, predicted, measured, rating)) == LS_EIO) {
        page_put(s->page, PAGE_PLAIN, "not saved: %s", ls_errmsg());
        if (!session_ask(s, "Enter: try again; q: stop without it:", typed)) return st;
    }
    return st;
}

/* One pass over a card; *rating 0: again, with other sizes. */
static ls_status show_card(struct session *s, const struct turn *t, int variant, int *rating)
{
    struct answer a = { .measured = NAN, .claimed = NAN };
    const struct card *c = t->card;
    double predicted = NAN;
    char typed[TYPED_ROOM];

    page_title(s->page, "lockstep learn   %zu of %zu%s   %s   %s", s->done + 1, s->count, t->again ? ", again" : "", c->topic, c->id);
    if (s->note[0]) page_put(s->page, PAGE_DIM, "%s", s->note);
    s->note[0] = '\0';
    put_text(s, PAGE_BOLD, "", c, c->question, variant);
    if (card_has_number(c)) {
        if (strcmp(c->ask, c->question) != 0) put_text(s, PAGE_PLAIN, "Predict", c, c->ask, variant);
        predicted = ask_prediction(s, c);
    } else {
        page_put(s->page, PAGE_DIM, "Say the answer aloud before you look.");
        session_ask(s, "Enter: the answer; q: stop:", typed);
    }
    if (!s->stop) put_answer(s, c, variant);
    if (s->stop) return LS_OK;
    LS_TRY(run_card(s, c, variant, &a));
    if (card_has_number(c)) put_numbers(s, c, &a, predicted);
    int proposal = isfinite(predicted) && isfinite(a.measured) ? learn_rating_of(c, predicted, a.measured) : 0;
    page_put(s->page, PAGE_PLAIN, "Did your answer have 1 the mechanism, 2 why it matters, 3 the trade-off, 4 the common mistake?");
    if (!proposal) {
        int had = ask_checks(s);

        if (had < 0) return LS_OK;
        proposal = 1 + had;
    }
    *rating = ask_rating(s, c, proposal);
    return *rating > 0 ? keep_rating(s, c, variant, predicted, a.measured, *rating) : LS_OK;
}

static ls_status take_turn(struct session *s, struct turn *t)
{
    int rating = 0, variant = learn_variant(s->l, t->card, t->reviews);

    if (t->again) variant = learn_other_variant(s->l, t->card, t->variant, t->reviews + 1);
    for (int pass = 0; rating == 0 && !s->stop; pass++) {
        if (pass) variant = learn_other_variant(s->l, t->card, variant, t->reviews + pass);
        rating = -1;
        LS_TRY(show_card(s, t, variant, &rating));
    }
    s->done++;
    if (rating < 1 || rating > FORGOTTEN || t->again) return LS_OK;
    s->turn[s->count] = *t; /* what was not known comes once more, at the end */
    s->turn[s->count].variant = variant;
    s->turn[s->count++].again = true;
    return LS_OK;
}

/* A card that the user named. */
static ls_status choose_one(struct session *s, const struct card *card)
{
    struct fsrs_card state;

    LS_TRY(history_card(s->l->history, card->id, &state));
    s->turn[s->count++] = (struct turn){ .card = card, .reviews = state.reviews };
    return LS_OK;
}

static void put_end(const struct session *s)
{
    if (s->note[0]) printf("%s\n", s->note);
    if (s->count)
        printf("%d rating%s saved\n", s->rated, s->rated == 1 ? "" : "s");
    else
        printf("no card is due%s%s, and none is new; name one to be asked it: lockstep learn P-05\n", s->l->topic ? " in " : "",
               s->l->topic ? s->l->topic : "");
}

ls_status learn_practice(struct learn *l, const struct card *card)
{
    struct session s = { .l = l, .turn = mem_array(MEM_OTHER, 2 * l->cards.count + 1, sizeof *s.turn) };
    ls_status st = s.turn ? LS_OK : LS_ENOMEM;

    if (st == LS_OK) st = card ? choose_one(&s, card) : choose_cards(&s);
    if (st == LS_OK && s.count) st = page_open(&s.page);
    for (size_t i = 0; st == LS_OK && i < s.count && !s.stop; i++) st = take_turn(&s, &s.turn[i]);
    page_close(&s.page);
    if (st == LS_OK) put_end(&s);
    mem_free(s.turn);
    return st;
}
