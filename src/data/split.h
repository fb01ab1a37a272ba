/* split.h - a compiled pattern, and its consecutive matches in a text; the only place that uses PCRE2. */
#ifndef LS_DATA_SPLIT_H
#define LS_DATA_SPLIT_H

#include <stddef.h>
#include "lockstep/status.h"

struct split;      /* a pattern; shared by threads */
struct split_work; /* per-thread state for matching */

/* regex as in pattern_translate(). */
ls_status split_compile(const char *regex, struct split **out);
void split_free(struct split **s);

ls_status split_work_new(struct split_work **out);
void split_work_free(struct split_work **w);

/* The first non-empty match at or after `from`: text [*begin, *end); both are `bytes` if there is none. The text must be valid UTF-8. */
ls_status split_next(const struct split *s, struct split_work *w, const unsigned char *text, size_t bytes, size_t from, size_t *begin,
                     size_t *end);

#endif
