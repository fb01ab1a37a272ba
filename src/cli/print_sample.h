/* print_sample.h - prints text that a model generates on standard output, for `generate` and at the end of `train`. */
#ifndef LS_CLI_PRINT_SAMPLE_H
#define LS_CLI_PRINT_SAMPLE_H

#include <stdbool.h>
#include "train/run/generate.h"

/* Encodes the prompt, preceded by the token that begins a text if the tokenizer has one. Free *ids with mem_free. */
ls_status print_encode(const struct trained *t, const char *prompt, int32_t **ids, size_t *count);
/* Prints the prompt's text, the text that the model generates after it, token by token, and a line feed. */
ls_status print_sample(const struct trained *t, const int32_t *ids, size_t n, size_t count, const struct sampling *s);

#endif
