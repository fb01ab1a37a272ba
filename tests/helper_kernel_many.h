/* helper_kernel_many.h - many calls of an entry of the kernel table at once, compared with the same calls one by one. */
#ifndef LS_TESTS_HELPER_KERNEL_MANY_H
#define LS_TESTS_HELPER_KERNEL_MANY_H

#include "helper_kernels.h"

/* The device of the operands, and how calls run on it. */
struct many_place {
    void *(*copy)(const void *bytes, size_t n, size_t grain); /* bytes NULL: any content. grain: the size of its elements */
    void (*read)(void *host, const void *p, size_t n);
    void (*drop)(void *p);
    void (*run)(const struct kernel *k, const struct call *c);
    void (*run_many)(const struct kernel *k, const struct call *const *c, int n);
};

/* k, which has run_many(), gives the bits of single calls, for so many calls of small cases with their types, sizes and attributes.
 * Some consecutive calls differ only in their parameters and weight decay; neighbors share a sum if the op has one for all. */
void kernel_check_many(const struct kernel *k, const struct many_place *place, int calls);

#endif
