/* plan_case.c - see plan_case.h. */
#include "cli/plan_case.h"

#include <ctype.h>
#include <limits.h>
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

int case_size(const struct plan_case *r, const char *column, int missing)
{
    double x = case_number(r, column, missing);

    return x >= INT_MAX ? INT_MAX : x <= 0 ? 0 : (int)x;
}

ls_status case_check_number(const struct plan_case *r, const char *column)
{
    const char *text = case_text(r, column);
    char *end;
    double x = strtod(text, &end);

    if (end == text) return LS_OK; /* not published, or said in words */
    if (isalpha((unsigned char)*end) || !(x >= 0 && x < INT_MAX))
        return ls_fail(LS_EINVAL, "%s is '%s'; use a number from 0 to %d", column, text, INT_MAX - 1);
    return LS_OK;
}

bool case_says(const struct plan_case *r, const char *column, const char *word) { return strstr(case_text(r, column), word) != NULL; }
