/* helper_clock.h - a clock that the ranks of a test share, and that stands still until one of them moves it: a timeout passes when the test
 * says so, and no rank is late because the machine is busy.
 *
 * The parent opens it. A rank that calls test_clock_use(), before it opens a comm, has the test's time as base_now(). A rank that waits in
 * a call reads the clock again and again, so test_clock_step() returns after all others have seen the new time.
 */
#ifndef LS_TESTS_HELPER_CLOCK_H
#define LS_TESTS_HELPER_CLOCK_H

#include <stdbool.h>

struct test_clock;

struct test_clock *test_clock_open(int n); /* for ranks 0 to n - 1; memory that is shared with the processes that this one forks */
void test_clock_close(struct test_clock **c);
/* The same in a file, for processes that are started with its path. */
struct test_clock *test_clock_open_file(const char *path, int n);

void test_clock_use(struct test_clock *c, int rank);
/* Without a shared clock: base_now() of this process passes by a microsecond with each read, so that spinning ends, but another process
 * that is given a moment has all the time that it needs. */
void test_clock_by_reads(void);
/* Steps do not wait for this rank: it is about to be stopped, or its call is over. The latter ends the steps. */
void test_clock_stop(void);
void test_clock_leave(void);
void test_clock_move(double seconds);
/* Moves it and waits until every other rank has read it TEST_CLOCK_READS times. False: a rank has left. Steps are shorter than ABSENT
 * (engine.c), or ranks take them for a time in which they were stopped. */
enum { TEST_CLOCK_READS = 16 };
bool test_clock_step(double seconds);
/* By a process that is none of the ranks. */
bool test_clock_stopped(const struct test_clock *c, int rank); /* it called test_clock_stop() */
bool test_clock_step_all(struct test_clock *c, double seconds);

#endif
