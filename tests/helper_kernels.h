/* helper_kernels.h - calls of the kernel table: operands of every shape class for every op, runs with guarded buffers.
 *
 * Each operand has its own buffer with guard bytes on both sides; guards and the gaps of strided views are 0xff,
 * which is NaN in every floating-point type. Outputs that are written in full start as NaN too, "+=" outputs as numbers.
 */
#ifndef LS_TESTS_HELPER_KERNELS_H
#define LS_TESTS_HELPER_KERNELS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "kernels/kernel.h"

/* The bytes of one operand, including guards. mapped: bytes of the mapping, including the inaccessible page. */
struct block { unsigned char *base; size_t bytes, mapped; };

struct kernel_case {
    char         name[160];
    struct call  call;                                  /* scratch and state unset */
    struct block in[CALL_OPERANDS], out[CALL_OPERANDS];
};

typedef void kernel_case_fn(void *ctx, struct kernel_case *c);

/* Calls fn with every case of op; the operands live during the call. The number of cases. */
size_t kernel_cases(enum op op, kernel_case_fn *fn, void *ctx);

/* Runs c with scratch of the asked size, filled with `fill`, between guards that must stay. */
void kernel_run(const struct kernel *k, struct call *c, unsigned char fill, const char *name);

/* Called by kernel_run() for entries of another device than the cpu, if they are set, before and after the entry and instead of it, from
 * prepare() to release(): c has its scratch. */
struct kernel_observer {
    void (*run)(const struct kernel *k, const struct call *c, size_t scratch, const char *name);
    void (*before)(const struct call *c, size_t scratch);
    void (*after)(const char *name);
};
extern struct kernel_observer kernel_observer;

/* The reference's result of a case, and an entry's compared with it: within the op's tolerance, the same bits a second time with other
 * scratch contents, only bytes of the output written, and the in-place forms that the op allows. */
struct kernel_check *kernel_check_new(struct kernel_case *c);
void                 kernel_check_entry(struct kernel_check *k, const struct kernel *entry, const char *name);
void                 kernel_check_free(struct kernel_check *k);

/* Fails unless got is want within the op's tolerance: both views have the same shape and type. */
void kernel_compare(const struct call *c, int out, const struct view *got, const struct view *want, const char *name);

/* For the case tables: a block for a view of these sizes. layout 0: contiguous; 1: dims 1 and 2 swapped in memory;
 * 2: gaps between rows; 3: every second element. The block's elements are left 0xff. */
enum { LAYOUTS = 4 };
/* On a cache line; one element past it; ending directly before an inaccessible page. */
enum placement { PLACED_ALIGNED, PLACED_MISALIGNED, PLACED_AT_EDGE, PLACEMENTS };
struct view block_view(struct block *b, ls_dtype type, int ndim, const size_t *size, int layout, enum placement where);
void        block_free(struct block *b);
double      element_get(const struct view *v, size_t i);
void        element_put(const struct view *v, size_t i, double x);
void        elements_put(const struct view *v, const double *x); /* all of them, in row-major order */

#endif
