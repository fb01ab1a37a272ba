/* base.h - the few macros and functions that every file may use. */
#ifndef LS_BASE_BASE_H
#define LS_BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "lockstep/status.h"

/* For bugs in lockstep: prints the expression and its location, and aborts. Always compiled in; never used on input. */
#define ASSERT(cond) ((cond) ? (void)0 : base_assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void base_assert_failed(const char *cond, const char *file, int line);

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
/* Each evaluates one of its arguments twice: pass no expression with side effects. */
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* *out = a * b or a + b; false when it does not fit a size_t. */
static inline bool size_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool size_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

double base_now(void);        /* seconds on a monotonic clock */
double base_now_coarse(void); /* the same as of the last tick of the kernel's timer, 1 to 10 ms apart; a fifth of the time to read */
/* For tests, which set it before there are other threads: the time that both return. NULL: the system's. */
extern double (*base_test_clock)(void);
/* The median of count > 0 numbers, which it sorts; if count is even, the mean of the two in the middle. */
double base_median(double *x, size_t count);

#endif
