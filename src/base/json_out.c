/* json_out.c - JSON text under construction. */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/text.h"

static void json_out_put(struct json_out *j, const char *data, size_t bytes)
{
    struct text t = { j->text, j->bytes, j->room, j->failed };

    text_add(&t, data, bytes);
    j->text = t.data;
    j->bytes = t.bytes;
    j->room = t.room;
    j->failed = t.failed;
}

/* Bytes that are not UTF-8 become U+FFFD: the text must stay valid JSON whatever a file name contains. */
static void put_quoted(struct json_out *j, const char *value)
{
    char escape[8];

    json_out_put(j, "\"", 1);
    while (*value) {
        size_t length = text_utf8(value, NULL);

        if (*value == '"' || *value == '\\') {
            json_out_put(j, "\\", 1);
            json_out_put(j, value, 1);
        } else if (length == 0) {
            json_out_put(j, "\xef\xbf\xbd", 3);
        } else if ((unsigned char)*value < ' ' || *value == 0x7f) {
            json_out_put(j, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)*value));
        } else {
            json_out_put(j, value, length);
        }
        value += MAX(length, 1);
    }
    json_out_put(j, "\"", 1);
}

static void begin_value(struct json_out *j, const char *key)
{
    if (j->need_comma) json_out_put(j, ",", 1);
    j->need_comma = 1;
    if (!key) return;
    put_quoted(j, key);
    json_out_put(j, ":", 1);
}

static void json_out_begin(struct json_out *j, const char *key, const char *bracket)
{
    begin_value(j, key);
    json_out_put(j, bracket, 1);
    j->depth++;
    j->need_comma = 0;
}

static void end(struct json_out *j, const char *bracket)
{
    ASSERT(j->depth > 0);
    json_out_put(j, bracket, 1);
    j->depth--;
    j->need_comma = 1;
}

void json_begin_object(struct json_out *j, const char *key) { json_out_begin(j, key, "{"); }
void json_end_object(struct json_out *j) { end(j, "}"); }
void json_begin_array(struct json_out *j, const char *key) { json_out_begin(j, key, "["); }
void json_end_array(struct json_out *j) { end(j, "]"); }

void json_put_string(struct json_out *j, const char *key, const char *value)
{
    begin_value(j, key);
    put_quoted(j, value);
}

void json_put_int(struct json_out *j, const char *key, int64_t value)
{
    char text[TEXT_NUMBER_ROOM];

    begin_value(j, key);
    json_out_put(j, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)value));
}

void json_put_real(struct json_out *j, const char *key, double value)
{
    char number[TEXT_NUMBER_ROOM];
    const char *text = isfinite(value) ? text_real(number, value) : "null";

    begin_value(j, key);
    json_out_put(j, text, strlen(text));
}

void json_put_bool(struct json_out *j, const char *key, int value)
{
    begin_value(j, key);
    json_out_put(j, value ? "true" : "false", value ? 4 : 5);
}

ls_status json_out_status(const struct json_out *j)
{
    ASSERT(j->failed || j->depth == 0);
    return j->failed ? LS_ENOMEM : LS_OK; /* the allocation set the message */
}

void json_out_free(struct json_out *j)
{
    mem_free(j->text);
    *j = (struct json_out){ 0 };
}
