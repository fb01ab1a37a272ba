/* added.h - tokens that are searched verbatim in the text before it is split into pre-tokens. */
#ifndef LS_DATA_ADDED_H
#define LS_DATA_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "lockstep/status.h"

struct added_token {
    unsigned char *text;
    size_t bytes;
    int32_t id;
    bool special;
};

struct added {                 /* zero is empty */
    struct added_token *token; /* [count] */
    size_t count, room;
    bool starts[256]; /* some token begins with this byte */
};

ls_status added_put(struct added *a, int32_t id, const unsigned char *text, size_t bytes, bool special);
/* The first token in text[bytes] at or after from, the longest if several begin at one position; *at is the position. NULL if there is
 * none. Special tokens are skipped unless requested. */
const struct added_token *added_next(const struct added *a, const unsigned char *text, size_t bytes, size_t from, bool specials,
                                     size_t *at);
int32_t added_find(const struct added *a, const unsigned char *text, size_t bytes); /* id; -1: none */
void added_free(struct added *a);

#endif
