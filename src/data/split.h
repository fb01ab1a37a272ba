/* split.h - a compiled pattern, and its matches in a text one after the other; the one place that knows PCRE2. */
#ifndef LS_DATA_SPLIT_H
#define LS_DATA_SPLIT_H

#include <stddef.h>
#include "lockstep/status.h"

struct split;      /* a pattern; shared by threads */
struct split_work; /* what one thread needs to match */

/* regex as in pattern_translate(). */
ls_status split_compile(const char *regex, struct split **out);
void split_free(struct split **s);

ls_status split_work_new(struct split_work **out);
void split_work_free(struct split_work **w);

/* The first match that is not empty at or after `from`: text [*begin, *end); both are `bytes` when there is none.
 * The text is valid UTF-8. */
ls_status split_next(const struct split *s, struct split_work *w, const unsigned char *text, size_t bytes, size_t from, size_t *begin,
                     size_t *end);

#endif
