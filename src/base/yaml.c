/* yaml.c - a config file through libyaml's events. See yaml.h for what a file may hold. */
#include "base/yaml.h"

#include <string.h>
#include <yaml.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"

enum { MOST_BYTES = 1 << 20, MOST_KEYS = 4096, MOST_SECTIONS = 512 };

struct seen {
    char *name;
    int line;
};

struct yaml_walk {
    yaml_parser_t parser;
    const char *what;
    yaml_entry_fn *fn;
    void *ctx;
    int line; /* of the current event, from 1 */
    struct seen keys[MOST_KEYS], sections[MOST_SECTIONS];
    size_t key_count, section_count;
};

static ls_status fail_parser(struct yaml_walk *w)
{
    const yaml_parser_t *p = &w->parser;

    if (p->error == YAML_MEMORY_ERROR) return ls_fail(LS_ENOMEM, "%s: out of memory in the YAML parser", w->what);
    size_t line = p->error == YAML_READER_ERROR ? p->mark.line : p->problem_mark.line;
    return ls_fail(LS_EFORMAT, "%s:%zu: not YAML: %s", w->what, line + 1, p->problem ? p->problem : "malformed");
}

static ls_status yaml_refuse(const struct yaml_walk *w, const char *why) { return ls_fail(LS_EFORMAT, "%s:%d: %s", w->what, w->line, why); }

/* Rejects YAML features that a config file may not use. */
static ls_status check_event(const struct yaml_walk *w, const yaml_event_t *e)
{
    static const char anchors[] = "anchors and aliases are not supported: write the value out";
    static const char tags[] = "tags (!) are not supported: write the plain value";

    switch (e->type) {
    case YAML_ALIAS_EVENT: return yaml_refuse(w, anchors);
    case YAML_SEQUENCE_START_EVENT: return yaml_refuse(w, "lists are not supported: an option has one value");
    case YAML_MAPPING_START_EVENT:
        if (e->data.mapping_start.anchor) return yaml_refuse(w, anchors);
        return e->data.mapping_start.tag ? yaml_refuse(w, tags) : LS_OK;
    case YAML_SCALAR_EVENT:
        if (e->data.scalar.anchor) return yaml_refuse(w, anchors);
        if (e->data.scalar.tag) return yaml_refuse(w, tags);
        if (strlen((const char *)e->data.scalar.value) != e->data.scalar.length) return yaml_refuse(w, "a NUL inside a value");
        if (e->data.scalar.style == YAML_LITERAL_SCALAR_STYLE || e->data.scalar.style == YAML_FOLDED_SCALAR_STYLE)
            return yaml_refuse(w, "block scalars (| and >) are not supported: write the value on one line");
        return LS_OK;
    default: return LS_OK;
    }
}

/* The next event; the caller deletes it when the result is LS_OK. */
static ls_status next(struct yaml_walk *w, yaml_event_t *e)
{
    if (!yaml_parser_parse(&w->parser, e)) return fail_parser(w);
    w->line = (int)e->start_mark.line + 1;
    ls_status st = check_event(w, e);
    if (st != LS_OK) yaml_event_delete(e);
    return st;
}

static const char *scalar(const yaml_event_t *e) { return (const char *)e->data.scalar.value; }

static ls_status remember(struct yaml_walk *w, struct seen *list, size_t *count, size_t most, const char *name)
{
    for (size_t i = 0; i < *count; i++)
        if (strcmp(list[i].name, name) == 0)
            return ls_fail(LS_EFORMAT, "%s:%d: '%s' occurs twice: here and in line %d", w->what, w->line, name, list[i].line);
    if (*count == most) return ls_fail(LS_EFORMAT, "%s:%d: more than %zu keys or sections", w->what, w->line, most);
    list[*count].name = mem_strdup(name);
    if (!list[*count].name) return LS_ENOMEM;
    list[(*count)++].line = w->line;
    return LS_OK;
}

static ls_status take_entry(struct yaml_walk *w, const char *key, const yaml_event_t *value)
{
    if (value->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && value->data.scalar.length == 0)
        return ls_fail(LS_EFORMAT, "%s:%d: '%s' has no value: write \"\" for an empty one", w->what, w->line, key);
    LS_TRY(remember(w, w->keys, &w->key_count, MOST_KEYS, key));
    ls_status st = w->fn(w->ctx, key, scalar(value), w->line);
    return st == LS_OK ? st : ls_fail_at(st, "%s:%d", w->what, w->line);
}

/* The value of `key` inside `section`. */
static ls_status section_value(struct yaml_walk *w, const char *section, const char *key)
{
    yaml_event_t e;
    ls_status st;

    LS_TRY(next(w, &e));
    char *full = file_path("%s.%s", section, key);
    if (!full)
        st = LS_ENOMEM;
    else if (e.type != YAML_SCALAR_EVENT)
        st = ls_fail(LS_EFORMAT, "%s:%d: '%s' holds a mapping: options are two levels deep, section and key", w->what, w->line, full);
    else
        st = take_entry(w, full, &e);
    mem_free(full);
    yaml_event_delete(&e);
    return st;
}

/* Reads the entries of a section, whose start was consumed, up to its end. */
static ls_status section_entries(struct yaml_walk *w, const char *section)
{
    for (;;) {
        yaml_event_t e;
        ls_status st = LS_OK;

        LS_TRY(next(w, &e));
        bool end = e.type == YAML_MAPPING_END_EVENT;
        if (!end) st = e.type == YAML_SCALAR_EVENT ? section_value(w, section, scalar(&e)) : yaml_refuse(w, "a key must be a scalar");
        yaml_event_delete(&e);
        if (end || st != LS_OK) return st;
    }
}

/* Reads the value of a top-level key: a section's entries, or the value of a dotted key. */
static ls_status top_value(struct yaml_walk *w, const char *key)
{
    yaml_event_t e;
    ls_status st;

    LS_TRY(next(w, &e));
    bool dotted = strchr(key, '.') != NULL;
    if (e.type == YAML_MAPPING_START_EVENT && dotted)
        st = ls_fail(LS_EFORMAT, "%s:%d: '%s' holds a mapping: options are two levels deep, section and key", w->what, w->line, key);
    else if (e.type == YAML_MAPPING_START_EVENT) {
        st = remember(w, w->sections, &w->section_count, MOST_SECTIONS, key);
        if (st == LS_OK) st = section_entries(w, key);
    } else if (!dotted)
        st = ls_fail(LS_EFORMAT, "%s:%d: '%s' is a section: it must contain indented lines 'key: value'", w->what, w->line, key);
    else
        st = take_entry(w, key, &e);
    yaml_event_delete(&e);
    return st;
}

static ls_status top_entries(struct yaml_walk *w)
{
    for (;;) {
        yaml_event_t e;
        ls_status st = LS_OK;

        LS_TRY(next(w, &e));
        bool end = e.type == YAML_MAPPING_END_EVENT;
        if (!end) st = e.type == YAML_SCALAR_EVENT ? top_value(w, scalar(&e)) : yaml_refuse(w, "a key must be a scalar");
        yaml_event_delete(&e);
        if (end || st != LS_OK) return st;
    }
}

/* STREAM-START [DOCUMENT-START MAPPING DOCUMENT-END] STREAM-END; a file with only comments has no document. */
static ls_status yaml_stream(struct yaml_walk *w)
{
    bool had_document = false;

    for (;;) {
        yaml_event_t e;
        ls_status st = LS_OK;

        LS_TRY(next(w, &e));
        yaml_event_type_t type = e.type;
        bool empty = type == YAML_SCALAR_EVENT && e.data.scalar.length == 0 && e.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
        yaml_event_delete(&e);
        if (type == YAML_STREAM_END_EVENT) return LS_OK;
        if (type == YAML_MAPPING_START_EVENT) st = top_entries(w);
        if (type == YAML_SCALAR_EVENT && !empty) st = yaml_refuse(w, "expected sections, or keys as 'section.key: value'");
        if (type == YAML_DOCUMENT_START_EVENT && had_document) st = yaml_refuse(w, "a second document: a config file has one");
        if (type == YAML_DOCUMENT_START_EVENT) had_document = true;
        if (st != LS_OK) return st;
    }
}

ls_status yaml_parse(const char *text, size_t bytes, const char *what, yaml_entry_fn *fn, void *ctx)
{
    ls_status st;

    if (bytes > MOST_BYTES) return ls_fail(LS_EFORMAT, "%s: the config file is too large: %zu bytes; at most %d", what, bytes, MOST_BYTES);
    struct yaml_walk *w = mem_zalloc(MEM_OTHER, sizeof *w);
    if (!w) return ls_fail_at(LS_ENOMEM, "%s", what);
    w->what = what;
    w->fn = fn;
    w->ctx = ctx;
    if (!yaml_parser_initialize(&w->parser)) {
        st = ls_fail(LS_ENOMEM, "%s: out of memory in the YAML parser", what);
        goto free_walk;
    }
    yaml_parser_set_input_string(&w->parser, (const unsigned char *)text, bytes);
    st = yaml_stream(w);
    for (size_t i = 0; i < w->key_count; i++) mem_free(w->keys[i].name);
    for (size_t i = 0; i < w->section_count; i++) mem_free(w->sections[i].name);
    yaml_parser_delete(&w->parser);
free_walk:
    mem_free(w);
    return st;
}

ls_status yaml_read(const char *path, yaml_entry_fn *fn, void *ctx)
{
    struct file_map map;

    LS_TRY(file_map_open(path, &map));
    ls_status st = yaml_parse(map.bytes ? (const char *)map.data : "", map.bytes, path, fn, ctx);
    file_map_close(&map);
    return st;
}
