/* options_print.c - prints the option table: help, config files, documentation, names. */
#include "base/options.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"

enum { WIDTH = 80, HELP_COLUMN = 30, ORIGIN_COLUMN = 40 };

static size_t section_length(const char *name) { return strcspn(name, "."); }
static const char *options_print_key_of(const char *name) { return name + section_length(name) + 1; }

static bool applies(const struct option *row, unsigned verb) { return verb == 0 || (row->verbs & verb) != 0; }

/* True when a heading goes before `row`: no shown row of its section came before. */
static bool opens_section(const struct option *row, const char *shown_before)
{
    size_t length = section_length(row->name);

    return !shown_before || strncmp(row->name, shown_before, length + 1) != 0;
}

static const char *placeholder(const struct option *row)
{
    switch (row->kind) {
    case OPTION_KIND_INT: return "N";
    case OPTION_KIND_REAL: return "X";
    case OPTION_KIND_BOOL: return "true|false";
    case OPTION_KIND_STRING: return row->value ? row->value : "TEXT";
    case OPTION_KIND_ENUM: return row->choices;
    case OPTION_KIND_BYTES: return "SIZE";
    }
    return "";
}

/* "1 to 100 steps", "at least 1", "4KiB to 1GiB", "steps", or "": without the row's special value */
static const char *range_text(const struct option *row, char out[128])
{
    bool sizes = row->kind == OPTION_KIND_BYTES, limits = row->least != row->most;
    const char *unit = sizes ? "" : row->unit, *space = limits && unit[0] ? " " : "";
    char least[32], most[32];

    if (sizes)
        text_size(least, (size_t)row->least), text_size(most, (size_t)row->most);
    else
        snprintf(least, sizeof least, "%.15g", row->least), snprintf(most, sizeof most, "%.15g", row->most);
    if (!limits)
        snprintf(out, 128, "%s", unit);
    else if (row->most >= 1e15)
        snprintf(out, 128, "at least %s%s%s", least, space, unit);
    else
        snprintf(out, 128, "%s to %s%s%s", least, most, space, unit);
    return out;
}

/* Prints `words` wrapped at WIDTH; the text starts in column `at` and continues in HELP_COLUMN. */
static void put_wrapped(struct text *out, const char *words, size_t at)
{
    bool first = true;

    while (*words) {
        size_t length = strcspn(words, " ");

        if (!first && at + 1 + length > WIDTH) {
            text_put(out, "\n%*s", HELP_COLUMN, "");
            at = HELP_COLUMN;
            first = true;
        }
        text_put(out, "%s%.*s", first ? "" : " ", (int)length, words);
        at += length + !first;
        first = false;
        words += length;
        words += strspn(words, " ");
    }
    text_put(out, "\n");
}

static void put_help_row(struct text *out, const struct option *row)
{
    struct text left = { 0 }, right = { 0 };
    char range[128];

    range_text(row, range);
    text_put(&left, "  --%s=%s", row->name, placeholder(row));
    text_put(&right, "%s", row->help);
    if (range[0]) text_put(&right, "%s %s", row->special ? "; otherwise" : row->least != row->most ? "," : ", in", range);
    if (row->text[0]) text_put(&right, " [%s]", row->text);
    out->failed |= left.failed || right.failed;
    if (!out->failed) {
        text_put(out, "%s", left.data);
        if (left.bytes + 2 > HELP_COLUMN)
            text_put(out, "\n%*s", HELP_COLUMN, "");
        else
            text_put(out, "%*s", (int)(HELP_COLUMN - left.bytes), "");
        put_wrapped(out, right.data, HELP_COLUMN);
    }
    text_free(&left);
    text_free(&right);
}

bool options_are_common(const struct option *row, unsigned verb) { return row->common & (verb ? verb : 1); }

void options_put_help(const struct option_table *t, unsigned verb, enum options_part part, struct text *out)
{
    const char *before = NULL;

    for (size_t i = 0; i < t->count; i++) {
        const struct option *row = &t->rows[i];

        if (!applies(row, verb) || (part != OPTIONS_ALL && options_are_common(row, verb) != (part == OPTIONS_COMMON))) continue;
        if (opens_section(row, before)) text_put(out, "%s%.*s:\n", before ? "\n" : "", (int)section_length(row->name), row->name);
        put_help_row(out, row);
        before = row->name;
    }
}

static void put_verbs(const struct option_table *t, const struct option *row, struct text *out)
{
    const char *separator = " ";

    for (size_t i = 0; i < t->verb_count; i++)
        if (row->verbs >> i & 1) {
            text_put(out, "%s%s", separator, t->verb_names[i]);
            separator = ", ";
        }
}

void options_put_row(const struct option_table *t, const struct option *row, struct text *out)
{
    put_help_row(out, row);
    text_put(out, "%*sread by", HELP_COLUMN, "");
    put_verbs(t, row, out);
    text_put(out, "\n");
    if (!row->alias) return;
    text_put(out, "%*salso accepted as --%s", HELP_COLUMN, "", row->alias);
    if (row->alias_inverts) text_put(out, " with the inverted value: --%s=true means --%s=false", row->alias, row->name);
    text_put(out, "\n");
}

/* Code points that a YAML file may hold as they are. */
static bool yaml_printable(uint32_t c)
{
    return (c >= 0x20 && c < 0x7f) || (c >= 0xa0 && c != 0xfeff && c != 0xfffe && c != 0xffff && c != 0x2028 && c != 0x2029);
}

static void put_quoted(struct text *out, const char *value)
{
    uint32_t code = 0;

    text_put(out, "\"");
    for (size_t length; *value; value += length) {
        length = text_utf8(value, &code);
        ASSERT(length > 0); /* options_set() accepts nothing else */
        if (code == '"' || code == '\\')
            text_put(out, "\\%c", (int)code);
        else if (yaml_printable(code))
            text_add(out, value, length);
        else
            text_put(out, code > 0xffff ? "\\U%08x" : "\\u%04x", (unsigned)code);
    }
    text_put(out, "\"");
}

/* Writes a point before the exponent: YAML 1.1 parsers read 1e-05 as a string. */
static void put_real(struct text *out, double value)
{
    char number[TEXT_NUMBER_ROOM];
    const char *power = strchr(text_real(number, value), 'e');

    if (power && !strchr(number, '.'))
        text_put(out, "%.*s.0%s", (int)(power - number), number, power);
    else
        text_put(out, "%s", number);
}

/* Quotes words that other YAML parsers would read as a boolean or null. */
static void options_put_choice(struct text *out, const char *choices, int at)
{
    static const char *const special[] = { "yes", "no", "on", "off", "true", "false", "null", "y", "n" };
    const char *quote = "";

    for (; at > 0; at--) choices += strcspn(choices, "|") + 1;
    size_t length = strcspn(choices, "|");
    for (size_t i = 0; i < COUNT_OF(special); i++)
        if (strlen(special[i]) == length && memcmp(special[i], choices, length) == 0) quote = "\"";
    if (strchr("0123456789+-.", choices[0])) quote = "\"";
    text_put(out, "%s%.*s%s", quote, (int)length, choices, quote);
}

static void put_value(struct text *out, const struct option *row, const void *field)
{
    char size[32];

    switch (row->kind) {
    case OPTION_KIND_INT: text_put(out, "%lld", (long long)*(const int64_t *)field); break;
    case OPTION_KIND_REAL: put_real(out, *(const double *)field); break;
    case OPTION_KIND_BOOL: text_put(out, "%s", *(const bool *)field ? "true" : "false"); break;
    case OPTION_KIND_STRING: put_quoted(out, *(char *const *)field); break;
    case OPTION_KIND_ENUM: options_put_choice(out, row->choices, *(const int *)field); break;
    case OPTION_KIND_BYTES: text_put(out, "%s", text_size(size, *(const size_t *)field)); break;
    }
}

void options_put_value(const struct option *row, const void *config, struct text *out)
{
    put_value(out, row, (const unsigned char *)config + row->offset);
}

static void put_origin(struct text *out, size_t line_start, const char *origin)
{
    size_t width = out->bytes - line_start;

    text_put(out, "%*s # ", width < ORIGIN_COLUMN ? (int)(ORIGIN_COLUMN - width) : 0, "");
    for (; *origin; origin++) text_put(out, "%c", (unsigned char)*origin < ' ' ? '?' : *origin);
}

static const struct option_note *note_of(const struct option_note *notes, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(notes[i].name, name) == 0) return &notes[i];
    return NULL;
}

static void put_yaml(const struct options *o, bool with_origins, const struct option_note *notes, size_t count, struct text *out)
{
    const char *before = NULL;

    for (size_t i = 0; i < o->table->count; i++) {
        const struct option *row = &o->table->rows[i];

        if (!applies(row, o->verb)) continue;
        if (opens_section(row, before)) text_put(out, "%.*s:\n", (int)section_length(row->name), row->name);
        size_t start = out->bytes;
        text_put(out, "  %s: ", options_print_key_of(row->name));
        const char *aside = notes ? o->aside[i] : NULL;
        if (aside)
            text_put(out, "%s", aside);
        else
            put_value(out, row, o->config + row->offset);
        const struct option_note *note = note_of(notes, count, row->name);
        if (aside)
            put_origin(out, start, "without effect in this run");
        else if (note)
            put_origin(out, start, note->text);
        else if (with_origins)
            put_origin(out, start, options_origin(o, row->name));
        text_put(out, "\n");
        before = row->name;
    }
}

void options_put_yaml(const struct options *o, bool with_origins, struct text *out) { put_yaml(o, with_origins, NULL, 0, out); }

void options_put_yaml_notes(const struct options *o, const struct option_note *notes, size_t count, struct text *out)
{
    put_yaml(o, false, notes, count, out);
}

/* A table cell, with bars escaped. */
static void put_cell(struct text *out, const char *text, const char *fence)
{
    if (text[0] == '\0') fence = "";
    text_put(out, " %s", fence);
    for (; *text; text++) text_put(out, *text == '|' ? "\\%c" : "%c", *text);
    text_put(out, "%s |", fence);
}

static void put_markdown_row(struct text *out, const struct option_table *t, const struct option *row)
{
    char range[128], all[176];

    snprintf(all, sizeof all, "%s%s%s", row->special ? row->special : "", row->special ? ", or " : "", range_text(row, range));
    text_put(out, "|");
    put_cell(out, row->name, "`");
    put_cell(out, placeholder(row), "`");
    put_cell(out, row->text, "`");
    put_cell(out, all, "");
    put_verbs(t, row, out);
    text_put(out, " |");
    put_cell(out, row->help, "");
    text_put(out, "\n");
}

void options_put_markdown(const struct option_table *t, struct text *out)
{
    const char *before = NULL, *separator = "Used most: ";

    for (size_t i = 0; i < t->count; i++) {
        if (!options_are_common(&t->rows[i], 0)) continue;
        text_put(out, "%s`%s`", separator, t->rows[i].name);
        separator = ", ";
    }
    if (*separator == ',') text_put(out, ".\n\n");
    for (size_t i = 0; i < t->count; i++) {
        const struct option *row = &t->rows[i];

        if (opens_section(row, before))
            text_put(out, "%s## %.*s\n\n| option | value | default | range, unit | commands | meaning |\n|---|---|---|---|---|---|\n",
                     before ? "\n" : "", (int)section_length(row->name), row->name);
        put_markdown_row(out, t, row);
        before = row->name;
    }
}

void options_put_names(const struct option_table *t, unsigned verb, struct text *out)
{
    for (size_t i = 0; i < t->count; i++)
        if (applies(&t->rows[i], verb)) text_put(out, "--%s\n", t->rows[i].name);
}
