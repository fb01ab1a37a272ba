/* yield.h - waits that yield the processor before they sleep, where that is quick.
 *
 * Yielding costs less than sleeping if the threads that are waited for need the same processor. Next to a busy process each yield costs a
 * time slice or more. So if long yields are frequent, the next waits only sleep: four times as many after each further long yield, fewer
 * after each wait whose yields were short.
 */
#ifndef LS_BASE_YIELD_H
#define LS_BASE_YIELD_H

#include <sched.h>
#include <stdbool.h>
#include <time.h>

#define YIELD_LONG 0.5e-3 /* seconds; another process must have run during a yield that long */
enum {
    YIELD_WEIGHT = 8,     /* long yields are frequent if more than one in this many waits is long, */
    YIELD_LONGS_MOST = 8, /* over at least this many of them */
    YIELD_SLEEPS_LEAST = 16,
    YIELD_SLEEPS_MOST = 1024,
};

/* One for each thread that waits, or for threads that wait in turn; zeros to begin with. */
struct yields {
    bool on;    /* this wait may yield */
    int longs;  /* grows by YIELD_WEIGHT with each long yield, falls by 1 with each wait */
    int sleeps; /* waits to come that do not yield */
    int next;   /* how many waits will not yield after the next long yield */
};

static inline double yield_clock(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A wait begins: it yields, or is one of those that do not. */
static inline void yield_begin(struct yields *y)
{
    y->on = y->sleeps == 0;
    if (!y->on) {
        y->sleeps--;
        return;
    }
    if (y->longs > 0) y->longs--;
    y->next -= y->next / 8;
    if (y->next < YIELD_SLEEPS_LEAST) y->next = YIELD_SLEEPS_LEAST;
}

/* Yields the processor; false if this wait must sleep instead. */
static inline bool yield_try(struct yields *y)
{
    if (!y->on) return false;
    double began = yield_clock();
    sched_yield();
    if (yield_clock() - began < YIELD_LONG) return true;
    y->on = false;
    y->longs += YIELD_WEIGHT;
    if (y->longs <= YIELD_WEIGHT * YIELD_LONGS_MOST) return true;
    y->longs = YIELD_WEIGHT * YIELD_LONGS_MOST;
    y->sleeps = y->next;
    y->next = y->next * 4 < YIELD_SLEEPS_MOST ? y->next * 4 : YIELD_SLEEPS_MOST;
    return true;
}

#endif
