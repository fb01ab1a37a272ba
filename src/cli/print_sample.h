/* print_sample.h - text from a model onto standard output, for `generate` and for the end of `train`. */
#ifndef LS_CLI_PRINT_SAMPLE_H
#define LS_CLI_PRINT_SAMPLE_H

#include <stdbool.h>
#include "train/run/generate.h"

/* Encodes the prompt; an empty one becomes the token that begins a text. Free *ids with mem_free. */
ls_status print_encode(const struct trained *t, const char *prompt, int32_t **ids, size_t *count);
/* Prints the prompt's text and what the model makes of it, token by token, and a line feed. */
ls_status print_sample(const struct trained *t, const int32_t *ids, size_t n, size_t count, const struct sampling *s);

#endif
