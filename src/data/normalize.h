/* normalize.h - Unicode normalization form C; the one place that knows utf8proc. */
#ifndef LS_DATA_NORMALIZE_H
#define LS_DATA_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "lockstep/status.h"

struct normal { int32_t *point; size_t room; };  /* scratch; zero is empty */

/* The form C of text[bytes], valid UTF-8: text itself when nothing can change, else in scratch, until its next
 * use. *out and *count are set on success. */
ls_status normalize_nfc(struct normal *n, const unsigned char *text, size_t bytes,
                        const unsigned char **out, size_t *count);
void      normal_free(struct normal *n);

#endif
