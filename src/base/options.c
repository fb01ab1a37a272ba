/* options.c - resolving a config: defaults, files, command line. options_find.c finds rows by name and suggests the intended one;
 * options_print.c prints help and documentation. */
#include "base/options.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/yaml.h"

union value {
    int64_t integer;
    double real;
    bool boolean;
    int choice;
    size_t bytes;
    const char *string;
};

static ls_status fail_unknown(const struct option_table *t, unsigned verb, const char *name, const char *value)
{
    char meant[160];

    if (options_suggest(t, verb, name, value, true, meant, sizeof meant))
        return ls_fail(LS_EINVAL, "unknown option '%s'; did you mean '--%s'?", name, meant);
    const char *near = options_nearest(t, name);
    if (near) return ls_fail(LS_EINVAL, "unknown option '%s'; did you mean '%s'?", name, near);
    return ls_fail(LS_EINVAL, "unknown option '%s'; see --help for the list", name);
}

static ls_status fail_verb(const struct options *o, const struct option *row)
{
    struct text where = { 0 };
    const char *verb = "this verb";

    for (size_t i = 0; i < o->table->verb_count; i++) {
        if (o->verb == 1u << i) verb = o->table->verb_names[i];
        if (row->verbs >> i & 1) text_put(&where, "%s%s", where.bytes ? ", " : "", o->table->verb_names[i]);
    }
    ls_status st = text_status(&where);
    if (st == LS_OK)
        st = ls_fail(LS_EINVAL, "option '%s' does nothing in '%s'; it applies to: %s", row->name, verb, where.data ? where.data : "none");
    text_free(&where);
    return st;
}

static bool read_bool(const char *text, bool *out)
{
    static const char *const words[] = { "false", "true", "no", "yes", "off", "on", "0", "1" };

    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (strcmp(text, words[i]) == 0) {
            *out = i % 2;
            return true;
        }
    return false;
}

static ls_status read_int(const struct option *row, const char *text, int64_t *out)
{
    double real;

    if (text_read_int(text, out)) return LS_OK;
    if (text_read_real(text, &real) && real >= -1e15 && real <= 1e15 && real == (double)(int64_t)real)
        return ls_fail(LS_EINVAL, "%s: '%s' is not written as a whole number: write %lld", row->name, text, (long long)real);
    if (text_read_real(text, &real) && (real < -1e15 || real > 1e15))
        return ls_fail(LS_EINVAL, "%s: %s is out of range: it does not fit into 64 bits", row->name, text);
    return ls_fail(LS_EINVAL, "%s: '%s' is not a whole number such as 8", row->name, text);
}

/* Strings go into YAML files, which must be UTF-8. */
static ls_status read_string(const struct option *row, const char *text, const char **out)
{
    for (const char *c = text; *c;) {
        size_t length = text_utf8(c, NULL);

        if (length == 0) return ls_fail(LS_EINVAL, "%s: the text is not UTF-8 at byte %zu", row->name, (size_t)(c - text));
        c += length;
    }
    *out = text;
    return LS_OK;
}

static ls_status read_value(const struct option *row, const char *text, union value *out)
{
    switch (row->kind) {
    case OPTION_KIND_INT: return read_int(row, text, &out->integer);
    case OPTION_KIND_REAL:
        if (text_read_real(text, &out->real)) return LS_OK;
        return ls_fail(LS_EINVAL, "%s: '%s' is not a number such as 0.1 or 3e-4", row->name, text);
    case OPTION_KIND_BOOL:
        if (read_bool(text, &out->boolean)) return LS_OK;
        return ls_fail(LS_EINVAL, "%s: '%s' is neither true (yes, on, 1) nor false (no, off, 0)", row->name, text);
    case OPTION_KIND_BYTES:
        if (text_read_bytes(text, &out->bytes)) return LS_OK;
        return ls_fail(LS_EINVAL, "%s: '%s' is not a number of bytes such as 4096, 64KiB, 1.5GiB or 10MB", row->name, text);
    case OPTION_KIND_ENUM:
        out->choice = options_choice_of(row->choices, text);
        if (out->choice >= 0) return LS_OK;
        return ls_fail(LS_EINVAL, "%s: '%s' is not one of %s", row->name, text, row->choices);
    case OPTION_KIND_STRING: return read_string(row, text, &out->string);
    }
    ASSERT(!"a kind of the list");
    return LS_EINVAL;
}

/* True if a number is the one that `text` spells. */
static bool options_equal(const struct option *row, const union value *v, const char *text)
{
    union value other;

    if (read_value(row, text, &other) != LS_OK) return false;
    switch (row->kind) {
    case OPTION_KIND_INT: return v->integer == other.integer;
    case OPTION_KIND_REAL: return v->real == other.real;
    default: return v->bytes == other.bytes;
    }
}

static ls_status options_check_range(const struct option *row, const char *text, const union value *v)
{
    double value = row->kind == OPTION_KIND_INT ? (double)v->integer : row->kind == OPTION_KIND_REAL ? v->real : (double)v->bytes;
    char least[TEXT_NUMBER_ROOM], most[TEXT_NUMBER_ROOM];

    if (row->kind != OPTION_KIND_INT && row->kind != OPTION_KIND_REAL && row->kind != OPTION_KIND_BYTES) return LS_OK;
    if (row->least == row->most || (value >= row->least && value <= row->most)) return LS_OK;
    if (row->special && options_equal(row, v, row->special)) return LS_OK;
    if (row->kind == OPTION_KIND_BYTES)
        return ls_fail(LS_EINVAL, "%s: %s is out of range: at least %s, at most %s", row->name, text, text_size(least, (size_t)row->least),
                       text_size(most, (size_t)row->most));
    snprintf(least, sizeof least, "%.15g", row->least);
    snprintf(most, sizeof most, "%.15g", row->most);
    return ls_fail(LS_EINVAL, "%s: %s is out of range: %s%sat least %s, at most %s%s%s", row->name, text, row->special ? row->special : "",
                   row->special ? ", or " : "", least, most, row->unit[0] ? " " : "", row->unit);
}

static ls_status store_string(char **field, const char *text)
{
    char *copy = mem_strdup(text);

    if (!copy) return LS_ENOMEM;
    mem_free(*field);
    *field = copy;
    return LS_OK;
}

static ls_status options_store(const struct option *row, unsigned char *config, const union value *v)
{
    unsigned char *field = config + row->offset;

    switch (row->kind) {
    case OPTION_KIND_INT: memcpy(field, &v->integer, sizeof v->integer); break;
    case OPTION_KIND_REAL: memcpy(field, &v->real, sizeof v->real); break;
    case OPTION_KIND_BOOL: memcpy(field, &v->boolean, sizeof v->boolean); break;
    case OPTION_KIND_BYTES: memcpy(field, &v->bytes, sizeof v->bytes); break;
    case OPTION_KIND_ENUM: memcpy(field, &v->choice, sizeof v->choice); break;
    case OPTION_KIND_STRING: return store_string((char **)(void *)field, v->string);
    }
    return LS_OK;
}

bool options_is(const struct option *row, const void *config, const char *text)
{
    const unsigned char *field = (const unsigned char *)config + row->offset;
    const char *string;
    union value v;

    if (read_value(row, text, &v) != LS_OK) return false;
    switch (row->kind) {
    case OPTION_KIND_INT: return memcmp(field, &v.integer, sizeof v.integer) == 0;
    case OPTION_KIND_REAL: return memcmp(field, &v.real, sizeof v.real) == 0;
    case OPTION_KIND_BOOL: return memcmp(field, &v.boolean, sizeof v.boolean) == 0;
    case OPTION_KIND_ENUM: return memcmp(field, &v.choice, sizeof v.choice) == 0;
    case OPTION_KIND_BYTES: return memcmp(field, &v.bytes, sizeof v.bytes) == 0;
    case OPTION_KIND_STRING: memcpy(&string, field, sizeof string); return strcmp(string, v.string) == 0;
    }
    return false;
}

static ls_status assign(const struct option *row, unsigned char *config, const char *text)
{
    union value v;

    LS_TRY(read_value(row, text, &v));
    LS_TRY(options_check_range(row, text, &v));
    return options_store(row, config, &v);
}

static void free_strings(const struct option_table *t, unsigned char *config)
{
    for (size_t i = 0; i < t->count; i++) {
        if (t->rows[i].kind != OPTION_KIND_STRING) continue;
        char **field = (char **)(void *)(config + t->rows[i].offset);
        mem_free(*field);
        *field = NULL;
    }
}

/* Names are "section.key", each occurs once, and a section's rows are adjacent. An alias names one row. */
static void check_names(const struct option_table *t)
{
    for (size_t i = 0; i < t->count; i++) {
        const char *name = t->rows[i].name, *dot = strchr(name, '.');
        bool left = false;

        ASSERT(dot && dot > name && dot[1] != '\0' && !strchr(dot + 1, '.'));
        ASSERT(!t->rows[i].alias || options_find(t, t->rows[i].alias) == &t->rows[i]);
        for (size_t j = i + 1; j < t->count; j++) {
            bool same = strncmp(t->rows[j].name, name, (size_t)(dot + 1 - name)) == 0;

            ASSERT(strcmp(t->rows[j].name, name) != 0 && !(same && left));
            left = !same;
        }
    }
}

ls_status options_open(const struct option_table *table, void *config, unsigned verb, struct options *out)
{
    ls_status st = LS_OK;
    char **origins = mem_array(MEM_OTHER, 2 * table->count, sizeof *origins); /* origins, then aside */

    check_names(table);
    if (!origins) return LS_ENOMEM;
    memset(config, 0, table->bytes);
    for (size_t i = 0; st == LS_OK && i < table->count; i++) {
        st = assign(&table->rows[i], config, table->rows[i].text);
        ASSERT(st != LS_EINVAL);
    }
    if (st != LS_OK) {
        free_strings(table, config);
        mem_free(origins);
        return st;
    }
    *out = (struct options){ table, config, verb, origins, origins + table->count };
    return LS_OK;
}

void options_close(struct options *o)
{
    if (!o->table) return;
    free_strings(o->table, o->config);
    for (size_t i = 0; i < 2 * o->table->count; i++) mem_free(o->origins[i]);
    mem_free(o->origins);
    *o = (struct options){ 0 };
}

static ls_status set_row(struct options *o, const struct option *row, const char *text, const char *where)
{
    char *origin = mem_strdup(where);

    if (!origin) return LS_ENOMEM;
    ls_status st = assign(row, o->config, text);
    if (st != LS_OK) {
        mem_free(origin);
        return st;
    }
    char **own = &o->origins[row - o->table->rows], **aside = &o->aside[row - o->table->rows];
    mem_free(*own);
    *own = origin;
    mem_free(*aside);
    *aside = NULL;
    return LS_OK;
}

/* Converts a value given under `name` to the row's value. */
static const char *value_for(const struct option *row, const char *name, const char *text)
{
    bool given;

    if (!row->alias_inverts || strcmp(row->alias, name) != 0 || !read_bool(text, &given)) return text;
    return given ? "false" : "true";
}

ls_status options_set(struct options *o, const char *name, const char *text, const char *where)
{
    const struct option *row = options_find(o->table, name);

    if (!row) return fail_unknown(o->table, o->verb, name, text);
    if (o->verb && !(row->verbs & o->verb)) return fail_verb(o, row);
    return set_row(o, row, value_for(row, name, text), where);
}

ls_status options_set_aside(struct options *o, const char *name)
{
    const struct option *row = options_find(o->table, name);
    struct text value = { 0 };

    ASSERT(row);
    options_put_value(row, o->config, &value);
    ls_status st = text_status(&value);
    char *was = st == LS_OK ? mem_strdup(value.data) : NULL;
    text_free(&value);
    if (!was) return LS_ENOMEM;
    st = set_row(o, row, row->text, "default");
    if (st == LS_OK)
        o->aside[row - o->table->rows] = was;
    else
        mem_free(was);
    return st;
}

ls_status options_inherit(struct options *o, const struct options *from, const char *name)
{
    const struct option *row = options_find(o->table, name);

    ASSERT(row && from->table == o->table);
    char **origin = &o->origins[row - o->table->rows];
    const unsigned char *field = (const unsigned char *)from->config + row->offset;
    union value v = { 0 };

    if (*origin) return LS_OK;
    switch (row->kind) {
    case OPTION_KIND_INT: memcpy(&v.integer, field, sizeof v.integer); break;
    case OPTION_KIND_REAL: memcpy(&v.real, field, sizeof v.real); break;
    case OPTION_KIND_BOOL: memcpy(&v.boolean, field, sizeof v.boolean); break;
    case OPTION_KIND_BYTES: memcpy(&v.bytes, field, sizeof v.bytes); break;
    case OPTION_KIND_ENUM: memcpy(&v.choice, field, sizeof v.choice); break;
    case OPTION_KIND_STRING: memcpy(&v.string, field, sizeof v.string); break;
    }
    *origin = mem_strdup(options_origin(from, name));
    return *origin ? options_store(row, o->config, &v) : LS_ENOMEM;
}

const char *options_origin(const struct options *o, const char *name)
{
    const struct option *row = options_find(o->table, name);

    ASSERT(row);
    const char *origin = o->origins[row - o->table->rows];
    return origin ? origin : "default";
}

bool options_is_argument(const char *argument)
{
    size_t name = strcspn(argument, "=");

    return strncmp(argument, "--", 2) == 0 && memchr(argument, '.', name) != NULL;
}

/* The value after a name without '=': the next argument, or "true" for a bool without one. */
static const char *value_after(const struct options *o, const char *name, int argc, char *const argv[], int *at)
{
    const struct option *row = options_find(o->table, name);
    bool more = *at + 1 < argc && strncmp(argv[*at + 1], "--", 2) != 0;

    if (more) return argv[++*at];
    return row && row->kind == OPTION_KIND_BOOL ? "true" : NULL;
}

ls_status options_take_argument(struct options *o, int argc, char *const argv[], int *at)
{
    const char *argument = argv[*at] + 2, *equals = strchr(argument, '=');
    int last = *at;
    char *name = file_path("%.*s", equals ? (int)(equals - argument) : (int)strlen(argument), argument);

    if (!name) return LS_ENOMEM;
    const char *value = equals ? equals + 1 : value_after(o, name, argc, argv, &last);
    ls_status st;
    if (value)
        st = options_set(o, name, value, "command line");
    else if (!options_find(o->table, name))
        st = fail_unknown(o->table, o->verb, name, NULL);
    else
        st = ls_fail(LS_EINVAL, "option '%s' needs a value: --%s=...", name, name);
    mem_free(name);
    if (st == LS_OK) *at = last + 1;
    return st;
}

struct file_values {
    struct options *options;
    const char *path;
};

static ls_status take_file_value(void *ctx, const char *key, const char *value, int line)
{
    struct file_values *f = ctx;
    const struct option *row = options_find(f->options->table, key);

    if (!row) return fail_unknown(f->options->table, 0, key, value);
    char *where = file_path("%s:%d", f->path, line);
    if (!where) return LS_ENOMEM;
    ls_status st = set_row(f->options, row, value_for(row, key, value), where);
    mem_free(where);
    return st;
}

ls_status options_load_yaml(struct options *o, const char *path)
{
    return yaml_read(path, take_file_value, &(struct file_values){ o, path });
}
