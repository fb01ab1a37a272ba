/* csv.c - see csv.h. */
#include "base/csv.h"

#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"

struct csv_reading {
    const char *path;
    char *at;   /* the next byte */
    char *to;   /* where the next byte of a field goes: never past `at` */
    int line;   /* number of the line that `at` is in */
    char **all; /* fields of all rows, the names first */
    int n, room, columns;
};

static ls_status csv_add(struct csv_reading *r, char *field)
{
    if (r->n == r->room) {
        char **grown = mem_resize(r->all, (size_t)(2 * r->room + 256) * sizeof *grown);

        if (!grown) return LS_ENOMEM;
        r->all = grown;
        r->room = 2 * r->room + 256;
    }
    r->all[r->n++] = field;
    return LS_OK;
}

/* Reads a quoted field, whose opening quote has been read. */
static ls_status csv_quoted(struct csv_reading *r)
{
    int first = r->line;

    while (*r->at && (*r->at != '"' || r->at[1] == '"')) {
        if (*r->at == '"') r->at++;
        r->line += *r->at == '\n';
        *r->to++ = *r->at++;
    }
    if (!*r->at) return ls_fail(LS_EFORMAT, "%s:%d: a quote is not closed", r->path, first);
    r->at++;
    return LS_OK;
}

/* Reads a field and the character that ends it. *last: it is the last of its row. */
static ls_status csv_next(struct csv_reading *r, bool *last)
{
    char *field = r->to;

    if (*r->at == '"') {
        r->at++;
        LS_TRY(csv_quoted(r));
    }
    while (*r->at && *r->at != ',' && *r->at != '\n' && *r->at != '\r') *r->to++ = *r->at++;
    if (*r->at == '\r' && r->at[1] == '\n') r->at++;
    char end = *r->at;
    r->at += end != '\0';
    *r->to++ = '\0';
    *last = end != ',';
    return csv_add(r, field);
}

static ls_status csv_row(struct csv_reading *r)
{
    int first = r->n, line = r->line;
    bool last = false;

    while (!last) LS_TRY(csv_next(r, &last));
    r->line++;
    if (r->columns == 0) r->columns = r->n;
    if (r->n - first == 1 && r->columns > 1 && !*r->all[first]) {
        r->n = first; /* an empty line */
        return LS_OK;
    }
    if (r->n - first == r->columns || first == 0) return LS_OK;
    return ls_fail(LS_EFORMAT, "%s:%d: %d fields; the first line names %d columns", r->path, line, r->n - first, r->columns);
}

static ls_status csv_rows(struct csv_reading *r)
{
    while (*r->at) LS_TRY(csv_row(r));
    return r->columns ? LS_OK : ls_fail(LS_EFORMAT, "%s: it is empty; the first line names the columns", r->path);
}

ls_status csv_read(const char *path, struct csv *out)
{
    struct csv_reading r = { .path = path, .line = 1 };
    size_t bytes;
    char *text;

    *out = (struct csv){ 0 };
    LS_TRY(file_read(path, &text, &bytes));
    char *own = mem_alloc(MEM_OTHER, bytes + 2); /* a field that ends the file gets a NUL of its own */
    ls_status st = own ? LS_OK : LS_ENOMEM;
    if (st == LS_OK) {
        memcpy(own, text, bytes);
        own[bytes] = own[bytes + 1] = '\0';
        r.at = r.to = own;
        st = csv_rows(&r);
    }
    mem_free(text);
    if (st < 0) {
        mem_free(own);
        mem_free(r.all);
        return st;
    }
    *out = (struct csv){ own, r.all + r.columns, r.all, r.n / r.columns - 1, r.columns };
    return LS_OK;
}

void csv_free(struct csv *c)
{
    mem_free(c->name);
    mem_free(c->text);
    *c = (struct csv){ 0 };
}

static int column_of(const struct csv *c, const char *name)
{
    for (int i = 0; i < c->columns; i++)
        if (strcmp(c->name[i], name) == 0) return i;
    return -1;
}

bool csv_has(const struct csv *c, const char *name) { return column_of(c, name) >= 0; }

const char *csv_field(const struct csv *c, int row, const char *name)
{
    int column = column_of(c, name);

    return column < 0 ? "" : c->field[row * c->columns + column];
}

void csv_put(struct text *out, const char *field)
{
    if (!strpbrk(field, ",\"\r\n")) {
        text_put(out, "%s", field);
        return;
    }
    text_put(out, "\"");
    for (; *field; field++) text_put(out, "%s%c", *field == '"' ? "\"" : "", *field);
    text_put(out, "\"");
}
