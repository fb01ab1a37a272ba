/* normalize.h - Unicode normalization form C, as in the tokenizers package; the only place that uses utf8proc.
 *
 * That package's form C is that of Unicode 9.0: it treats later marks as plain characters, which neither move nor combine. A tokenizer's
 * ids depend on that, so it is the same here, although utf8proc 2.8 implements Unicode 15.0.
 */
#ifndef LS_DATA_NORMALIZE_H
#define LS_DATA_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "lockstep/status.h"

struct normal {          /* scratch; zero is empty */
    int32_t *point;      /* code points of the current stretch */
    unsigned char *text; /* the result */
    size_t room, text_room;
};

/* The form C of text[bytes], valid UTF-8: text itself if nothing can change, else in scratch, valid until its next use. *out and *count are
 * set on success. */
ls_status normalize_nfc(struct normal *n, const unsigned char *text, size_t bytes, const unsigned char **out, size_t *count);
void normal_free(struct normal *n);

#endif
