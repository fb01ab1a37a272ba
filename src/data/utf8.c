/* utf8.c - reading, writing and checking UTF-8. */
#include "data/utf8.h"

#include <string.h>
#include "base/pulse.h"

enum { PULSE_BYTES = 1 << 20 };

static size_t sequence_bytes(unsigned char lead)
{
    if (lead < 0x80) return 1;
    if (lead < 0xc2) return 0; /* a continuation, or an overlong form of ASCII */
    if (lead < 0xe0) return 2;
    if (lead < 0xf0) return 3;
    return lead < 0xf5 ? 4 : 0;
}

size_t utf8_decode(const unsigned char *text, size_t bytes, uint32_t *point)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    size_t n = sequence_bytes(text[0]);

    if (n == 0 || n > bytes) return 0;
    uint32_t c = n == 1 ? text[0] : text[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (text[i] & 0x3f);
    }
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    *point = c;
    return n;
}

size_t utf8_encode(uint32_t c, unsigned char out[4])
{
    if (c < 0x80) {
        out[0] = (unsigned char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (unsigned char)(0x80 | (c & 0x3f));
    out[0] = (unsigned char)(0xf00u >> n | c);
    return n;
}

size_t utf8_valid(const unsigned char *text, size_t bytes)
{
    uint32_t point;
    uint64_t eight;
    size_t next = 0;

    for (size_t i = 0, n; i < bytes; i += n) {
        if (i >= next) {
            pulse();
            next = i + PULSE_BYTES;
        }
        n = 8;
        if (bytes - i >= n && (memcpy(&eight, text + i, n), (eight & 0x8080808080808080u) == 0)) continue;
        n = utf8_decode(text + i, bytes - i, &point);
        if (n == 0) return i;
    }
    return bytes;
}

ls_status utf8_check(const unsigned char *text, size_t bytes, const char *what)
{
    size_t at = utf8_valid(text, bytes), line = 1;

    if (at == bytes) return LS_OK;
    for (size_t i = 0; i < at; i++) line += text[i] == '\n';
    return ls_fail(LS_EFORMAT, "%s: not UTF-8: byte 0x%02x at offset %zu, line %zu", what, text[at], at, line);
}
