/* plan_case.c - see plan_case.h. */
#include "cli/plan_case.h"

#include <stdlib.h>
#include <string.h>

void case_assume(struct plan_case *r, const char *what) { text_put(&r->assumed, "%s%s", r->assumed.bytes ? "; " : "", what); }

const char *case_text(const struct plan_case *r, const char *column) { return csv_field(r->table, r->row, column); }

double case_number(const struct plan_case *r, const char *column, double missing)
{
    const char *text = case_text(r, column);
    char *end;
    double x = strtod(text, &end);

    return end == text ? missing : x;
}

int case_size(const struct plan_case *r, const char *column, int missing) { return (int)case_number(r, column, missing); }

bool case_says(const struct plan_case *r, const char *column, const char *word) { return strstr(case_text(r, column), word) != NULL; }
