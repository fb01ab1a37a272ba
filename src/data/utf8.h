/* utf8.h - UTF-8 (RFC 3629): one to four bytes per code point, no overlong forms, no surrogates, at most U+10FFFF. */
#ifndef LS_DATA_UTF8_H
#define LS_DATA_UTF8_H

#include <stddef.h>
#include <stdint.h>
#include "lockstep/status.h"

/* Bytes of the sequence at text[bytes], 1..4, with *point set; 0 if there is no valid one. bytes >= 1. */
size_t utf8_decode(const unsigned char *text, size_t bytes, uint32_t *point);
/* Writes 1..4 bytes and returns how many; point is a Unicode scalar value. */
size_t utf8_encode(uint32_t point, unsigned char out[4]);
/* Offset of the first byte that belongs to no valid sequence; `bytes` if there is none. */
size_t utf8_valid(const unsigned char *text, size_t bytes);
/* LS_EFORMAT with what, offset, line and byte, unless all of it is valid. */
ls_status utf8_check(const unsigned char *text, size_t bytes, const char *what);

#endif
