/* stats.c - statistics of the history by topic, and the history as a table. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include "base/base.h"
#include "base/csv.h"
#include "base/mem.h"
#include "learn/learn.h"

/* Sums over reviews. "Recalled" counts reviews of cards that had been reviewed before. */
struct tally {
    int cards, seen, due, reviews, again, recalled, predictions;
    double error; /* sum of relative errors of predictions, each at most 1 */
};
struct card_tally {
    int reviews, predictions, again, recalled;
    double error;
};
struct counting {
    const struct learn *l;
    struct card_tally *of; /* [cards] */
};

static ls_status count_review(void *ctx, const struct review *r)
{
    struct counting *n = ctx;
    const struct card *c = cards_find(&n->l->cards, r->card);

    if (!c) return LS_OK; /* the card no longer exists */
    struct card_tally *t = &n->of[c - n->l->cards.card];
    t->again += t->reviews > 0;
    t->recalled += t->reviews++ > 0 && fsrs_grade_of(r->rating) != FSRS_AGAIN;
    if (!isfinite(r->predicted) || !isfinite(r->measured)) return LS_OK;
    double size = r->measured != 0 ? fabs(r->measured) : 1;
    t->predictions++;
    t->error += fmin(1, fabs(r->predicted - r->measured) / size);
    return LS_OK;
}

static void add_card(struct tally *t, const struct card_tally *c, bool due)
{
    t->cards++;
    t->seen += c->reviews > 0;
    t->due += due;
    t->reviews += c->reviews;
    t->again += c->again;
    t->recalled += c->recalled;
    t->predictions += c->predictions;
    t->error += c->error;
}

static void put_share(double x, int n)
{
    if (n)
        printf(" %11.0f%%", 100 * x / n);
    else
        printf(" %12s", "-");
}

static void put_tally(const char *name, const struct tally *t)
{
    printf("%-18s %5d %5d %5d %8d", name, t->cards, t->seen, t->due, t->reviews);
    put_share(t->recalled, t->again);
    put_share(t->error, t->predictions);
    putchar('\n');
}

static ls_status put_topics(struct learn *l, const struct card_tally *of)
{
    struct tally all = { 0 }, topic = { 0 };
    struct fsrs_card state;

    printf("%-18s %5s %5s %5s %8s %12s %12s\n", "topic", "cards", "seen", "due", "reviews", "recalled", "mean error");
    for (size_t i = 0; i < l->cards.count; i++) {
        const struct card *c = &l->cards.card[i];
        bool last = i + 1 == l->cards.count || strcmp(c->topic, c[1].topic) != 0;

        if (!learn_in_topic(l, c)) continue;
        LS_TRY(history_card(l->history, c->id, &state));
        bool due = state.reviews && state.due <= l->now;
        add_card(&topic, &of[i], due);
        add_card(&all, &of[i], due);
        if (!last) continue;
        put_tally(c->topic, &topic);
        topic = (struct tally){ 0 };
    }
    if (!l->topic) put_tally("all", &all);
    return LS_OK;
}

ls_status learn_stats(struct learn *l)
{
    struct counting n = { .l = l, .of = mem_array(MEM_OTHER, l->cards.count + 1, sizeof *n.of) };
    ls_status st = n.of ? history_each(l->history, count_review, &n) : LS_ENOMEM;

    if (st == LS_OK) st = put_topics(l, n.of);
    mem_free(n.of);
    return st;
}

/* ---- the history as CSV ---- */

static void put_csv_number(struct text *out, double x)
{
    char number[TEXT_NUMBER_ROOM];

    text_put(out, ",%s", isfinite(x) ? text_real(number, x) : "");
}

static ls_status put_csv_review(void *ctx, const struct review *r)
{
    struct text *out = ctx;
    char when[32];
    time_t at = (time_t)r->at;

    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime(&at));
    text_put(out, "%s,", when);
    csv_put(out, r->card);
    text_put(out, ",");
    csv_put(out, r->sizes);
    text_put(out, ",%s", r->mode);
    put_csv_number(out, r->predicted);
    put_csv_number(out, r->measured);
    text_put(out, ",%d\n", r->rating);
    return text_status(out);
}

ls_status learn_export_csv(struct learn *l, struct text *out)
{
    text_put(out, "at,card,run,mode,predicted,measured,rating\n");
    return history_each(l->history, put_csv_review, out);
}
