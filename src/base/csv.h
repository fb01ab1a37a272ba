/* csv.h - reads a table of comma-separated values with a line of column names (RFC 4180: fields in double quotes may hold commas, line
 * feeds and doubled quotes). */
#ifndef LS_BASE_CSV_H
#define LS_BASE_CSV_H

#include "base/text.h"

struct csv {
    char *text;   /* the fields, each ended by a NUL */
    char **field; /* [rows][columns] */
    char **name;  /* [columns] */
    int rows, columns;
};

/* LS_EFORMAT with the line of a row that has another number of fields than there are columns, or of a quote that is not closed. */
ls_status csv_read(const char *path, struct csv *out);
void csv_free(struct csv *c); /* a zeroed one is a no-op */
/* The field of a row in the column of this name; "" if there is no such column. */
const char *csv_field(const struct csv *c, int row, const char *name);
bool csv_has(const struct csv *c, const char *name);
/* Appends a field, in quotes where it needs them. */
void csv_put(struct text *out, const char *field);

#endif
