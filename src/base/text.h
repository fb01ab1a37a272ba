/* text.h - strings: a growing buffer, numbers for display, numbers that read back exactly, the edit distance of two names. */
#ifndef LS_BASE_TEXT_H
#define LS_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "lockstep/status.h"

/* A text under construction; zeroed is empty. It always ends in NUL (data is NULL before the first byte). */
struct text {
    char *data;
    size_t bytes, room;
    bool failed;
};

void text_add(struct text *t, const char *data, size_t bytes);
void text_add_xml(struct text *t, const char *word); /* between tags; without control characters */
void text_put(struct text *t, const char *fmt, ...) LS_PRINTF(2, 3);
ls_status text_status(const struct text *t); /* LS_ENOMEM if any call above ran out of memory */
void text_free(struct text *t);

enum { TEXT_NUMBER_ROOM = 40 };

/* "1.50 GiB", "17 B": three digits and a unit of 1024s. Returns out. */
char *text_bytes(char out[16], size_t bytes);
/* Exact, for text_read_bytes(): "25MiB", "4097". Returns out. */
char *text_size(char out[32], size_t bytes);
/* "1,234,567". Returns out. */
char *text_count(char out[32], int64_t count);
/* The shortest of 15, 16, 17 digits that reads back to the same finite value; a point, whatever the locale;
 * never mistakable for an integer ("1.0", "-0.0", "1e+22"). Returns out. */
char *text_real(char out[TEXT_NUMBER_ROOM], double value);

/* These read the whole string; false, and nothing written, if it is not exactly such a number or does not fit. */
bool text_read_int(const char *text, int64_t *out); /* [+-]digits */
bool text_read_real(const char *text, double *out); /* decimal only; a point, whatever the locale; finite */
/* "64", "1.5 GiB", "4KiB", "10 MB". With a unit above bytes, "9.1MiB" is rounded down to whole bytes, but not to 0. */
bool text_read_bytes(const char *text, size_t *out);

/* Bytes of the UTF-8 sequence at s, with its code point in *code unless NULL; 0 if it is not valid (overlong forms, surrogates and values
 * above U+10FFFF are not). NUL is a sequence of one. */
size_t text_utf8(const char *s, uint32_t *code);

/* Number of insertions, deletions, substitutions and swaps of neighbors that turn a into b. */
size_t text_distance(const char *a, const char *b);

#endif
