/* lab_json.c - reads JSON for the labs, which see the public headers only. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "lab.h"

/* The node at a path of keys separated by dots, with [2] for an item of an array; NULL: not found. */
static const json_node *lab_json_find(const json_node *n, const char *path)
{
    while (n && *path) {
        size_t length = strcspn(path, ".[");
        char key[64];

        if (length >= sizeof key) return NULL;
        memcpy(key, path, length);
        key[length] = '\0';
        path += length;
        if (length) n = json_get(n, key);
        if (*path == '[') {
            n = json_at(n, (size_t)strtoul(path + 1, NULL, 10));
            path += strcspn(path, "]");
            path += *path == ']';
        }
        path += *path == '.';
    }
    return n;
}

double lab_json(const char *text, const char *path)
{
    double number = NAN;
    json_node *root;

    if (!*text) return NAN;
    TRY(json_parse(text, strlen(text), "what the command printed", &root));
    const json_node *n = lab_json_find(root, path);
    enum json_kind kind = json_kind_of(n);
    if (kind == JSON_BOOL) number = json_bool(n, 0);
    if (kind == JSON_INT || kind == JSON_REAL) number = json_real(n, NAN);
    json_close(&root);
    return number;
}
