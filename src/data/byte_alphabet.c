/* byte_alphabet.c - see the header. */
#include "data/byte_alphabet.h"

#include "data/utf8.h"

enum { SHIFTED_LOW = 33, SHIFTED_MIDDLE = 34, FIRST_POINT = 0x100, SHIFTED = 68 }; /* 0..32, 127..160, 173 */

static int is_shifted(unsigned char byte) { return byte < 33 || (byte > 126 && byte < 161) || byte == 173; }

uint32_t byte_alphabet_point(unsigned char byte)
{
    if (!is_shifted(byte)) return byte;
    if (byte < 33) return FIRST_POINT + byte;
    return byte == 173 ? FIRST_POINT + SHIFTED - 1 : (uint32_t)(FIRST_POINT + SHIFTED_LOW + byte - 127);
}

int byte_alphabet_byte(uint32_t point)
{
    if (point < FIRST_POINT) return is_shifted((unsigned char)point) ? -1 : (int)point;

    uint32_t n = point - FIRST_POINT;
    if (n >= SHIFTED) return -1;
    if (n < SHIFTED_LOW) return (int)n;
    return n < SHIFTED_LOW + SHIFTED_MIDDLE ? (int)(n - SHIFTED_LOW + 127) : 173;
}

unsigned char byte_alphabet_at(int i)
{
    int kept = 256 - SHIFTED;

    if (i >= kept) return (unsigned char)byte_alphabet_byte((uint32_t)(FIRST_POINT + i - kept));
    if (i < 94) return (unsigned char)(33 + i);                     /* 33..126 */
    return (unsigned char)(i < 106 ? 161 + i - 94 : 174 + i - 106); /* 161..172, 174..255 */
}

size_t byte_alphabet_write(const unsigned char *bytes, size_t count, char *text)
{
    size_t n = 0;

    for (size_t i = 0; i < count; i++) n += utf8_encode(byte_alphabet_point(bytes[i]), (unsigned char *)text + n);
    return n;
}

ptrdiff_t byte_alphabet_read(const char *text, size_t length, unsigned char *bytes)
{
    ptrdiff_t n = 0;
    uint32_t point;

    for (size_t i = 0, step; i < length; i += step) {
        step = utf8_decode((const unsigned char *)text + i, length - i, &point);
        int byte = step ? byte_alphabet_byte(point) : -1;
        if (byte < 0) return -1;
        bytes[n++] = (unsigned char)byte;
    }
    return n;
}
