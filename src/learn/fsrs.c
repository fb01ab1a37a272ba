/* fsrs.c - the formulas of FSRS-6. Names of parameters as published: w[0] to w[20]. */
#include "learn/fsrs.h"

#include <math.h>

enum { DAY = 86400, LONGEST = 36500 /* days */ };

static const double RETENTION = 0.9, LEAST_STABILITY = 0.001;
static const double w[21] = { 0.212,  1.2931, 2.3065, 8.2956, 6.4133, 0.8334, 3.0194, 0.001,  1.8722, 0.1666, 0.796,
                              1.4835, 0.0614, 0.2629, 1.6483, 0.6014, 1.8729, 0.5425, 0.0912, 0.0658, 0.1542 };

static double clamp_number(double x, double low, double high) { return fmin(fmax(x, low), high); }

/* The forgetting curve is (1 + factor * days / stability)^-w[20], with a factor that makes it 0.9 after `stability` days. */
static double curve_factor(void) { return pow(0.9, -1 / w[20]) - 1; }

static double recall_after(double days, double stability) { return pow(1 + curve_factor() * days / stability, -w[20]); }

double fsrs_recall(const struct fsrs_card *c, int64_t now)
{
    return c->reviews ? recall_after(now > c->reviewed ? (double)((now - c->reviewed) / DAY) : 0, c->stability) : 0;
}

static double first_difficulty(int grade) { return w[4] - exp(w[5] * (grade - 1)) + 1; }

static double next_difficulty(double difficulty, int grade)
{
    double damped = difficulty - w[6] * (grade - 3) * (10 - difficulty) / 9;

    return clamp_number(w[7] * first_difficulty(FSRS_EASY) + (1 - w[7]) * damped, 1, 10);
}

/* After a review on the day of the last one. */
static double same_day_stability(double stability, int grade)
{
    double growth = exp(w[17] * (grade - 3 + w[18])) * pow(stability, -w[19]);

    return stability * (grade == FSRS_AGAIN ? growth : fmax(growth, 1));
}

static double forgotten_stability(double difficulty, double stability, double recall)
{
    double after = w[11] * pow(difficulty, -w[12]) * (pow(stability + 1, w[13]) - 1) * exp((1 - recall) * w[14]);

    return fmin(after, stability / exp(w[17] * w[18]));
}

static double recalled_stability(double difficulty, double stability, double recall, int grade)
{
    double growth = exp(w[8]) * (11 - difficulty) * pow(stability, -w[9]) * (exp((1 - recall) * w[10]) - 1);

    return stability * (1 + growth * (grade == FSRS_HARD ? w[15] : 1) * (grade == FSRS_EASY ? w[16] : 1));
}

static int64_t next_interval(double stability)
{
    double days = stability / curve_factor() * (pow(RETENTION, -1 / w[20]) - 1);

    return (int64_t)clamp_number(nearbyint(days), 1, LONGEST); /* whole days, halves to even, as published */
}

void fsrs_review(struct fsrs_card *c, enum fsrs_grade grade, int64_t now)
{
    int64_t days = now > c->reviewed ? (now - c->reviewed) / DAY : 0;
    double recall = fsrs_recall(c, now), s = c->stability;

    if (c->reviews == 0) {
        c->stability = w[grade - 1];
        c->difficulty = clamp_number(first_difficulty(grade), 1, 10);
    } else {
        if (days < 1)
            c->stability = same_day_stability(s, grade);
        else if (grade == FSRS_AGAIN)
            c->stability = forgotten_stability(c->difficulty, s, recall);
        else
            c->stability = recalled_stability(c->difficulty, s, recall, grade);
        c->stability = fmax(c->stability, LEAST_STABILITY);
        c->difficulty = next_difficulty(c->difficulty, grade);
    }
    c->reviews++;
    c->lapses += grade == FSRS_AGAIN;
    c->reviewed = now;
    c->due = now + next_interval(c->stability) * DAY;
}

enum fsrs_grade fsrs_grade_of(int rating)
{
    return rating <= 2 ? FSRS_AGAIN : rating == 3 ? FSRS_HARD : rating == 4 ? FSRS_GOOD : FSRS_EASY;
}
