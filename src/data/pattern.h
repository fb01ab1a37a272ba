/* pattern.h - the patterns that cut text into pieces: those with names, and those that a file brings. */
#ifndef LS_DATA_PATTERN_H
#define LS_DATA_PATTERN_H

#include <stdint.h>
#include "lockstep/status.h"

struct pattern_special {
    const char *text;
    int32_t id;
};

/* A pattern that has a name, and the special tokens of the rank file that belongs to it. */
struct pattern_named {
    const char *name, *regex;
    struct pattern_special special[6];
};

const struct pattern_named *pattern_find(const char *name);        /* "cl100k"; NULL when unknown */
const struct pattern_named *pattern_at(int i);                     /* NULL past the end */
const struct pattern_named *pattern_find_regex(const char *regex); /* NULL when it is none of these */

/* The same pattern for PCRE2, with Unicode 16.0's categories and \s as White_Space. The source is what Oniguruma
 * (tokenizer.json) and Rust's fancy-regex (tiktoken) read alike: alternation, groups, look-around, classes,
 * greedy, lazy and possessive * + ?, intervals. What they would read differently, or lockstep does not know, is
 * LS_EUNSUPPORTED by name. Free *out with mem_free. */
ls_status pattern_translate(const char *regex, char **out);

#endif
