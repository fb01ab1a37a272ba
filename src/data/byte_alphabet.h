/* byte_alphabet.h - GPT-2's mapping of bytes to printable characters.
 *
 * Bytes 33..126, 161..172 and 174..255 are written as the code point of the same number; the other 68, in order
 * of the byte, as U+0100, U+0101, ... U+0143. Files of tokens (tokenizer.json) are written in this alphabet.
 */
#ifndef LS_DATA_BYTE_ALPHABET_H
#define LS_DATA_BYTE_ALPHABET_H

#include <stddef.h>
#include <stdint.h>

uint32_t byte_alphabet_point(unsigned char byte);
int byte_alphabet_byte(uint32_t point); /* 0..255; -1 if the point is not in the alphabet */
/* Byte number i in the order of code points, '!' first, which is the order of ids in GPT-2. */
unsigned char byte_alphabet_at(int i);

/* Writes bytes[count] as text, at most 2 * count bytes, and returns the length; no terminator. */
size_t byte_alphabet_write(const unsigned char *bytes, size_t count, char *text);
/* The inverse, for valid UTF-8 text: at most `length` bytes. -1 if a character is not in the alphabet. */
ptrdiff_t byte_alphabet_read(const char *text, size_t length, unsigned char *bytes);

#endif
