/* shm_move.h - the loops of the native collectives over one chunk, called by shm_collectives.c. All return the bytes that they moved. */
#ifndef LS_COMM_TRANSPORTS_SHM_SHM_MOVE_H
#define LS_COMM_TRANSPORTS_SHM_SHM_MOVE_H

#include "comm/transports/shm/shm_link.h"

/* Where block i starts: at[i], or i blocks of count. */
static inline size_t move_border(const size_t *at, size_t count, int i) { return at ? at[i] : count * (size_t)i; }
/* The buffer that others read. */
const void *move_source(const struct request *r);
/* The most elements that one rank sums in a direct all-reduce. */
size_t move_longest_share(size_t count, int n);
/* The most elements of a block of so many that one rank of a pair swaps. */
size_t move_longest_half(size_t count);
/* Makes non-temporal stores visible to every rank that sees a later store. */
void move_fence(void);

/* k: number of the chunk in the call; p: its number in the link, which says where its stage is. */
size_t move_fill(struct link *l, const struct request *r, uint64_t k, uint64_t p);       /* send -> own stage */
size_t move_sum_staged(struct link *l, const struct request *r, uint64_t k, uint64_t p); /* stages -> own stage, own part */
size_t move_take(struct link *l, const struct request *r, uint64_t k, uint64_t p);       /* posts, buffers or stages -> recv */
size_t move_sum_direct(struct link *l, const struct request *r, uint64_t k);             /* all send -> all recv, own part */
size_t move_swap(struct link *l, const struct request *r, uint64_t k);                   /* blocks of two recv, own half */
size_t move_sum_inline(struct link *l, const struct request *r);                         /* posts -> recv */

#endif
