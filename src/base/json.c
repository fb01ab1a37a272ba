/* json.c - JSON parsed by jansson into a tree of our own.
 *
 * A document is one block: nodes, then the index tables of its objects, then its strings. Children of a container are contiguous, so
 * json_at() and json_member() are one addition. An object of more than SCAN_UP_TO members has an open-addressing table over its keys'
 * FNV-1a hashes; a smaller one is scanned.
 */
/* Some of jansson's names are also names of json.h: they get another prefix while its header is read. jansson's own calls must not bind to
 * our two functions of the same name, so these are hidden in every build. */
#define JSON_NULL   JANSSON_NULL
#define JSON_REAL   JANSSON_REAL
#define JSON_STRING JANSSON_STRING
#define JSON_ARRAY  JANSSON_ARRAY
#define JSON_OBJECT JANSSON_OBJECT
#define json_string jansson_string
#define json_real   jansson_real
#include <jansson.h>
#undef JSON_NULL
#undef JSON_REAL
#undef JSON_STRING
#undef JSON_ARRAY
#undef JSON_OBJECT
#undef json_string
#undef json_real

#include "base/json.h"

#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"

enum { MOST_DEPTH = 64, SCAN_UP_TO = 8 };

struct json_node {
    enum json_kind kind;
    uint32_t cells;  /* of `table`, a power of two; 0: scan */
    size_t size;     /* children */
    const char *key; /* NULL unless a member of an object */
    union {
        int64_t integer; /* JSON_INT; JSON_BOOL: 0 or 1 */
        double real;
        const char *string;
        struct {
            struct json_node *items;
            uint32_t *table;
        }; /* table: child + 1, 0 is free */
    };
};

/* The three parts of a document: sizes while measuring, positions while filling. */
struct layout {
    size_t nodes, cells, chars;
};

static size_t cells_for(size_t members)
{
    size_t cells = 4 * SCAN_UP_TO;

    if (members <= SCAN_UP_TO) return 0;
    while (cells < 2 * members) cells *= 2;
    return cells;
}

/* jansson's own macros json_is_*() would expand to names redefined below: use json_typeof(). */
static ls_status json_measure(json_t *from, int depth, struct layout *sum)
{
    const char *key;
    json_t *child;
    size_t i;

    json_type type = json_typeof(from);
    if (depth > MOST_DEPTH && (type == JANSSON_ARRAY || type == JANSSON_OBJECT))
        return ls_fail(LS_EFORMAT, "nested deeper than %d levels", MOST_DEPTH);
    sum->nodes++;
    switch (type) {
    case JANSSON_STRING: sum->chars += json_string_length(from) + 1; break;
    case JANSSON_ARRAY: json_array_foreach(from, i, child) LS_TRY(json_measure(child, depth + 1, sum)); break;
    case JANSSON_OBJECT:
        sum->cells += cells_for(json_object_size(from));
        json_object_foreach(from, key, child)
        {
            sum->chars += strlen(key) + 1;
            LS_TRY(json_measure(child, depth + 1, sum));
        }
        break;
    default: break;
    }
    return LS_OK;
}

struct arena {
    struct json_node *node;
    uint32_t *cell;
    char *chars;
}; /* the next free of each part */

static const char *copy_chars(struct arena *a, const char *text, size_t bytes)
{
    char *copy = memcpy(a->chars, text, bytes);

    copy[bytes] = '\0';
    a->chars += bytes + 1;
    return copy;
}

static void index_members(struct json_node *n)
{
    for (size_t i = 0; i < n->size; i++) {
        uint64_t at = rng_stream(n->items[i].key);

        while (n->table[at & (n->cells - 1)]) at++;
        n->table[at & (n->cells - 1)] = (uint32_t)i + 1;
    }
}

static void json_fill(json_t *from, struct json_node *n, struct arena *a);

static void fill_array(json_t *from, struct json_node *n, struct arena *a)
{
    json_t *child;
    size_t i;

    n->size = json_array_size(from);
    n->items = a->node;
    a->node += n->size;
    json_array_foreach(from, i, child) json_fill(child, &n->items[i], a);
}

static void fill_object(json_t *from, struct json_node *n, struct arena *a)
{
    struct json_node *member = n->items = a->node;
    const char *key;
    json_t *child;

    n->size = json_object_size(from);
    n->cells = (uint32_t)cells_for(n->size);
    n->table = a->cell;
    a->node += n->size;
    a->cell += n->cells;
    json_object_foreach(from, key, child)
    {
        member->key = copy_chars(a, key, strlen(key));
        json_fill(child, member++, a);
    }
    if (n->cells) index_members(n);
}

static void json_fill(json_t *from, struct json_node *n, struct arena *a)
{
    switch (json_typeof(from)) {
    case JSON_TRUE:
    case JSON_FALSE:
        n->kind = JSON_BOOL;
        n->integer = json_typeof(from) == JSON_TRUE;
        break;
    case JSON_INTEGER:
        n->kind = JSON_INT;
        n->integer = json_integer_value(from);
        break;
    case JANSSON_REAL:
        n->kind = JSON_REAL;
        n->real = json_real_value(from);
        break;
    case JANSSON_STRING:
        n->kind = JSON_STRING;
        n->string = copy_chars(a, json_string_value(from), json_string_length(from));
        break;
    case JANSSON_ARRAY:
        n->kind = JSON_ARRAY;
        fill_array(from, n, a);
        break;
    case JANSSON_OBJECT:
        n->kind = JSON_OBJECT;
        fill_object(from, n, a);
        break;
    case JANSSON_NULL: n->kind = JSON_NULL; break;
    }
}

/* The parts follow each other in one block by falling alignment: nodes, cells, characters. */
static ls_status json_build(json_t *from, json_node **out)
{
    struct layout sum = { 0 };

    LS_TRY(json_measure(from, 1, &sum));
    if (sum.nodes > UINT32_MAX) return ls_fail(LS_EFORMAT, "more than %u values", UINT32_MAX);
    size_t cells = sum.cells * sizeof(uint32_t);
    size_t bytes = sum.nodes * sizeof(struct json_node) + cells;
    if (!size_add(bytes, sum.chars, &bytes)) return ls_fail(LS_ENOMEM, "out of memory");
    struct json_node *root = mem_zalloc(MEM_OTHER, bytes);
    if (!root) return LS_ENOMEM;

    struct arena a = { .node = root + 1, .cell = (uint32_t *)(root + sum.nodes) };
    a.chars = (char *)(a.cell + sum.cells);
    json_fill(from, root, &a);
    ASSERT(a.chars == (char *)root + bytes);
    *out = root;
    return LS_OK;
}

ls_status json_parse(const char *text, size_t bytes, const char *what, json_node **out)
{
    json_error_t error;
    json_t *parsed = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);

    if (!parsed) {
        int memory = json_error_code(&error) == json_error_out_of_memory;

        return ls_fail(memory ? LS_ENOMEM : LS_EFORMAT, "%s: not JSON: line %d: %s", what, error.line, error.text);
    }
    ls_status st = json_build(parsed, out);
    json_decref(parsed);
    return st == LS_OK ? st : ls_fail_at(st, "%s", what);
}

ls_status json_read(const char *path, json_node **out)
{
    char *text;
    size_t bytes;

    LS_TRY(file_read(path, &text, &bytes));
    ls_status st = json_parse(text, bytes, path, out);
    mem_free(text);
    return st;
}

void json_close(json_node **root)
{
    mem_free(*root);
    *root = NULL;
}

enum json_kind json_kind_of(const json_node *n) { return n ? n->kind : JSON_NONE; }

size_t json_size(const json_node *n) { return n ? n->size : 0; }

const json_node *json_get(const json_node *object, const char *key)
{
    if (json_kind_of(object) != JSON_OBJECT) return NULL;
    if (!object->cells) {
        for (size_t i = 0; i < object->size; i++)
            if (strcmp(object->items[i].key, key) == 0) return &object->items[i];
        return NULL;
    }
    for (uint64_t at = rng_stream(key);; at++) {
        uint32_t member = object->table[at & (object->cells - 1)];

        if (!member) return NULL;
        if (strcmp(object->items[member - 1].key, key) == 0) return &object->items[member - 1];
    }
}

const json_node *json_at(const json_node *array, size_t i)
{
    return json_kind_of(array) == JSON_ARRAY && i < array->size ? &array->items[i] : NULL;
}

const json_node *json_member(const json_node *object, size_t i, const char **key)
{
    if (json_kind_of(object) != JSON_OBJECT || i >= object->size) return NULL;
    *key = object->items[i].key;
    return &object->items[i];
}

__attribute__((visibility("hidden"))) const char *json_string(const json_node *n, const char *fallback)
{
    return json_kind_of(n) == JSON_STRING ? n->string : fallback;
}

int64_t json_int(const json_node *n, int64_t fallback) { return json_kind_of(n) == JSON_INT ? n->integer : fallback; }

__attribute__((visibility("hidden"))) double json_real(const json_node *n, double fallback)
{
    if (json_kind_of(n) == JSON_INT) return (double)n->integer;
    return json_kind_of(n) == JSON_REAL ? n->real : fallback;
}

int json_bool(const json_node *n, int fallback) { return json_kind_of(n) == JSON_BOOL ? (int)n->integer : fallback; }
