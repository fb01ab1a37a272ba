/* normalize.c - see the header.
 *
 * Code points below U+0300 neither combine nor change, so text made of them (its bytes are below 0xcc) is its own
 * form C. Other text is split at the code points that stand alone; utf8proc normalizes the stretches between them, as 32-bit code points
 * that it overwrites with UTF-8.
 */
#include "data/normalize.h"

#include <utf8proc.h>
#include "data/array.h"
#include "data/utf8.h"

/* Code points that stand alone: marks with a combining class, and second halves of compositions, that were added after Unicode 9.0, up to
 * 15.0; and U+11A7, the code point before the first final jamo, which utf8proc 2.8 drops when it follows a syllable. */
static const struct {
    uint32_t first, last;
} alone[] = {
    { 0x07FD, 0x07FD },   { 0x0898, 0x089F },   { 0x08CA, 0x08D3 },   { 0x09FE, 0x09FE },   { 0x0C3C, 0x0C3C },   { 0x0D3B, 0x0D3C },
    { 0x0EBA, 0x0EBA },   { 0x11A7, 0x11A7 },   { 0x1715, 0x1715 },   { 0x1ABF, 0x1ACE },   { 0x1DF6, 0x1DFA },   { 0xA82C, 0xA82C },
    { 0x10D24, 0x10D27 }, { 0x10EAB, 0x10EAC }, { 0x10EFD, 0x10EFF }, { 0x10F46, 0x10F50 }, { 0x10F82, 0x10F85 }, { 0x11070, 0x11070 },
    { 0x1133B, 0x1133B }, { 0x1145E, 0x1145E }, { 0x11839, 0x1183A }, { 0x11930, 0x11930 }, { 0x1193D, 0x1193E }, { 0x11943, 0x11943 },
    { 0x119E0, 0x119E0 }, { 0x11A34, 0x11A34 }, { 0x11A47, 0x11A47 }, { 0x11A99, 0x11A99 }, { 0x11D42, 0x11D42 }, { 0x11D44, 0x11D45 },
    { 0x11D97, 0x11D97 }, { 0x11F41, 0x11F42 }, { 0x16FF0, 0x16FF1 }, { 0x1E08F, 0x1E08F }, { 0x1E130, 0x1E136 }, { 0x1E2AE, 0x1E2AE },
    { 0x1E2EC, 0x1E2EF }, { 0x1E4EC, 0x1E4EF },
};

static bool stands_alone(uint32_t point)
{
    size_t low = 0, high = COUNT_OF(alone);

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (point > alone[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < COUNT_OF(alone) && point >= alone[low].first;
}

static bool normalize_is_plain(const unsigned char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] >= 0xcc) return false;
    return true;
}

/* Bytes before the first code point that stands alone; *length is the length of that code point (0: there is none). */
static size_t find_alone(const unsigned char *text, size_t bytes, size_t *length)
{
    uint32_t point = 0;

    for (size_t i = 0; i < bytes; i += *length) {
        *length = utf8_decode(text + i, bytes - i, &point);
        if (stands_alone(point)) return i;
    }
    *length = 0;
    return bytes;
}

static ls_status normalize_append(struct normal *n, size_t *count, const void *text, size_t bytes)
{
    void *p = n->text;

    LS_TRY(array_grow(&p, &n->text_room, *count + bytes + 1, 1));
    n->text = p;
    if (bytes > 0) memcpy(n->text + *count, text, bytes);
    *count += bytes;
    return LS_OK;
}

static ls_status append_normal(struct normal *n, size_t *count, const unsigned char *text, size_t bytes)
{
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    utf8proc_ssize_t points = 0;
    void *p;

    if (normalize_is_plain(text, bytes)) return normalize_append(n, count, text, bytes);
    for (int pass = 0; pass < 2; pass++) { /* the first call measures, if the buffer is too small */
        points = utf8proc_decompose(text, (utf8proc_ssize_t)bytes, n->point, (utf8proc_ssize_t)n->room, options);
        if (points < 0) return ls_fail(LS_EFORMAT, "normalizing: %s", utf8proc_errmsg(points));
        p = n->point;
        LS_TRY(array_grow(&p, &n->room, (size_t)points + 1, sizeof *n->point));
        if (p == n->point) break;
        n->point = p;
    }
    utf8proc_ssize_t written = utf8proc_reencode(n->point, points, options);
    if (written < 0) return ls_fail(LS_EFORMAT, "normalizing: %s", utf8proc_errmsg(written));
    return normalize_append(n, count, n->point, (size_t)written);
}

ls_status normalize_nfc(struct normal *n, const unsigned char *text, size_t bytes, const unsigned char **out, size_t *count)
{
    size_t done = 0;

    if (normalize_is_plain(text, bytes)) {
        *out = text;
        *count = bytes;
        return LS_OK;
    }
    for (size_t at = 0, length; at < bytes; at += length) {
        size_t stretch = find_alone(text + at, bytes - at, &length);

        LS_TRY(append_normal(n, &done, text + at, stretch));
        LS_TRY(normalize_append(n, &done, text + at + stretch, length));
        at += stretch;
    }
    *out = n->text;
    *count = done;
    return LS_OK;
}

void normal_free(struct normal *n)
{
    mem_free(n->point);
    mem_free(n->text);
    *n = (struct normal){ 0 };
}
