/* json.h - reading and writing JSON; the only place that uses jansson.
 *
 * Reading: a parsed document is a tree of borrowed nodes owned by its root. Getters accept a NULL node and return the fallback, so a chain
 * of lookups is checked once. Writing: a growing text buffer.
 */
#ifndef LS_BASE_JSON_H
#define LS_BASE_JSON_H

#include <stddef.h>
#include <stdint.h>
#include "lockstep/status.h"

typedef struct json_node json_node; /* a borrowed node */

enum json_kind { JSON_NONE, JSON_NULL, JSON_BOOL, JSON_INT, JSON_REAL, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* Parses text[bytes]; `what` names the source in messages ("line 3: '}' expected"). Duplicate keys, depth over 64 and invalid UTF-8 are
 * LS_EFORMAT. */
ls_status json_parse(const char *text, size_t bytes, const char *what, json_node **out);
ls_status json_read(const char *path, json_node **out);
void json_close(json_node **root);

enum json_kind json_kind_of(const json_node *n);                     /* JSON_NONE for NULL */
const json_node *json_get(const json_node *object, const char *key); /* NULL when absent or no object */
const json_node *json_at(const json_node *array, size_t i);
size_t json_size(const json_node *n); /* items of an array or object; else 0 */
/* Member i of an object, in file order; NULL past the end. */
const json_node *json_member(const json_node *object, size_t i, const char **key);
const char *json_string(const json_node *n, const char *fallback); /* may hold no NUL inside */
int64_t json_int(const json_node *n, int64_t fallback);
double json_real(const json_node *n, double fallback); /* integers too */
int json_bool(const json_node *n, int fallback);

/* A JSON text under construction. It inserts commas and quotes; numbers print so that they read back to the same value; NaN and infinities
 * print as null. key is NULL inside arrays and for the root. */
struct json_out {
    char *text;
    size_t bytes, room;
    int depth, need_comma;
    int failed;
};

void json_begin_object(struct json_out *j, const char *key);
void json_end_object(struct json_out *j);
void json_begin_array(struct json_out *j, const char *key);
void json_end_array(struct json_out *j);
void json_put_string(struct json_out *j, const char *key, const char *value);
void json_put_int(struct json_out *j, const char *key, int64_t value);
void json_put_real(struct json_out *j, const char *key, double value);
void json_put_bool(struct json_out *j, const char *key, int value);
/* LS_ENOMEM if any of the calls above ran out of memory. The text ends in NUL. Free with json_out_free. */
ls_status json_out_status(const struct json_out *j);
void json_out_free(struct json_out *j);

#endif
