/* Any bytes: refused in one line, or a tree that prints and reads back to an equal tree. */
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/json.h"

static void put(struct json_out *j, const char *key, const json_node *n)
{
    const char *name = NULL;

    switch (json_kind_of(n)) {
    case JSON_NONE: abort();
    case JSON_NULL: json_put_real(j, key, 0.0 / 0.0); break;
    case JSON_BOOL: json_put_bool(j, key, json_bool(n, 0)); break;
    case JSON_INT: json_put_int(j, key, json_int(n, 0)); break;
    case JSON_REAL: json_put_real(j, key, json_real(n, 0)); break;
    case JSON_STRING: json_put_string(j, key, json_string(n, NULL)); break;
    case JSON_ARRAY:
        json_begin_array(j, key);
        for (size_t i = 0; i < json_size(n); i++) put(j, NULL, json_at(n, i));
        json_end_array(j);
        break;
    case JSON_OBJECT:
        json_begin_object(j, key);
        for (size_t i = 0; i < json_size(n); i++) {
            const json_node *member = json_member(n, i, &name);

            ASSERT(json_get(n, name) == member);
            put(j, name, member);
        }
        json_end_object(j);
        break;
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    json_node *first, *second;
    struct json_out a = { 0 }, b = { 0 };

    if (json_parse((const char *)data, bytes, "f", &first) != LS_OK) {
        ASSERT(strncmp(ls_errmsg(), "f: ", 3) == 0 && !strchr(ls_errmsg(), '\n'));
        return 0;
    }
    put(&a, NULL, first);
    ASSERT(json_out_status(&a) == LS_OK);
    ASSERT(json_parse(a.text, a.bytes, "g", &second) == LS_OK);
    put(&b, NULL, second);
    ASSERT(strcmp(a.text, b.text) == 0);
    json_close(&first);
    json_close(&second);
    json_out_free(&a);
    json_out_free(&b);
    return 0;
}
