/* options_find.c - finds rows of an option table by name or alias, and suggests rows for unknown names. */
#include "base/options.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"

enum { NEAR_ENOUGH = 3 }; /* a suggestion differs in at most this many letters, and in at most half of them */

const struct option *options_find(const struct option_table *t, const char *name)
{
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->rows[i].name, name) == 0) return &t->rows[i];
    for (size_t i = 0; i < t->count; i++)
        if (t->rows[i].alias && strcmp(t->rows[i].alias, name) == 0) return &t->rows[i];
    return NULL;
}

/* Index of `text` in "a|b|c", or -1. */
int options_choice_of(const char *choices, const char *text)
{
    size_t length = strlen(text);

    for (int i = 0;; i++) {
        size_t one = strcspn(choices, "|");

        if (one == length && memcmp(choices, text, length) == 0) return i;
        if (choices[one] == '\0') return -1;
        choices += one + 1;
    }
}

static bool is_read(const struct option *row, unsigned verb) { return !verb || (row->verbs & verb); }

/* Lower case, with '-' as '_'. */
static bool same_word(const char *word, const char *key)
{
    for (; *word && *key; word++, key++) {
        char c = *key == '-' ? '_' : *key >= 'A' && *key <= 'Z' ? (char)(*key - 'A' + 'a') : *key;

        if (c != *word) return false;
    }
    return *word == *key;
}

static size_t section_of(const char *name)
{
    const char *dot = strchr(name, '.');

    return dot ? (size_t)(dot - name) : 0;
}

static const char *options_key_of(const char *name) { return name + (strchr(name, '.') ? section_of(name) + 1 : 0); }

static bool same_section(const char *a, const char *b)
{
    return section_of(a) && section_of(a) == section_of(b) && memcmp(a, b, section_of(a)) == 0;
}

/* How different a row's name or alias is from what was written: twice the letters that differ, less 1 in the same section; SIZE_MAX: too
 * different. The key in another section and a key that begins with what was written differ in one letter. */
static size_t difference(const char *name, const char *row)
{
    const char *key = options_key_of(name);
    bool same = same_section(name, row), begins = strlen(key) >= 3 && strncmp(key, options_key_of(row), strlen(key)) == 0;
    size_t distance = text_distance(name, row);

    if (strcmp(key, options_key_of(row)) == 0 || (same && begins)) distance = MIN(distance, 1);
    if (distance > MIN((size_t)NEAR_ENOUGH, strlen(same ? key : name) / 2)) return SIZE_MAX;
    return 2 * distance - (same && distance);
}

/* Of two equally similar rows, the one in the same section; of a row's name and its alias, the name. *by_alias: the alias is nearer. */
static const struct option *nearest_row(const struct option_table *t, const char *name, bool *by_alias)
{
    const struct option *best = NULL;
    size_t least = SIZE_MAX;

    for (size_t i = 0; i < t->count; i++)
        for (int alias = 0; alias < (t->rows[i].alias ? 2 : 1); alias++) {
            size_t distance = difference(name, alias ? t->rows[i].alias : t->rows[i].name);

            if (distance >= least) continue;
            least = distance;
            best = &t->rows[i];
            *by_alias = alias;
        }
    return best;
}

const char *options_nearest(const struct option_table *t, const char *name)
{
    bool by_alias;
    const struct option *row = nearest_row(t, name, &by_alias);

    return row ? row->name : NULL;
}

/* The row with this key: of several, the one whose section is nearest to what was written, or the first. With `aliases`, by the keys of
 * aliases. */
static const struct option *find_key(const struct option_table *t, unsigned verb, const char *name, bool aliases)
{
    const struct option *found = NULL;
    size_t least = SIZE_MAX;

    for (size_t i = 0; i < t->count; i++) {
        const struct option *row = &t->rows[i];
        const char *own = aliases ? row->alias : row->name;
        size_t distance = section_of(name) && own ? text_distance(name, own) : 0;

        if (!own || !is_read(row, verb) || !same_word(options_key_of(own), options_key_of(name)) || distance >= least) continue;
        least = distance;
        found = row;
    }
    return found;
}

static const struct option_hint *find_hint(const struct option_table *t, unsigned verb, const char *name, bool section)
{
    for (size_t i = 0; i < t->hint_count; i++) {
        const struct option_hint *h = &t->hints[i];

        if (same_word(h->word, options_key_of(name)) && is_read(options_find(t, h->of), verb) && (!section || same_section(name, h->of)))
            return h;
    }
    return NULL;
}

/* A value used as a key in the same section: one of an enumeration's values, or a value that takes an argument, a capital letter in the
 * row's help: "every" with 3 is recompute.mode=every:3, because that help says "every:K". Returns the row and the start of its value. */
static const struct option *find_value(const struct option_table *t, unsigned verb, const char *name, const char *value, char out[64])
{
    const char *key = options_key_of(name);
    size_t length = strlen(key);

    for (size_t i = 0; i < t->count && length; i++) {
        const struct option *row = &t->rows[i];

        if (!same_section(name, row->name) || !is_read(row, verb)) continue;
        snprintf(out, 64, "%s", key);
        if (row->kind == OPTION_KIND_ENUM && options_choice_of(row->choices, key) >= 0) return row;
        for (const char *at = strstr(row->help, key); at; at = strstr(at + 1, key)) {
            size_t word = strspn(at + length, "ABCDEFGHIJKLMNOPQRSTUVWXYZ:");

            if (at == row->help || at[-1] != ' ' || at[length] != ':' || word < 2) continue;
            if (value)
                snprintf(out, 64, "%s:%s", key, value);
            else
                snprintf(out, 64, "%.*s", (int)(length + word), at);
            return row;
        }
    }
    return NULL;
}

bool options_suggest(const struct option_table *t, unsigned verb, const char *name, const char *value, bool sure, char *out, size_t room)
{
    const struct option *row = find_key(t, verb, name, false), *with;
    const struct option_hint *hint = NULL;
    bool by_alias = false;
    const char *found = row ? row->name : NULL;
    char whole[64];

    if (!row || !same_section(row->name, name)) {
        with = find_value(t, verb, name, value, whole);
        hint = with ? NULL : find_hint(t, verb, name, true);
        if (!with && !hint && !row) hint = find_hint(t, verb, name, false);
        if (with || hint) found = with ? with->name : hint->of;
        if (with) value = whole;
        if (hint && hint->value) value = hint->value;
    }
    if (!found) {
        row = find_key(t, verb, name, true);
        by_alias = row != NULL;
        if (!row && !sure) row = nearest_row(t, name, &by_alias);
        found = row ? row->name : NULL;
        if (by_alias && row->alias_inverts) value = NULL; /* it was meant the other way round */
    }
    if (found) snprintf(out, room, "%s%s%s", found, value ? "=" : "", value ? value : "");
    return found;
}
