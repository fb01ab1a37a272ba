/* json_out.c - JSON text under construction. */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"

enum { FIRST_ROOM = 256, NUMBER_ROOM = 40 };

static void put(struct json_out *j, const char *text, size_t bytes)
{
    size_t needed, room = MAX(j->room, FIRST_ROOM);

    if (j->failed) return;
    if (!size_add(j->bytes, bytes, &needed) || needed > SIZE_MAX / 4) {
        ls_fail(LS_ENOMEM, "out of memory: a JSON text of %zu bytes and %zu more", j->bytes, bytes);
        j->failed = 1;
        return;
    }
    while (room < needed + 1) room *= 2;
    if (room > j->room) {
        char *grown = mem_resize(j->text, room);

        if (!grown) {
            j->failed = 1;
            return;
        }
        j->text = grown;
        j->room = room;
    }
    memcpy(j->text + j->bytes, text, bytes);
    j->bytes = needed;
    j->text[needed] = '\0';
}

/* Bytes of the UTF-8 sequence at text, 0 when it is none (overlong forms and surrogates are none). */
static size_t utf8_length(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t length = s[0] < 0x80 ? 1 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;

    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (length == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0))) return 0;
    if (length == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))) return 0;
    return length;
}

/* Bytes that are no UTF-8 become U+FFFD: the text has to stay JSON whatever a file name holds. */
static void put_quoted(struct json_out *j, const char *value)
{
    char escape[8];

    put(j, "\"", 1);
    while (*value) {
        size_t length = utf8_length(value);

        if (*value == '"' || *value == '\\') {
            put(j, "\\", 1);
            put(j, value, 1);
        } else if (length == 0) {
            put(j, "\xef\xbf\xbd", 3);
        } else if ((unsigned char)*value < ' ' || *value == 0x7f) {
            put(j, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)*value));
        } else {
            put(j, value, length);
        }
        value += MAX(length, 1);
    }
    put(j, "\"", 1);
}

static void begin_value(struct json_out *j, const char *key)
{
    if (j->need_comma) put(j, ",", 1);
    j->need_comma = 1;
    if (!key) return;
    put_quoted(j, key);
    put(j, ":", 1);
}

static void begin(struct json_out *j, const char *key, const char *bracket)
{
    begin_value(j, key);
    put(j, bracket, 1);
    j->depth++;
    j->need_comma = 0;
}

static void end(struct json_out *j, const char *bracket)
{
    ASSERT(j->depth > 0);
    put(j, bracket, 1);
    j->depth--;
    j->need_comma = 1;
}

void json_begin_object(struct json_out *j, const char *key) { begin(j, key, "{"); }
void json_end_object(struct json_out *j) { end(j, "}"); }
void json_begin_array(struct json_out *j, const char *key) { begin(j, key, "["); }
void json_end_array(struct json_out *j) { end(j, "]"); }

void json_put_string(struct json_out *j, const char *key, const char *value)
{
    begin_value(j, key);
    put_quoted(j, value);
}

void json_put_int(struct json_out *j, const char *key, int64_t value)
{
    char text[NUMBER_ROOM];

    begin_value(j, key);
    put(j, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)value));
}

/* The fewest of 15, 16, 17 digits that read back to the same value, with a point whatever the locale says,
 * and with ".0" where the text would be an integer's (which would lose the sign of -0). */
static void format_real(char text[NUMBER_ROOM], double value)
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, NUMBER_ROOM, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    for (char *c = text; *c; c++)
        if (!strchr("+-0123456789e", *c)) *c = '.';
    if (!strpbrk(text, ".e")) strcat(text, ".0");
}

void json_put_real(struct json_out *j, const char *key, double value)
{
    char text[NUMBER_ROOM] = "null";

    if (isfinite(value)) format_real(text, value);
    begin_value(j, key);
    put(j, text, strlen(text));
}

void json_put_bool(struct json_out *j, const char *key, int value)
{
    begin_value(j, key);
    put(j, value ? "true" : "false", value ? 4 : 5);
}

ls_status json_out_status(const struct json_out *j)
{
    ASSERT(j->failed || j->depth == 0);
    return j->failed ? LS_ENOMEM : LS_OK;  /* the message is that of the allocation */
}

void json_out_free(struct json_out *j)
{
    mem_free(j->text);
    *j = (struct json_out){ 0 };
}
