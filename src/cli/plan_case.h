/* plan_case.h - a row of a table of published runs (plan_cases.h), and the machine that it ran on. */
#ifndef LS_CLI_PLAN_CASE_H
#define LS_CLI_PLAN_CASE_H

#include <stdbool.h>
#include "base/csv.h"
#include "base/text.h"
#include "plan/cluster.h"

struct plan_case {
    const struct csv *table;
    int row;
    struct text assumed; /* parts with "; " between them */
};

void case_assume(struct plan_case *r, const char *what);
const char *case_text(const struct plan_case *r, const char *column);
/* The number at the start of a field; `missing` if there is none. */
double case_number(const struct plan_case *r, const char *column, double missing);
int case_size(const struct plan_case *r, const char *column, int missing);
bool case_says(const struct plan_case *r, const char *column, const char *word);

/* By the column flash_attn; where it is empty, unless what the run holds says that it keeps its scores. */
bool attention_is_fused(const struct plan_case *r);

bool names_deepspeed(const struct plan_case *r);

/* The built-in machine whose processor the row names, or `given` (NULL: none), with the network and the software that the row says. */
ls_status case_machine(struct plan_case *r, const struct cluster *given, struct cluster *out);

#endif
