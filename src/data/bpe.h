/* bpe.h - byte-level byte pair encoding: the merge table and its use on one pre-token.
 *
 * A pre-token starts as one token per byte. Among all pairs of neighbors that have a merge, the one of lowest rank, leftmost first, is
 * replaced by its result, until no pair has one. With ignore_merges, a pre-token that is a token is that token without merging (tiktoken;
 * Hugging Face's ignore_merges).
 */
#ifndef LS_DATA_BPE_H
#define LS_DATA_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "data/array.h"
#include "data/vocab.h"

struct merge {
    uint64_t pair;
    uint32_t rank;
    int32_t id;
}; /* pair = left << 32 | right; id < 0: a free cell */

struct bpe { /* zero is empty */
    struct vocab vocab;
    struct merge *merge; /* open addressing */
    size_t cells, merges;
    int32_t byte_id[256]; /* token of a single byte; -1: none. Set by bpe_set_bytes */
    bool ignore_merges;
};

/* Adds left right -> id. A pair that is already there keeps its first rank. */
ls_status bpe_put_merge(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);
const struct merge *bpe_find_merge(const struct bpe *b, int32_t left, int32_t right); /* NULL: none */
void bpe_set_bytes(struct bpe *b);                                                    /* byte_id from the vocabulary */
void bpe_free(struct bpe *b);

/* Per-thread state: scratch, and a direct-mapped cache of short pre-tokens, sized for a text of text_bytes. */
struct bpe_work;
ls_status bpe_work_new(size_t text_bytes, struct bpe_work **out);
void bpe_work_free(struct bpe_work **w);

/* Appends the tokens of a pre-token to out. LS_EFORMAT if a byte of it has no token. */
ls_status bpe_encode(const struct bpe *b, struct bpe_work *w, const unsigned char *pretoken, size_t bytes, struct ids *out);

#endif
