/* test_program_build.c - functions with which passes build programs: the cursor's scopes, and which instructions belong to an op. Misuse is
 * an internal error and fails an assertion. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <string.h>

#include "helper_check.h"
#include "helper_child.h"
#include "ir/program.h"

static ls_program *new_program(ls_store **s)
{
    ls_program *p;

    OK(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 0, 7, 0 }, s));
    OK(ls_program_new(*s, &p));
    return p;
}

static void release(ls_program *p, ls_store *s)
{
    ls_program_release(&p);
    ls_store_release(&s);
}

static void (*stopping)(ls_program *p);

static int run_stopping(void)
{
    ls_store *s;

    stopping(new_program(&s));
    return 0;
}

/* fn stops with an assertion that says this. */
static void stops(void (*fn)(ls_program *p), const char *assertion)
{
    stopping = fn;
    struct child c = child_run(NULL, run_stopping);
    child_expect(&c, -SIGABRT, assertion);
}

/* ---- the cursor ---- */

static ls_value one(ls_program *p) { return program_new_value(p, "x", LS_F32, 1, (size_t[]){ 1 }); }

static const struct instruction *fill(ls_program *p) { return program_append(p, OP_FILL, NULL, 0, NULL, 1, (ls_value[]){ one(p) }); }

static bool is_marked(const struct instruction *i, ls_phase phase, ls_when when, int block)
{
    return i->phase == phase && i->when == when && i->block == block;
}

static void scopes_nest_and_end_where_they_began(void **state)
{
    ls_store *s;
    ls_program *p = new_program(&s);

    (void)state;
    assert_true(is_marked(fill(p), LS_PHASE_FORWARD, LS_WHEN_ALWAYS, 0));
    ls_block_begin(p, "a");
    assert_true(is_marked(fill(p), LS_PHASE_FORWARD, LS_WHEN_ALWAYS, 1));
    struct cursor outer = program_cursor_segment(p, SEG_BACKWARD, LS_PHASE_INPUT_GRADIENT);
    assert_true(is_marked(fill(p), LS_PHASE_INPUT_GRADIENT, LS_WHEN_ALWAYS, 0));
    struct cursor inner = program_cursor_phase(p, LS_PHASE_WEIGHT_GRADIENT);
    struct cursor last = program_cursor_when(p, LS_WHEN_LAST);
    struct instruction like = *fill(p);
    assert_true(is_marked(&like, LS_PHASE_WEIGHT_GRADIENT, LS_WHEN_LAST, 0));
    program_cursor_end(p, last);
    last = program_cursor_block(p, 1);
    assert_true(is_marked(fill(p), LS_PHASE_WEIGHT_GRADIENT, LS_WHEN_ALWAYS, 1));
    program_cursor_end(p, last);
    program_cursor_end(p, inner);
    inner = program_cursor_like(p, &like);
    assert_true(is_marked(fill(p), LS_PHASE_WEIGHT_GRADIENT, LS_WHEN_LAST, 0));
    program_cursor_end(p, inner);
    assert_true(is_marked(fill(p), LS_PHASE_INPUT_GRADIENT, LS_WHEN_ALWAYS, 0));
    program_cursor_end(p, outer);
    assert_true(is_marked(fill(p), LS_PHASE_FORWARD, LS_WHEN_ALWAYS, 1));
    ls_block_end(p);
    assert_int_equal(p->list[SEG_FORWARD].n, 3);
    assert_int_equal(p->list[SEG_BACKWARD].n, 5);
    release(p, s);
}

static void end_outer_first(ls_program *p)
{
    struct cursor outer = program_cursor_phase(p, LS_PHASE_RECOMPUTE);

    program_cursor_phase(p, LS_PHASE_COMMUNICATE);
    program_cursor_end(p, outer);
}

static ls_status begin_only(ls_program *p, void *ctx)
{
    (void)ctx;
    program_cursor_segment(p, SEG_BACKWARD, LS_PHASE_COMMUNICATE);
    return LS_OK;
}

static void compile_with_open_scope(ls_program *p)
{
    p->arguments.distribution.pass = begin_only;
    ls_program_compile(p, NULL);
}

static void unbalanced_scope_stops(void **state)
{
    (void)state;
    stops(end_outer_first, "depth == before.depth + 1");
    stops(compile_with_open_scope, "depth == 1");
}

/* ---- what belongs to the instructions of one op ---- */

static void read_move_of_fill(ls_program *p)
{
    instruction_move(fill(p));
}

static void set_exchange_of_view(ls_program *p)
{
    ls_value x = one(p);
    struct instruction *i = program_append(p, OP_VIEW, NULL, 1, &x, 1, &x);

    instruction_set_exchange(i, &(struct exchange){ .op = LS_COLLECTIVE_ALL_REDUCE });
}

static void payload_of_another_op_stops(void **state)
{
    (void)state;
    stops(read_move_of_fill, "PAYLOAD_move");
    stops(set_exchange_of_view, "PAYLOAD_exchange");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scopes_nest_and_end_where_they_began),
        cmocka_unit_test(unbalanced_scope_stops),
        cmocka_unit_test(payload_of_another_op_stops),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
