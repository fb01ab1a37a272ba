/* learn.h - practice with cards: a question, a prediction, the run, a rating; and statistics and exports of the history. */
#ifndef LS_LEARN_LEARN_H
#define LS_LEARN_LEARN_H

#include <stdio.h>
#include "base/text.h"
#include "learn/cards.h"
#include "learn/history.h"

struct learn {
    struct cards cards;
    history *history;
    const char *topic; /* NULL: all */
    int64_t now;       /* seconds since 1970 when the session began */
    int64_t new_cards; /* at most this many that were never seen */
    int64_t seed;      /* seed of sizes and order */
    double minutes;    /* time limit of the grill */
};

/* Cards that are due, those most likely forgotten first, then new ones in the order of the file; asks, runs, and saves ratings until all
 * have been asked or the reader stops. card: only this one; NULL: those due. */
ls_status learn_practice(struct learn *l, const struct card *card);
/* 60 questions against the clock; after the last, numbers are graded by their runs, words by the reader. */
ls_status learn_grill(struct learn *l);
/* A table by topic on standard output. */
ls_status learn_stats(struct learn *l);
/* Runs the cards, with their first sizes or with all, and compares what is measured with what the cards expect (with the first sizes).
 * Prints a line per card; LS_EFORMAT if a run fails, prints no number, or its number is off. */
ls_status learn_check(struct learn *l, bool all_sizes);

/* How good a prediction is: 5 to within the card's tolerance, 4 to 3 tolerances (at least 5%), 3 to a quarter, 2 to a
 * factor of 2, else 1; relative to what was measured, or to 1 if the card expects 0. */
int learn_rating_of(const struct card *c, double predicted, double measured);
/* A prediction as typed: a number, perhaps followed by the unit, perhaps with commas between thousands ("1,234.5", but not "12,5"). */
bool learn_read_number(const char *text, const char *unit, double *out);
bool learn_in_topic(const struct learn *l, const struct card *c);
/* The variant that review number `nth` of a card uses: the first sizes first, then drawn. */
int learn_variant(const struct learn *l, const struct card *c, int nth);
/* A variant other than `variant`, if there is one. */
int learn_other_variant(const struct learn *l, const struct card *c, int variant, int nth);

/* Exports: text in out. */
ls_status learn_export_csv(struct learn *l, struct text *out);  /* the history */
ls_status learn_export_anki(struct learn *l, struct text *out); /* a text file that Anki imports, with fields and tags */
/* One page with all cards, and numbers measured here: it runs all of them; progress is shown if standard error is a terminal. */
ls_status learn_export_html(struct learn *l, struct text *out);

#endif
