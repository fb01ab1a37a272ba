/* json_get.c - json_get PATH...: prints values of JSON on standard input, for the test scripts, which must not parse JSON with patterns.
 *
 * Every line of the input is a document. For each it prints a line with the values at the paths, separated by spaces: numbers, strings
 * without quotes, true, false, null, complete objects and arrays, and "none" for absent values. A path is keys separated by dots
 * (memory.peak), with [2] for an item of an array, and [] for every item: then a document gives a line per item of the first such array.
 * Keys with a dot or a bracket cannot be named. Exit code 1, with a line on standard error, if a line is not JSON or if there is none.
 *
 *   json_get step val_loss <run/metrics.jsonl
 *   json_get 'files[].name' 'files[].hash' <manifest.json
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"

static void print_value(const json_node *n);

static void print_members(const json_node *n, bool object)
{
    for (size_t i = 0; i < json_size(n); i++) {
        const char *key = NULL;
        const json_node *item = object ? json_member(n, i, &key) : json_at(n, i);

        if (i) putchar(',');
        if (object) printf("%s:", key);
        print_value(item);
    }
}

static void print_value(const json_node *n)
{
    char number[TEXT_NUMBER_ROOM];

    switch (json_kind_of(n)) {
    case JSON_NONE:   fputs("none", stdout); break;
    case JSON_NULL:   fputs("null", stdout); break;
    case JSON_BOOL:   fputs(json_bool(n, 0) ? "true" : "false", stdout); break;
    case JSON_INT:    printf("%lld", (long long)json_int(n, 0)); break;
    case JSON_REAL:   fputs(text_real(number, json_real(n, 0)), stdout); break;
    case JSON_STRING: fputs(json_string(n, ""), stdout); break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        putchar(json_kind_of(n) == JSON_OBJECT ? '{' : '[');
        print_members(n, json_kind_of(n) == JSON_OBJECT);
        putchar(json_kind_of(n) == JSON_OBJECT ? '}' : ']');
    }
}

/* The node at the path up to `end`; [] is item `each`. */
static const json_node *json_get_find(const json_node *n, const char *path, const char *end, size_t each)
{
    while (n && path < end) {
        size_t length = strcspn(path, ".[");
        char key[128];

        if (length >= sizeof key) return NULL;
        memcpy(key, path, length);
        key[length] = '\0';
        if (length) n = json_get(n, key);
        path += length;
        if (path < end && *path == '[') {
            n = json_at(n, path[1] == ']' ? each : (size_t)strtoul(path + 1, NULL, 10));
            path += strcspn(path, "]") + 1;
        }
        if (*path == '.') path++;
    }
    return n;
}

static const char *end_of(const char *path) { return path + strlen(path); }

/* Lines of a document: as many as the first array has that a path takes every item of. */
static size_t lines_of(const json_node *root, int count, char **paths)
{
    for (int i = 0; i < count; i++) {
        const char *every = strstr(paths[i], "[]");

        if (every) return json_size(json_get_find(root, paths[i], every, 0));
    }
    return 1;
}

static void print_document(const json_node *root, int count, char **paths)
{
    size_t lines = lines_of(root, count, paths);

    for (size_t each = 0; each < lines; each++)
        for (int i = 0; i < count; i++) {
            print_value(json_get_find(root, paths[i], end_of(paths[i]), each));
            putchar(i + 1 < count ? ' ' : '\n');
        }
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t room = 0, number = 0;
    ssize_t length;

    while ((length = getline(&line, &room, stdin)) >= 0) {
        char what[32];
        json_node *root;

        snprintf(what, sizeof what, "line %zu", ++number);
        if (json_parse(line, (size_t)length, what, &root) != LS_OK) {
            fprintf(stderr, "json_get: %s: %.*s\n", ls_errmsg(), (int)strcspn(line, "\n"), line);
            return 1;
        }
        print_document(root, argc - 1, argv + 1);
        json_close(&root);
    }
    free(line);
    if (number == 0) fputs("json_get: nothing on standard input\n", stderr);
    return number == 0;
}
