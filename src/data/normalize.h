/* normalize.h - Unicode normalization form C, as the tokenizers package does it; the one place that knows utf8proc.
 *
 * That package's form C is of Unicode 9.0: marks that came later are plain characters to it, which neither move nor
 * combine. A tokenizer's ids follow from that, so it is so here, though utf8proc 2.8 knows Unicode 15.0.
 */
#ifndef LS_DATA_NORMALIZE_H
#define LS_DATA_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "lockstep/status.h"

struct normal {          /* scratch; zero is empty */
    int32_t *point;      /* code points of the stretch at hand */
    unsigned char *text; /* the result */
    size_t room, text_room;
};

/* The form C of text[bytes], valid UTF-8: text itself when nothing can change, else in scratch, until its next
 * use. *out and *count are set on success. */
ls_status normalize_nfc(struct normal *n, const unsigned char *text, size_t bytes, const unsigned char **out, size_t *count);
void normal_free(struct normal *n);

#endif
