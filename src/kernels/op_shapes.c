/* op_shapes.c - compares operands with the shapes in their op's row (notation: op_list.h).
 *
 * The text is read from left to right, once per call. A letter gets its size from the first operand that has it, and later operands are
 * compared with it; the same holds for the leading dims `..` and the whole shape `*`.
 */
#include "kernels/op_shapes.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"

enum { NAME = 8, LETTERS = 16, ITEMS = 12 };

/* A list of sizes seen before: the leading dims, or a whole shape. */
struct run {
    bool known;
    int n;
    size_t size[LS_DIMS];
};

struct match {
    const char *at; /* position in the text */
    struct {
        char name[NAME];
        size_t size;
    } letter[LETTERS];
    int letters;
    struct run lead, whole;
    const struct view *v; /* the operand being compared */
    const char *from;     /* its part of the text */
    char *why;
    size_t room;
};

static bool wrong(struct match *m, const char *fmt, ...) LS_PRINTF(2, 3);

static bool wrong(struct match *m, const char *fmt, ...)
{
    int named = (int)strcspn(m->from, " ");
    char shape[128] = "";
    va_list args;

    for (int d = 0; d < m->v->ndim; d++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%zu", d ? "," : "", m->v->size[d]);
    int n = snprintf(m->why, m->room, "%.*s is %s [%s]: ", named, m->from, ls_dtype_name(m->v->dtype), shape);
    va_start(args, fmt);
    if (n >= 0 && (size_t)n < m->room) vsnprintf(m->why + n, m->room - (size_t)n, fmt, args);
    va_end(args);
    return false;
}

/* ---- one size against a letter, a number or a sum of both ---- */

static size_t *letter_find(struct match *m, const char *name, size_t length)
{
    for (int k = 0; k < m->letters; k++)
        if (strlen(m->letter[k].name) == length && memcmp(m->letter[k].name, name, length) == 0) return &m->letter[k].size;
    return NULL;
}

/* Sets name = size, or compares with its earlier size. */
static bool letter_is(struct match *m, const char *name, size_t length, size_t size)
{
    const size_t *known = letter_find(m, name, length);

    if (known) return *known == size || wrong(m, "%.*s was %zu before, but is %zu here", (int)length, name, *known, size);
    ASSERT(m->letters < LETTERS && length < NAME);
    memcpy(m->letter[m->letters].name, name, length);
    m->letter[m->letters++].size = size;
    return true;
}

/* "3", "K", "2C", "2C+1" */
static bool term_is(struct match *m, const char *text, size_t length, size_t size)
{
    const char *end = text + length, *name = text, *plus = memchr(text, '+', length);
    size_t times = 1, more = plus ? strtoul(plus + 1, NULL, 10) : 0;

    if (isdigit((unsigned char)*text)) {
        char *after;

        times = strtoul(text, &after, 10);
        if (after == end) return size == times || wrong(m, "expected %zu, got %zu", times, size);
        name = after;
    }
    size_t letters = (size_t)((plus ? plus : end) - name);
    if (size < more || (size - more) % times) return wrong(m, "%zu is not of the form %.*s", size, (int)length, text);
    return letter_is(m, name, letters, (size - more) / times);
}

/* "1|2", "B|1": one of the two. If the letter is known, it is compared before it is bound. */
static bool item_is(struct match *m, const char *text, size_t length, size_t size)
{
    const char *bar = memchr(text, '|', length);
    size_t first = bar ? (size_t)(bar - text) : length;

    if (!bar) return term_is(m, text, length, size);
    if (size == strtoul(bar + 1, NULL, 10)) return true;
    const size_t *known = isdigit((unsigned char)*text) ? NULL : letter_find(m, text, first);
    return known ? *known == size || wrong(m, "expected %.*s, got %zu", (int)length, text, size) : term_is(m, text, first, size);
}

/* ---- shapes ---- */

static bool run_is(struct match *m, struct run *r, const char *what, int n, const size_t *size)
{
    if (!r->known) {
        *r = (struct run){ .known = true, .n = n };
        memcpy(r->size, size, (size_t)n * sizeof *size);
        return true;
    }
    return (r->n == n && memcmp(r->size, size, (size_t)n * sizeof *size) == 0) || wrong(m, "%s differs from the shape before", what);
}

/* A suffix of the whole shape, or one element. */
static bool suffix_is(struct match *m)
{
    const struct run *r = &m->whole;
    int n = m->v->ndim;

    if (view_count(m->v) == 1 || (n <= r->n && memcmp(r->size + r->n - n, m->v->size, (size_t)n * sizeof *r->size) == 0)) return true;
    return wrong(m, "neither the shape before, nor a suffix of it, nor one element");
}

/* m->at is inside the brackets; ends after them. */
static bool shape_fits(struct match *m)
{
    struct {
        const char *text;
        size_t length;
    } item[ITEMS];
    const struct view *v = m->v;
    int n = 0, fold = -1;

    while (*m->at != ']') {
        size_t length = strcspn(m->at, ",]");

        ASSERT(n < ITEMS);
        item[n].text = m->at;
        item[n].length = length;
        if (strncmp(m->at, "..", 2) == 0 || *m->at == '*' || *m->at == '~' || (*m->at == 'R' && length == 1)) fold = n;
        n++;
        m->at += length + (m->at[length] == ',');
    }
    m->at++;
    if (fold < 0 ? v->ndim != n : v->ndim < n - 1) return wrong(m, "%d dims", v->ndim);
    int lead = v->ndim - (n - 1); /* dims that the folded item stands for */
    for (int k = 0; k < n; k++) {
        int d = fold < 0 || k < fold ? k : k - 1 + lead;
        size_t product = 1;

        if (k != fold) {
            if (!item_is(m, item[k].text, item[k].length, v->size[d])) return false;
            continue;
        }
        for (int j = k; j < k + lead; j++) product *= v->size[j];
        if (*item[k].text == 'R' ? !letter_is(m, "R", 1, product)
            : *item[k].text == '~'
                ? !suffix_is(m)
                : !run_is(m, *item[k].text == '*' ? &m->whole : &m->lead, *item[k].text == '*' ? "it" : "..", lead, v->size + k))
            return false;
    }
    return true;
}

static bool type_fits(struct match *m)
{
    static const struct {
        const char *text;
        ls_dtype type;
    } types[] = { { "i32", LS_I32 }, { "i64", LS_I64 }, { "f64", LS_F64 } };

    for (size_t k = 0; k < COUNT_OF(types); k++)
        if (strncmp(m->at, types[k].text, 3) == 0) {
            m->at += 3;
            return m->v->dtype == types[k].type || wrong(m, "%s expected", types[k].text);
        }
    return true;
}

/* Compares one operand of the text with its view; NULL: the call has none. */
static bool operand_fits(struct match *m, const struct view *v)
{
    m->from = m->at;
    m->at += strcspn(m->at, "[?+ ");
    if (!v || !view_given(v)) {
        size_t length = strcspn(m->from, " ");

        m->at = m->from + length;
        if (memchr(m->from, '?', length)) return true;
        snprintf(m->why, m->room, "%.*s is missing", (int)length, m->from);
        return false;
    }
    m->v = v;
    if (*m->at == '[') {
        m->at++;
        if (!shape_fits(m) || !type_fits(m)) return false;
    }
    m->at += strcspn(m->at, " ");
    return true;
}

static bool side_fits(struct match *m, int n, const struct view *v, const char *what)
{
    int k = 0;

    for (; *m->at && strncmp(m->at, "->", 2) != 0; k++) {
        bool several = strncmp(m->at + strcspn(m->at, " ."), "...", 3) == 0;

        if (several) {
            k = n - 1;
            m->at += strcspn(m->at, " ");
        } else if (!operand_fits(m, k < n ? &v[k] : NULL)) {
            return false;
        }
        m->at += *m->at == ' ';
    }
    for (; k < n; k++)
        if (view_given(&v[k])) {
            snprintf(m->why, m->room, "%s %d is not in the op's shapes", what, k);
            return false;
        }
    return true;
}

bool op_shapes_fit(const struct call *c, char *why, size_t room)
{
    struct match m = { .at = op_shapes(c->op), .why = why, .room = room };

    if (!side_fits(&m, c->nin, c->in, "input")) return false;
    m.at += strlen("->");
    m.at += *m.at == ' ';
    return side_fits(&m, c->nout, c->out, "output");
}

bool op_adds(enum op op, int k)
{
    const char *at = strstr(op_shapes(op), "->") + strlen("->");

    for (at += strspn(at, " "); k && *at; k--) {
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    size_t length = strcspn(at, " ");
    return length > 2 && strncmp(at + length - 2, "+=", 2) == 0;
}
