/* pattern.c - translates the common subset of Oniguruma and fancy-regex to PCRE2.
 *
 * One pass from left to right. Copied as they are: literals, |, groups, quantifiers. Rewritten: \s \S \d \p \P \v \u.
 * Rejected, because engines interpret them differently: ^ and $ (line or text), an interval followed by + or ? (possessive or repeated
 * again), nested classes and &&, \w \b, upper and lower case categories under (?i:.
 */
#include "data/pattern.h"

#include <ctype.h>
#include <stdio.h>
#include "data/array.h"
#include "data/unicode.h"
#include "data/utf8.h"

enum { DEPTH_MOST = 100, REGEX_MOST = 16384 };

struct translation {
    const char *at, *regex; /* the rest, and the whole */
    char *out;
    size_t bytes, room;
    bool in_class;
    int depth, blind_depth; /* open groups; the outermost open (?i: counted so, 0: none */
};

static ls_status pattern_put(struct translation *t, const char *text, size_t bytes)
{
    void *p = t->out;

    LS_TRY(array_grow(&p, &t->room, t->bytes + bytes + 1, 1));
    t->out = p;
    memcpy(t->out + t->bytes, text, bytes);
    t->bytes += bytes;
    t->out[t->bytes] = '\0';
    return LS_OK;
}

static ls_status put_class(struct translation *t, bool negated, const char *members)
{
    if (t->in_class) return pattern_put(t, members, strlen(members));
    LS_TRY(pattern_put(t, negated ? "[^" : "[", negated ? 2 : 1));
    LS_TRY(pattern_put(t, members, strlen(members)));
    return pattern_put(t, "]", 1);
}

static ls_status pattern_refuse(const struct translation *t, int bytes, const char *why)
{
    return ls_fail(LS_EUNSUPPORTED, "pattern '%.60s%s': '%.*s' at offset %td is not supported: %s", t->regex,
                   strlen(t->regex) > 60 ? "..." : "", bytes, t->at, t->at - t->regex, why);
}

static ls_status translate_category(struct translation *t) /* at \p{...} or \P{...} */
{
    char name[8], members[UNICODE_CLASS_ROOM];
    bool negated = t->at[1] == 'P';
    size_t length = t->at[2] == '{' ? strcspn(t->at + 3, "}") : 0;

    if (length == 0 || length >= sizeof name || t->at[3 + length] != '}') return pattern_refuse(t, 2, "expected {category}");
    memcpy(name, t->at + 3, length);
    name[length] = '\0';
    if (!unicode_class(name, members, sizeof members))
        return pattern_refuse(t, (int)length + 4, "supported categories are L M N P S Z and their subcategories, except those of M");
    if (negated && t->in_class) return pattern_refuse(t, (int)length + 4, "\\P inside a class");
    if (t->blind_depth && (strcmp(name, "Lu") == 0 || strcmp(name, "Ll") == 0 || strcmp(name, "Lt") == 0))
        return pattern_refuse(t, (int)length + 4, "case under (?i:");
    t->at += length + 4;
    return put_class(t, negated, members);
}

/* \x41, \x{41} and \u0041, all as \x{...}. */
static ls_status translate_number(struct translation *t)
{
    char text[24];
    bool braces = t->at[1] == 'x' && t->at[2] == '{';
    const char *digits = t->at + 2 + braces;
    size_t length = strspn(digits, "0123456789abcdefABCDEF"), most = braces ? 6 : t->at[1] == 'u' ? 4 : 2;
    unsigned point;

    if (!braces) length = MIN(length, most);
    if (length == 0 || length > most || (!braces && length < most) || (braces && digits[length] != '}'))
        return pattern_refuse(t, 2, "expected hexadecimal digits");
    snprintf(text, sizeof text, "%.*s", (int)length, digits);
    sscanf(text, "%x", &point);
    if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000) || (t->at[1] == 'x' && !braces && point > 0x7f))
        return pattern_refuse(t, 2, "not a code point");
    t->at = digits + length + braces;
    return pattern_put(t, text, (size_t)snprintf(text, sizeof text, "\\x{%x}", point));
}

static ls_status translate_escape(struct translation *t)
{
    char c = t->at[1], members[UNICODE_CLASS_ROOM];

    switch (c) {
    case 'p':
    case 'P': return translate_category(t);
    case 'x':
    case 'u': return translate_number(t);
    case 's': t->at += 2; return put_class(t, false, UNICODE_SPACE);
    case 'S': t->at += 2; return put_class(t, false, UNICODE_NOT_SPACE);
    case 'd':
        t->at += 2;
        unicode_class("Nd", members, sizeof members);
        return put_class(t, false, members);
    case 'v': t->at += 2; return pattern_put(t, "\\x{b}", 5);
    case '\0': return pattern_refuse(t, 1, "nothing follows");
    default:
        if ((unsigned char)c >= 0x80 || (isalnum((unsigned char)c) && !strchr("rntfae", c))) return pattern_refuse(t, 2, "unknown here");
        t->at += 2;
        return pattern_put(t, t->at - 2, 2);
    }
}

static ls_status translate_in_class(struct translation *t)
{
    if (*t->at == '[') return pattern_refuse(t, 1, "a class inside a class");
    if (t->at[0] == '&' && t->at[1] == '&') return pattern_refuse(t, 2, "an intersection of classes");
    if (*t->at == ']') t->in_class = false;
    return pattern_put(t, t->at++, 1);
}

static ls_status open_class(struct translation *t)
{
    size_t n = t->at[1] == '^' ? 2 : 1;

    if (t->at[n] == ']') return pattern_refuse(t, (int)n + 1, "an empty class");
    t->in_class = true;
    t->at += n;
    return pattern_put(t, t->at - n, n);
}

static ls_status open_group(struct translation *t)
{
    static const char *const known[] = { "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:" };
    size_t n = 0;

    if (t->at[1] == '*') return pattern_refuse(t, 2, "a verb");
    if (t->at[1] != '?') n = 1;
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (strncmp(t->at, known[i], strlen(known[i])) == 0) n = strlen(known[i]);
    if (n == 0) return pattern_refuse(t, 3, "known are (?: (?= (?! (?<= (?<! (?> (?i:");
    if (++t->depth > DEPTH_MOST) return pattern_refuse(t, 1, "nested too deeply");
    if (n == 4 && t->at[2] == 'i' && !t->blind_depth) t->blind_depth = t->depth;
    t->at += n;
    return pattern_put(t, t->at - n, n);
}

static ls_status close_group(struct translation *t)
{
    if (t->blind_depth == t->depth) t->blind_depth = 0;
    t->depth--;
    return pattern_put(t, t->at++, 1);
}

static ls_status translate_interval(struct translation *t)
{
    size_t n = 1 + strspn(t->at + 1, "0123456789");
    bool number = n > 1;

    if (t->at[n] == ',') n += 1 + strspn(t->at + n + 1, "0123456789");
    if (!number || t->at[n] != '}') return pattern_refuse(t, 1, "not an interval; write \\{");
    if (t->at[n + 1] == '+' || t->at[n + 1] == '?') return pattern_refuse(t, (int)n + 2, "engines interpret it differently");
    t->at += n + 1;
    return pattern_put(t, t->at - n - 1, n + 1);
}

static ls_status translate_next(struct translation *t)
{
    if (*t->at == '\\') return translate_escape(t);
    if (t->in_class) return translate_in_class(t);
    switch (*t->at) {
    case '[': return open_class(t);
    case '(': return open_group(t);
    case ')': return close_group(t);
    case '{': return translate_interval(t);
    case '^':
    case '$': return pattern_refuse(t, 1, "engines interpret it differently");
    default: return pattern_put(t, t->at++, 1);
    }
}

ls_status pattern_translate(const char *regex, char **out)
{
    struct translation t = { .at = regex, .regex = regex };
    ls_status st = LS_OK;

    if (strlen(regex) > REGEX_MOST)
        return ls_fail(LS_EUNSUPPORTED, "the pattern is too long: %zu bytes; at most %d", strlen(regex), REGEX_MOST);
    if (utf8_valid((const unsigned char *)regex, strlen(regex)) < strlen(regex)) return ls_fail(LS_EFORMAT, "the pattern is not UTF-8");
    while (st == LS_OK && *t.at) st = translate_next(&t);
    if (st == LS_OK && t.bytes == 0) st = ls_fail(LS_EUNSUPPORTED, "the pattern is empty");
    if (st == LS_OK)
        *out = t.out;
    else
        mem_free(t.out);
    return st;
}
