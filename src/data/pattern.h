/* pattern.h - the patterns that split text into pre-tokens: named ones, and those in a tokenizer file. */
#ifndef LS_DATA_PATTERN_H
#define LS_DATA_PATTERN_H

#include <stdint.h>
#include "lockstep/status.h"

struct pattern_special {
    const char *text;
    int32_t id;
};

/* A named pattern, and the special tokens of its rank file. */
struct pattern_named {
    const char *name, *regex;
    struct pattern_special special[6];
};

const struct pattern_named *pattern_find(const char *name);        /* "cl100k"; NULL if unknown */
const struct pattern_named *pattern_at(int i);                     /* NULL past the end */
const struct pattern_named *pattern_find_regex(const char *regex); /* NULL if it is not one of these */

/* The same pattern for PCRE2, with Unicode 16.0's categories and \s as White_Space. The source may use what Oniguruma (tokenizer.json) and
 * Rust's fancy-regex (tiktoken) interpret alike: alternation, groups, look-around, classes, greedy, lazy and possessive * + ?, intervals.
 * Anything that they interpret differently, or that lockstep does not support, is LS_EUNSUPPORTED by name. Free *out with mem_free. */
ls_status pattern_translate(const char *regex, char **out);

#endif
