/* fsrs.h - when a card returns: FSRS-6, the Free Spaced Repetition Scheduler, with its published default parameters (the formulas and the
 * 21 parameters: github.com/open-spaced-repetition/fsrs4anki/wiki/The-Algorithm), without learning steps and without fuzz. */
#ifndef LS_LEARN_FSRS_H
#define LS_LEARN_FSRS_H

#include <stdint.h>

enum fsrs_grade { FSRS_AGAIN = 1, FSRS_HARD, FSRS_GOOD, FSRS_EASY };

/* The memory state of a card. stability: days until it is recalled with a probability of 0.9; difficulty: 1 to 10. Zeroed: never reviewed.
 */
struct fsrs_card {
    double stability, difficulty;
    int64_t reviewed, due; /* seconds since 1970; due is `reviewed` plus whole days */
    int reviews, lapses;   /* lapses: reviews graded "again" */
};

/* The card after a review at `now`. Where the clock was set back, as if it were the day of the last review. */
void fsrs_review(struct fsrs_card *c, enum fsrs_grade grade, int64_t now);
/* Probability that it is recalled at `now`; 0 if it was never reviewed. */
double fsrs_recall(const struct fsrs_card *c, int64_t now);
/* The grade of a rating from 1 (not at all) to 5 (perfectly): 1 and 2 are forgotten. */
enum fsrs_grade fsrs_grade_of(int rating);

#endif
