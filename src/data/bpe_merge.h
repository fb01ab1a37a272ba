/* bpe_merge.h - merging the tokens of one pre-token. */
#ifndef LS_DATA_BPE_MERGE_H
#define LS_DATA_BPE_MERGE_H

#include "data/bpe.h"

struct merge_link {
    uint32_t prev, next;
}; /* neighbors of a position that is in use */
struct candidate {
    uint32_t rank, at;
    int32_t left, right, id;
}; /* the tokens at `at` and after it can merge to id */

struct merge_work { /* scratch of one thread; zero is empty */
    struct merge_link *link;
    struct candidate *heap;
    size_t link_room, heap_room, heap_count;
};

/* Merges id[*n] in place; *n becomes the number of tokens left. */
ls_status merge_tokens(const struct bpe *b, struct merge_work *w, int32_t *id, size_t *n);
void merge_work_free(struct merge_work *w);

#endif
