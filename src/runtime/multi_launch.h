/* multi_launch.h - neighboring instructions that are one launch (multi-tensor): those of an optimizer, which has one per parameter.
 *
 * A launch takes instructions [n, n + count) of a list, views between them aside, that have one kernel with run_many(), and run in the same
 * micro-batches. Only the first may wait for other streams, and only the last may be waited for, so the order is the same as without. None
 * touches what another writes, except for a "+=" output that neighbors share; the memory pass gives each its own scratch. Where
 * instructions are inspected one by one (program_launches_singly()) each is launched by itself. The bits are the same.
 */
#ifndef LS_RUNTIME_MULTI_LAUNCH_H
#define LS_RUNTIME_MULTI_LAUNCH_H

#include "ir/program.h"

/* The end of the instructions, from n on, that one launch could take, apart from what they touch and wait for. */
int multi_reach(const ls_program *p, enum segment s, int n);

/* Sets `multi` of each instruction, whose operands are bound; *most: calls of the longest launch. */
ls_status multi_find(ls_program *p, int *most);

ls_status multi_bind(ls_program *p); /* after operands and streams; nothing for an immediate device */
void multi_unbind(ls_program *p);
/* How many instructions of its list the launch of i takes in this run, views between them included; 1: i by itself. */
int multi_count(const ls_program *p, const struct instruction *i);
ls_status multi_launch(ls_program *p, const struct instruction *i, int count);

#endif
