/* text.c - see text.h. The distance is the restricted Damerau-Levenshtein distance (optimal string alignment). */
#include "base/text.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"

enum { FIRST_ROOM = 256, LONGEST_NAME = 64 };

/* Makes room for `bytes` more and a NUL. */
static bool reserve(struct text *t, size_t bytes)
{
    size_t needed, room = MAX(t->room, FIRST_ROOM);

    if (t->failed) return false;
    if (!size_add(t->bytes, bytes, &needed) || needed > SIZE_MAX / 4) {
        ls_fail(LS_ENOMEM, "out of memory: a text of %zu bytes and %zu more", t->bytes, bytes);
        t->failed = true;
        return false;
    }
    while (room <= needed) room *= 2;
    if (room == t->room) return true;
    char *grown = mem_resize(t->data, room);
    if (!grown) {
        t->failed = true;
        return false;
    }
    t->data = grown;
    t->room = room;
    return true;
}

void text_add(struct text *t, const char *data, size_t bytes)
{
    if (!reserve(t, bytes)) return;
    memcpy(t->data + t->bytes, data, bytes);
    t->bytes += bytes;
    t->data[t->bytes] = '\0';
}

void text_add_xml(struct text *t, const char *word)
{
    for (; *word; word++) {
        if (*word == '&')
            text_put(t, "&amp;");
        else if (*word == '<')
            text_put(t, "&lt;");
        else if (*word == '>')
            text_put(t, "&gt;");
        else if ((unsigned char)*word >= ' ')
            text_add(t, word, 1);
    }
}

void text_put(struct text *t, const char *fmt, ...)
{
    va_list args, again;

    va_start(args, fmt);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, fmt, args);
    if (length >= 0 && reserve(t, (size_t)length)) {
        vsnprintf(t->data + t->bytes, (size_t)length + 1, fmt, again);
        t->bytes += (size_t)length;
    }
    va_end(again);
    va_end(args);
}

ls_status text_status(const struct text *t) { return t->failed ? LS_ENOMEM : LS_OK; }

void text_free(struct text *t)
{
    mem_free(t->data);
    *t = (struct text){ 0 };
}

char *text_bytes(char out[16], size_t bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double value = (double)bytes;
    size_t unit = 0;

    for (; value >= 999.5 && unit + 1 < COUNT_OF(units); unit++) value /= 1024;
    int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(out, 16, "%.*f %s", decimals, value, units[unit]);
    return out;
}

char *text_size(char out[32], size_t bytes)
{
    static const char *const units[] = { "", "KiB", "MiB", "GiB" };
    size_t unit = 0;

    while (bytes > 0 && bytes % 1024 == 0 && unit + 1 < COUNT_OF(units)) bytes /= 1024, unit++;
    snprintf(out, 32, "%zu%s", bytes, units[unit]);
    return out;
}

char *text_count(char out[32], int64_t count)
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)(count < 0 ? -(uint64_t)count : (uint64_t)count));
    char *to = out;

    if (count < 0) *to++ = '-';
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return out;
}

char *text_real(char out[TEXT_NUMBER_ROOM], double value)
{
    ASSERT(isfinite(value));
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, TEXT_NUMBER_ROOM, "%.*g", digits, value);
        if (strtod(out, NULL) == value) break;
    }
    for (char *c = out; *c; c++)
        if (!strchr("+-0123456789e", *c)) *c = '.'; /* the locale's point */
    if (!strpbrk(out, ".e")) strcat(out, ".0");
    return out;
}

bool text_read_int(const char *text, int64_t *out)
{
    size_t sign = strspn(text, "+-") == 1, digits = strspn(text + sign, "0123456789");

    if (digits == 0 || text[sign + digits] != '\0') return false;
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno != 0) return false;
    *out = value;
    return true;
}

/* The length of a decimal number at the start of text; 0: none. */
static size_t number_length(const char *text)
{
    size_t at = text[0] == '+' || text[0] == '-', whole = strspn(text + at, "0123456789"), part = 0;

    at += whole;
    if (text[at] == '.') part = strspn(text + at + 1, "0123456789"), at += 1 + part;
    if (whole + part == 0) return 0;
    if (text[at] != 'e' && text[at] != 'E') return at;
    size_t sign = text[at + 1] == '+' || text[at + 1] == '-', power = strspn(text + at + 1 + sign, "0123456789");
    return power ? at + 1 + sign + power : at;
}

/* strtod() after the locale: when it stops at the point, the locale has another one. */
static double read_number(const char *text, size_t length)
{
    char copy[512], *end, *point;

    snprintf(copy, sizeof copy, "%.*s", (int)length, text);
    double value = strtod(copy, &end);
    if (*end == '\0' || !(point = strchr(copy, '.'))) return value;
    *point = ',';
    return strtod(copy, NULL);
}

bool text_read_real(const char *text, double *out)
{
    size_t length = number_length(text);

    if (length == 0 || length > 500 || text[length] != '\0') return false;
    double value = read_number(text, length);
    if (!isfinite(value)) return false;
    *out = value;
    return true;
}

static double bytes_unit(const char *unit)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {
        { "", 1 }, { "B", 1 }, { "KB", 1e3 }, { "MB", 1e6 }, { "GB", 1e9 }, { "KiB", 1024 }, { "MiB", 1048576 }, { "GiB", 1073741824 },
    };

    for (size_t i = 0; i < COUNT_OF(units); i++)
        if (strcmp(unit, units[i].name) == 0) return units[i].bytes;
    return 0;
}

bool text_read_bytes(const char *text, size_t *out)
{
    size_t length = number_length(text);
    const char *unit = text + length;

    int64_t plain;

    if (length == 0 || length > 500 || text[0] == '-') return false;
    if (text_read_int(text, &plain)) {
        *out = (size_t)plain;
        return true;
    }
    if (*unit == ' ') unit++;
    double value = read_number(text, length) * bytes_unit(unit), whole = floor(value);
    if (round(value) - value <= 4 * DBL_EPSILON * value) whole = round(value); /* a rounded product, not a fraction of a byte */
    if (bytes_unit(unit) == 0 || !(value < 0x1p63) || (bytes_unit(unit) == 1 && value != whole)) return false;
    if (value > 0 && whole == 0) return false; /* 0 often means "no limit", which was not requested */
    *out = (size_t)whole;
    return true;
}

size_t text_utf8(const char *text, uint32_t *code)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *s = (const unsigned char *)text;
    size_t length = s[0] < 0x80 ? 1 : s[0] < 0xc0 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf8 ? 4 : 0;
    uint32_t value = length == 1 ? s[0] : s[0] & (0x7fu >> length);

    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        value = value << 6 | (s[i] & 0x3f);
    }
    if (length == 0 || value < least[length] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return 0;
    if (code) *code = value;
    return length;
}

size_t text_distance(const char *a, const char *b)
{
    size_t rows[3][LONGEST_NAME + 1], m = strnlen(a, LONGEST_NAME), n = strnlen(b, LONGEST_NAME);
    size_t *before = rows[0], *last = rows[1], *now = rows[2];

    for (size_t j = 0; j <= n; j++) last[j] = j;
    for (size_t i = 1; i <= m; i++) {
        now[0] = i;
        for (size_t j = 1; j <= n; j++) {
            now[j] = MIN(MIN(last[j], now[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = MIN(now[j], before[j - 2] + 1);
        }
        size_t *spare = before;
        before = last, last = now, now = spare;
    }
    return last[n];
}
