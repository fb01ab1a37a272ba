/* plan_case.h - a row of a table of published runs (plan_cases.h), and the machine that it ran on. */
#ifndef LS_CLI_PLAN_CASE_H
#define LS_CLI_PLAN_CASE_H

#include <stdbool.h>
#include "base/csv.h"
#include "base/options.h"
#include "base/text.h"
#include "plan/cluster.h"

struct plan_case {
    const struct csv *table;
    int row;
    struct text assumed; /* parts with "; " between them */
    struct text stages;  /* text of ls_layout.stages, if a row's first and last stage have no blocks */
};

void case_assume(struct plan_case *r, const char *what);
const char *case_text(const struct plan_case *r, const char *column);
/* The number at the start of a field; `missing` if it does not start with one. */
double case_number(const struct plan_case *r, const char *column, double missing);
int case_size(const struct plan_case *r, const char *column, int missing); /* at least 0 */
/* LS_EINVAL: it is a number below 0 or from INT_MAX on, or one with a unit after it ("4k"). */
ls_status case_check_number(const struct plan_case *r, const char *column);
bool case_says(const struct plan_case *r, const char *column, const char *word);

/* plan_case_model.c. The i-th column that a row cannot do without; NULL past the last. */
const char *case_needed(size_t i);
/* LS_EINVAL: a size is not published, or the planner has no rule for the model. */
ls_status case_check_model(const struct plan_case *r);
bool case_has_experts(const struct plan_case *r); /* judged by the model's name */
/* Ranks over which whole experts are distributed, those of tp first, as in Megatron with expert_tensor_parallel_size 1; 0: experts are
 * sharded over tp. */
int case_whole_experts(const struct plan_case *r);
/* How rows are exchanged between experts: NeMo AutoModel's and Megatron-Bridge's recipes send one copy to each node (DeepEP, HybridEP). */
void case_put_exchange(const struct plan_case *r, struct cluster *c);
/* Notes in r->assumed what that name was taken to mean. */
void case_assume_model(struct plan_case *r);
/* The options of the row's model. */
ls_status case_put_model(const struct plan_case *r, struct options *o);

/* False if flash_attn is 0, or if it is empty and the source is a zero-bubble run, whose published memory includes the scores. */
bool attention_is_fused(const struct plan_case *r);
bool is_zero_bubble(const struct plan_case *r);

bool names_deepspeed(const struct plan_case *r);

/* plan_case_machine.c. The built-in machine whose processor the row names, or `given` (NULL: none), with the network and the software of
 * the row. */
ls_status case_machine(struct plan_case *r, const struct cluster *given, struct cluster *out);

#endif
