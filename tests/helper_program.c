#include "helper_program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "comm/algorithms/steps.h"
#include "helper_check.h"
#include "helper_forked.h"

ls_comm *plan_comm(int rank, int n)
{
    ls_comm *c;

    OK(ls_comm_open("plan:", rank, n, &c));
    return c;
}

ls_store *seeded_store(ls_dtype type)
{
    ls_store *s;

    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", type, 0, 7, 0 }, &s));
    return s;
}

ls_program *program_on(ls_store *s)
{
    ls_program *p;

    RANKS_TRY(ls_program_new(s, &p));
    return p;
}

static ls_value emit_range(ls_program *p, ls_value x, size_t begin, size_t count)
{
    ptrdiff_t one = 1;

    return program_view(p, x, (struct view_rule){ VIEW_SLICE, 0, 0, begin }, 1, &count, &one, (ptrdiff_t)begin);
}

ls_value emit_copy(ls_program *p, ls_value x, ls_value to) { return program_emit(p, OP_COPY, NULL, 1, &x, 1, &to); }

ls_value emit_own_block(ls_program *p, ls_comm *c, ls_value x, size_t total)
{
    size_t begin = block_at(total, ls_comm_rank(c), ls_comm_size(c)), end = block_at(total, ls_comm_rank(c) + 1, ls_comm_size(c));

    return emit_range(p, x, begin, end - begin);
}
