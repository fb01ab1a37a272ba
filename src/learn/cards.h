/* cards.h - the practice cards of labs/cards.yaml: a question, its answer, and the command that shows it.
 *
 * A card is a section of the file, in the subset of base/yaml.h:
 *
 *   P-05:
 *     topic: pipeline
 *     question: How large is the bubble of {stages} stages and {micro-batches} micro-batches?
 *     answer: ..                           # an answer from memory; then why:, trade_off:, mistake:
 *     claims: P2 P3                        # ids of labs/lab_claims.h
 *     run: lab p2 --stages {stages} --micro-batches {micro-batches}
 *     sizes: stages=4,8,2 micro-batches=16,32,4
 *     ask: Bubble of {stages} stages and {micro-batches} micro-batches?
 *     unit: "%"
 *     row: P = {stages}, M = {micro-batches}
 *     expected: 15.789                     # what the run measures with the first sizes
 *     tolerance: 0.02                      # relative: a prediction this near is right
 *
 * run holds arguments of lockstep. The number that is asked for is `measured` of the row of that text, if run is a lab; else the number
 * at that key of the JSON that run prints ("memory.total"); times `scale`. `said` is a common wrong answer.
 */
#ifndef LS_LEARN_CARDS_H
#define LS_LEARN_CARDS_H

#include <stdbool.h>
#include <stddef.h>
#include "lockstep/status.h"

/* Keys of a card that are texts, and whether each card must have them. In the order of the file. */
#define CARD_TEXT_MAP(X) \
    X(topic, true)       \
    X(kind, true)        \
    X(question, true)    \
    X(answer, true)      \
    X(why, true)         \
    X(trade_off, true)   \
    X(mistake, true)     \
    X(claims, false)     \
    X(run, true)         \
    X(sizes, false)      \
    X(ask, false)        \
    X(unit, false)       \
    X(row, false)        \
    X(claim, false)

struct card {
    char *id;
#define CARD_FIELD(key, needed) char *key;
    CARD_TEXT_MAP(CARD_FIELD)
#undef CARD_FIELD
    double scale, said, expected, tolerance; /* scale 1 by default; the others NAN */
    int grill[3];                            /* its numbers among the questions of the grill, 0 after the last */
    int line;
};
struct cards {
    struct card *card;
    size_t count;
};

enum { CARD_SIZES_MOST = 4, GRILL_QUESTIONS = 60 };

extern const char builtin_cards[]; /* labs/cards.yaml */

/* what names the text in messages. LS_EFORMAT, with the line: an unknown or missing key, a value that should be a number, a size without
 * values. */
ls_status cards_read(const char *text, size_t bytes, const char *what, struct cards *out);
void cards_free(struct cards *c);

const struct card *cards_find(const struct cards *c, const char *id); /* in any case; NULL: none */
const struct card *cards_of_grill(const struct cards *c, int number); /* 1 .. GRILL_QUESTIONS; NULL: none */
bool card_has_number(const struct card *c);                           /* asks for one */
int card_variants(const struct card *c);                              /* combinations of its sizes; 1 without sizes */
/* text with the sizes of a variant (0: the first of each) in place of {NAME}; free with mem_free(). NULL: out of memory. */
char *card_fill(const struct card *c, const char *text, int variant);

#endif
