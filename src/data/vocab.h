/* vocab.h - the bytes of each token, by id, and the ids by their bytes. */
#ifndef LS_DATA_VOCAB_H
#define LS_DATA_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "lockstep/status.h"

enum { VOCAB_MOST = 1 << 24 }; /* ids; larger ones are treated as damage */

struct vocab_token {
    size_t at;
    uint32_t bytes;
    bool used;
};

struct vocab {                 /* zero is the empty vocabulary */
    struct vocab_token *token; /* [count], by id; some ids may be unused */
    size_t count, token_room;
    unsigned char *text; /* all tokens' bytes, one after the other */
    size_t text_bytes, text_room;
    uint32_t *cell; /* open addressing over bytes: id + 1, 0 is free */
    size_t cells, filled;
};

/* Adds a token; ids may come in any order. findable: vocab_find finds it. LS_EFORMAT if the id is taken or outside [0, VOCAB_MOST), or if
 * another findable token has the same bytes. */
ls_status vocab_put(struct vocab *v, int64_t id, const void *bytes, size_t count, bool findable);
int32_t vocab_find(const struct vocab *v, const unsigned char *bytes, size_t count); /* -1: none */
/* Borrowed until the next vocab_put; NULL if the id is unused. */
const unsigned char *vocab_bytes(const struct vocab *v, int64_t id, size_t *count);
void vocab_free(struct vocab *v);

#endif
