/* train.h - the parts of learning BPE: counted words, and pairs with their occurrences. */
#ifndef LS_DATA_TRAIN_H
#define LS_DATA_TRAIN_H

#include "data/tokenizer.h"

/* A distinct pre-token of the text: symbols [at, at + length) of the list of all words, seen `count` times. */
struct word {
    size_t at;
    uint32_t length;
    int64_t count;
};

struct words {
    struct word *word; /* [count], in order of first appearance */
    size_t count, room;
    int32_t *symbol; /* ids; those of a word shrink in place */
    size_t symbols, symbol_room;
};

/* Splits text[bytes] with the tokenizer's one stage and counts the pre-tokens; symbols are ids of single bytes. */
ls_status words_count(struct words *w, const ls_tokenizer *t, const unsigned char *text, size_t bytes);
void words_free(struct words *w);

/* Makes merges until the vocabulary has `vocab` tokens or no pair is left; adds them to t. Free *out with mem_free. */
ls_status merges_learn(struct words *w, ls_tokenizer *t, size_t vocab, struct merge_pair **out, size_t *count);

#endif
