/* total_list.h - many totals by one launch: what total_add() makes of each, added to its sums in their order. */
#ifndef LS_KERNELS_CUDA_TOTAL_LIST_H
#define LS_KERNELS_CUDA_TOTAL_LIST_H

#include "kernels/cuda/total.h"

enum { TOTALS = 120 }; /* items of one launch: they fit into the 4 KB of arguments that every GPU accepts */

struct total_item {
    global<double> parts, sums; /* sums: added to */
    unsigned blocks;
    bool follows; /* sums are those of the item before it */
};

struct total_list {
    int n, items; /* n: number of sums of each item */
    struct total_item of[TOTALS];
};
LAUNCH_ARGUMENTS_FIT(struct total_list);

/* A block an item: adds to the sums or, where items may share them, leaves its own in the place of the first parts. */
static __global__ void __launch_bounds__(TOTAL_THREADS) total_each(const __grid_constant__ struct total_list t)
{
    unsigned i = blockIdx.x;

    for (int k = 0; k < t.n; k++) {
        double sum = total_parts(t.of[i].parts, t.n, k, t.of[i].blocks);

        if (threadIdx.x) continue;
        if (t.items == 1)
            t.of[i].sums[k] += sum;
        else if (t.of[i].blocks)
            t.of[i].parts[k] = sum;
    }
}

/* A thread an item, or several that share sums. */
static __global__ void __launch_bounds__(TOTAL_THREADS) total_add_each(const __grid_constant__ struct total_list t)
{
    int i = (int)threadIdx.x;

    if (i >= t.items || t.of[i].follows) return;
    for (int k = 0; k < t.n; k++) {
        double sum = t.of[i].sums[k];

        for (int j = i; j == i || (j < t.items && t.of[j].follows); j++)
            if (t.of[j].blocks) sum += t.of[j].parts[k];
        t.of[i].sums[k] = sum;
    }
}

/* before: the sums of the item before it. */
static inline void total_list_add(struct total_list *t, void *parts, void *sums, const void *before, unsigned blocks)
{
    struct total_item *x = &t->of[t->items];

    x->parts = global_of<double>(parts);
    x->sums = global_of<double>(sums);
    x->blocks = blocks;
    x->follows = t->items && sums == before;
    t->items++;
}

static inline void total_list_launch(const struct call *c, const struct total_list *t)
{
    launch(c, KERNEL(total_each), (unsigned)t->items, TOTAL_THREADS, 0, *t);
    if (t->items > 1) launch(c, KERNEL(total_add_each), 1, TOTAL_THREADS, 0, *t);
}

#endif
