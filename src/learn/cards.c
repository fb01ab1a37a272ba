/* cards.c - reads cards, and fills in their sizes. */
#include "learn/cards.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/yaml.h"

static const struct text_key {
    const char *name;
    size_t at;
    bool needed;
} text_keys[] = {
#define TEXT_KEY(key, needed) { #key, offsetof(struct card, key), needed },
    CARD_TEXT_MAP(TEXT_KEY)
#undef TEXT_KEY
};
static const struct number_key {
    const char *name;
    size_t at;
} number_keys[] = {
    { "scale", offsetof(struct card, scale) },
    { "said", offsetof(struct card, said) },
    { "expected", offsetof(struct card, expected) },
    { "tolerance", offsetof(struct card, tolerance) },
};

static char **text_of(struct card *c, const struct text_key *k) { return (char **)((char *)c + k->at); }

/* ---- sizes ---- */

/* A size of "stages=4,8 ranks=2,4": its name and values, as parts of that text. */
struct size {
    const char *name, *values;
    int name_length, count;
};

/* Size i of the text; false past the last, or if it is not of this form. */
static bool size_at(const char *sizes, int i, struct size *out)
{
    for (const char *s = sizes; s; s = strchr(s, ' ')) {
        s += strspn(s, " ");
        if (i-- > 0) continue;
        const char *equals = strchr(s, '='), *end = s + strcspn(s, " ");

        if (!equals || equals >= end || equals == s || equals + 1 == end) return false;
        *out = (struct size){ .name = s, .name_length = (int)(equals - s), .values = equals + 1, .count = 1 };
        for (const char *v = out->values; v < end; v++) {
            if (*v == ',' && (v == out->values || v[-1] == ',' || v + 1 == end)) return false;
            out->count += *v == ',';
        }
        return true;
    }
    return false;
}

static int size_count(const struct card *c)
{
    struct size s;
    int n = 0;

    while (c->sizes && n < CARD_SIZES_MOST && size_at(c->sizes, n, &s)) n++;
    return n;
}

int card_variants(const struct card *c)
{
    struct size s;
    int n = 1;

    for (int i = 0; i < size_count(c); i++)
        if (size_at(c->sizes, i, &s)) n *= s.count;
    return n;
}

/* The value of size `name` in a variant; *length 0: the card has no such size. Variants count up the last size first. */
static const char *size_value(const struct card *c, int variant, const char *name, size_t name_length, size_t *length)
{
    struct size s;

    *length = 0;
    for (int i = size_count(c) - 1; i >= 0; i--) {
        if (!size_at(c->sizes, i, &s)) break;
        int which = variant % s.count;
        const char *v = s.values;

        variant /= s.count;
        if ((size_t)s.name_length != name_length || memcmp(s.name, name, name_length) != 0) continue;
        while (which-- > 0) v = strchr(v, ',') + 1;
        *length = strcspn(v, ", ");
        return v;
    }
    return "";
}

char *card_fill(const struct card *c, const char *text, int variant)
{
    struct text out = { 0 };
    size_t length;

    text_add(&out, "", 0);
    while (*text) {
        size_t plain = strcspn(text, "{"), name = text[plain] ? strcspn(text + plain + 1, "}") : 0;

        text_add(&out, text, plain);
        text += plain;
        if (!*text) break;
        const char *value = size_value(c, variant, text + 1, name, &length);
        if (length)
            text_add(&out, value, length), text += name + 2;
        else
            text_add(&out, text++, 1);
    }
    if (text_status(&out) == LS_OK) return out.data ? out.data : mem_strdup("");
    text_free(&out);
    return NULL;
}

/* ---- reading ---- */

struct reading {
    struct cards *cards;
    size_t room;
};

static ls_status read_number(const char *key, const char *value, double *out)
{
    return text_read_real(value, out) ? LS_OK : ls_fail(LS_EFORMAT, "'%s' is not a number: '%s'", key, value);
}

static ls_status read_grill(struct card *c, const char *value)
{
    for (size_t i = 0; i + 1 < COUNT_OF(c->grill); i++) {
        char *end;
        long n = strtol(value, &end, 10);

        if (end == value || n < 1 || n > GRILL_QUESTIONS || (*end && *end != ' ')) break;
        c->grill[i] = (int)n;
        value = end + strspn(end, " ");
        if (!*value) return LS_OK;
    }
    return ls_fail(LS_EFORMAT, "'grill' must be one or two numbers, 1 to %d", GRILL_QUESTIONS);
}

static ls_status read_key(struct card *c, const char *key, const char *value)
{
    for (size_t i = 0; i < COUNT_OF(text_keys); i++)
        if (strcmp(key, text_keys[i].name) == 0) return (*text_of(c, &text_keys[i]) = mem_strdup(value)) ? LS_OK : LS_ENOMEM;
    for (size_t i = 0; i < COUNT_OF(number_keys); i++)
        if (strcmp(key, number_keys[i].name) == 0) return read_number(key, value, (double *)((char *)c + number_keys[i].at));
    return strcmp(key, "grill") == 0 ? read_grill(c, value) : ls_fail(LS_EFORMAT, "a card has no key '%s'", key);
}

static ls_status new_card(struct reading *r, const char *id, size_t length, int line)
{
    struct cards *all = r->cards;

    if (all->count == r->room) {
        size_t room = r->room ? 2 * r->room : 64;
        struct card *more = mem_resize(all->card, room * sizeof *more);

        if (!more) return LS_ENOMEM;
        all->card = more;
        r->room = room;
    }
    struct card *c = &all->card[all->count];
    *c = (struct card){ .scale = 1, .said = NAN, .expected = NAN, .tolerance = NAN, .line = line };
    if (!(c->id = mem_strdup(id))) return LS_ENOMEM;
    c->id[length] = '\0';
    all->count++;
    return LS_OK;
}

static ls_status take_card_entry(void *ctx, const char *key, const char *value, int line)
{
    struct reading *r = ctx;
    const char *dot = strchr(key, '.');
    size_t length = (size_t)(dot - key);
    struct card *last = r->cards->count ? &r->cards->card[r->cards->count - 1] : NULL;

    if (!last || strlen(last->id) != length || memcmp(last->id, key, length) != 0) LS_TRY(new_card(r, key, length, line));
    return read_key(&r->cards->card[r->cards->count - 1], dot + 1, value);
}

static ls_status cards_check_sizes(const struct card *c, const char *what)
{
    struct size s;
    char name[64];
    int n = 0;

    for (const char *p = c->sizes; p; p = strchr(p, ' ')) p += strspn(p, " "), n++;
    if (n > CARD_SIZES_MOST) return ls_fail(LS_EFORMAT, "%s:%d: card %s has more than %d sizes", what, c->line, c->id, CARD_SIZES_MOST);
    for (int i = 0; i < n; i++) {
        if (!size_at(c->sizes, i, &s) || s.name_length > 32)
            return ls_fail(LS_EFORMAT, "%s:%d: sizes of card %s must be NAME=VALUE,VALUE.. with spaces between", what, c->line, c->id);
        snprintf(name, sizeof name, "{%.*s}", s.name_length, s.name);
        if (!strstr(c->run, name))
            return ls_fail(LS_EFORMAT, "%s:%d: the command of card %s does not use the size %s", what, c->line, c->id, name);
    }
    return LS_OK;
}

static ls_status check_card(struct card *c, const char *what)
{
    for (size_t i = 0; i < COUNT_OF(text_keys); i++)
        if (text_keys[i].needed && !*text_of(c, &text_keys[i]))
            return ls_fail(LS_EFORMAT, "%s:%d: card %s has no '%s'", what, c->line, c->id, text_keys[i].name);
    if (c->ask && (!c->row || isnan(c->expected) || isnan(c->tolerance)))
        return ls_fail(LS_EFORMAT, "%s:%d: card %s asks for a number: it needs 'row', 'expected' and 'tolerance'", what, c->line, c->id);
    if (!c->ask && (c->row || c->unit || c->claim || !isnan(c->said) || !isnan(c->expected) || !isnan(c->tolerance)))
        return ls_fail(LS_EFORMAT, "%s:%d: card %s has keys of a number, but no 'ask'", what, c->line, c->id);
    return cards_check_sizes(c, what);
}

ls_status cards_read(const char *text, size_t bytes, const char *what, struct cards *out)
{
    struct reading r = { .cards = out };

    *out = (struct cards){ 0 };
    ls_status st = yaml_parse(text, bytes, what, take_card_entry, &r);
    for (size_t i = 0; st == LS_OK && i < out->count; i++) st = check_card(&out->card[i], what);
    if (st != LS_OK) cards_free(out);
    return st;
}

void cards_free(struct cards *c)
{
    for (size_t i = 0; i < c->count; i++) {
        mem_free(c->card[i].id);
        for (size_t k = 0; k < COUNT_OF(text_keys); k++) mem_free(*text_of(&c->card[i], &text_keys[k]));
    }
    mem_free(c->card);
    *c = (struct cards){ 0 };
}

const struct card *cards_find(const struct cards *c, const char *id)
{
    for (size_t i = 0; i < c->count; i++)
        if (strcasecmp(c->card[i].id, id) == 0) return &c->card[i];
    return NULL;
}

const struct card *cards_of_grill(const struct cards *c, int number)
{
    for (size_t i = 0; i < c->count; i++)
        for (const int *g = c->card[i].grill; *g; g++)
            if (*g == number) return &c->card[i];
    return NULL;
}

bool card_has_number(const struct card *c) { return c->ask != NULL; }
