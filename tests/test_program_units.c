/* test_program_units.c - flat buffers of the store's units as values of a program, passes of the caller, offloaded state. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "comm/algorithms/steps.h"
#include "helper_check.h"
#include "helper_program.h"
#include "lockstep/ops.h"
#include "ir/program.h"
#include "runtime/store.h"

/* ---- units as values ---- */

enum { WIDTH = 6 };

/* Two layers whose four parameters make one unit of the store. */
static ls_store *unit_store(ls_comm *c, unsigned sharded, enum store_backing backing)
{
    struct store_unit_options o = { .sharded = sharded, .backing = { [STORE_STATE] = backing }, .path = "/tmp" };
    static const char *const names[] = { "h.0.weight", "h.0.bias", "h.1.weight", "h.1.bias" };
    ls_store *s = seeded_store(LS_F32);
    int params[4], unit;

    for (int k = 0; k < 4; k++)
        OK(store_declare(s, names[k], (ls_init){ LS_INIT_NORMAL, 0.3 }, k % 2 ? 1 : 2, (size_t[]){ WIDTH, WIDTH }, &params[k]));
    OK(store_unit(s, 4, params, c, &o, &unit));
    return s;
}

static ls_value model(ls_program *p)
{
    size_t b[] = { 2, WIDTH };
    ls_value h = ls_input(p, "x", LS_F32, 2, b);

    for (int k = 0; k < 2; k++) {
        char w[32], v[32], block[32];

        snprintf(w, sizeof w, "h.%d.weight", k);
        snprintf(v, sizeof v, "h.%d.bias", k);
        snprintf(block, sizeof block, "h.%d", k);
        ls_block_begin(p, block);
        h = ls_relu(p, ls_linear(p, h, ls_param(p, w, (ls_init){ LS_INIT_NORMAL, 0.3 }, 2, (size_t[]){ WIDTH, WIDTH }),
                                 ls_param(p, v, (ls_init){ LS_INIT_NORMAL, 0.3 }, 1, (size_t[]){ WIDTH })));
        ls_block_end(p);
    }
    return ls_output(p, "loss", ls_mse(p, h, ls_input(p, "y", LS_F32, 2, b)));
}

static int find_op(const struct list *l, int op)
{
    for (int n = 0; n < l->n; n++)
        if (l->at[n].op == op)
            return n;
    return -1;
}

/* A pass that all-reduces the unit's gradients at the end of the backward. */
static ls_status reduce_at_the_end(ls_program *p, void *ctx)
{
    struct exchange e = { .op = LS_COLLECTIVE_ALL_REDUCE, .comm = ctx, .redop = LS_SUM, .total = store_unit_at(p->store, 0)->total };
    ls_value g = program_unit_value(p, 0, STORE_GRAD, NULL);
    enum segment final = p->arguments.options.split_backward ? SEG_WEIGHTS : SEG_BACKWARD;
    struct cursor before = program_cursor_begin(p, (struct cursor){ .segment = final, .when = LS_WHEN_LAST });

    program_exchange_start(p, &e, g, g);
    program_exchange_wait(p, &e, g, g);
    program_cursor_end(p, before);
    for (int n = 0; n < p->list[final].n; n++) {  /* parameters' gradients become views of the unit's */
        struct instruction *i = &p->list[final].at[n];

        for (int k = 0; k < i->nout; k++) {
            struct value *v = &p->values[i->out[k].id];

            if (v->role == LS_ROLE_GRADIENT && v->param >= 0) {
                v->root = g.id;
                v->offset = (ptrdiff_t)store_unit_at(p->store, 0)->at[v->param];
            }
        }
    }
    return ls_program_status(p);
}

static void count_release(void *ctx) { ++*(int *)ctx; }

static void collectives_follow_weight_gradients(void **state)
{
    ls_comm *c = plan_comm(0, 1);
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    float got[2][2 * (WIDTH * WIDTH + WIDTH)];

    (void)state;
    for (int split = 0; split < 2; split++) {
        ls_store *s = unit_store(c, 0, BACKING_MEMORY);
        ls_program *p = program_on(s);
        size_t at = 0;
        float x[2 * WIDTH];

        for (int i = 0; i < 2 * WIDTH; i++)
            x[i] = (float)sin(i);
        ls_backward(p, model(p));
        p->arguments.distribution = (struct distribution){ .pass = reduce_at_the_end, .ctx = c };
        p->arguments.arena_comm = c;
        o.split_backward = split;
        OK(ls_program_compile(p, &o));
        const struct list *l = &p->list[split ? SEG_WEIGHTS : SEG_BACKWARD];
        assert_int_equal(find_op(l, OP_COMM_START), l->n - 2);
        assert_int_equal(find_op(l, OP_COMM_WAIT), l->n - 1);
        OK(ls_program_write(p, "x", x, LS_F32, 2 * WIDTH));
        OK(ls_program_write(p, "y", x, LS_F32, 2 * WIDTH));
        OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD | LS_WEIGHTS | LS_LAST));
        for (size_t i = 0; i < 4; i++) {
            size_t n = i % 2 ? WIDTH : WIDTH * WIDTH;

            OK(ls_store_read(s, i, "gradient", got[split] + at, LS_F32, n));
            at += n;
        }
        ls_program_release(&p);
        ls_store_release(&s);
    }
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    ls_comm_close(&c);
}

static void flat_values_are_named_and_placed(void **state)
{
    ls_comm *c = plan_comm(1, 3);
    ls_store *s = unit_store(c, 1u << STORE_GRAD, BACKING_MEMORY);
    ls_program *p = program_on(s);
    ls_value v = program_unit_value(p, 0, STORE_VALUE, NULL), g = program_unit_value(p, 0, STORE_GRAD, NULL);
    ls_value m = program_unit_value(p, 0, STORE_STATE, "m");

    (void)state;
    assert_string_equal(program_value(p, v)->name, "h (4 parameters)");
    assert_string_equal(program_value(p, g)->name, "h (4 parameters).grad");
    assert_string_equal(program_value(p, m)->name, "h (4 parameters).m");
    assert_int_equal(program_unit_value(p, 0, STORE_GRAD, NULL).id, g.id);
    assert_int_equal(program_unit_value(p, 0, STORE_STATE, "m").id, m.id);
    assert_true(program_unit_value(p, 0, STORE_STATE, "v").id != m.id);
    assert_int_equal(value_count(program_value(p, v)), 84);
    assert_int_equal(value_count(program_value(p, g)), 28);
    assert_int_equal(program_value(p, g)->place[LS_AXIS_DP].kind, LS_SHARD);
    assert_int_equal(program_value(p, v)->place[LS_AXIS_DP].kind, LS_REPLICATE);
    assert_int_equal(ls_store_states(s, 3), 2);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&c);
}

static void sharded_parameter_needs_a_gather(void **state)
{
    ls_comm *c = plan_comm(1, 3);
    ls_store *s = unit_store(c, 1u << STORE_VALUE, BACKING_MEMORY);
    ls_program *p = program_on(s);

    (void)state;
    model(p);
    REFUSED(LS_EINVAL, "value of parameter 'h.0.weight' is sharded", ls_program_compile(p, NULL));
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&c);
}

static void frozen_unit_has_no_gradient(void **state)
{
    ls_store *s = unit_store(NULL, 0, BACKING_MEMORY);
    ls_program *p = program_on(s);

    (void)state;
    for (size_t i = 0; i < 4; i++)
        OK(ls_store_freeze(s, i));
    ls_value g = program_unit_value(p, 0, STORE_GRAD, NULL);
    program_emit(p, OP_FILL, NULL, 0, NULL, 1, &g);
    REFUSED(LS_EINVAL, "'h (4 parameters).grad': all parameters of the unit are frozen", ls_program_compile(p, NULL));
    ls_program_release(&p);
    ls_store_release(&s);
}

/* state = 2 state + 1, offloaded: none of it stays in memory. */
static void offloaded_state_is_loaded_and_stored(void **state)
{
    static const enum store_backing backings[] = { BACKING_CPU, BACKING_FILE };

    (void)state;
    for (size_t b = 0; b < COUNT_OF(backings); b++) {
        ls_store *s = unit_store(NULL, 0, backings[b]);
        ls_program *p = program_on(s);
        size_t n = store_unit_at(s, 0)->total;
        ls_value x = program_new_value(p, "m", LS_F32, 1, &n);
        struct mem_stats before, after;
        float got[WIDTH];
        struct cursor cursor = program_cursor_segment(p, SEG_OPTIMIZER, LS_PHASE_OPTIMIZER);

        program_load(p, 0, STORE_STATE, "m", x);
        program_load_wait(p, 0, STORE_STATE, "m", x);
        ls_value one = ls_constant(p, LS_F32, 1, &n, 1.0);
        ls_value y = ls_add(p, ls_scale(p, x, 2), one);
        program_save(p, 0, STORE_STATE, "m", y);
        program_save_wait(p, 0, STORE_STATE, "m", y);
        program_cursor_end(p, cursor);
        OK(ls_program_compile(p, NULL));
        ls_cost cost = ls_program_cost(p);
        assert_int_equal(cost.optimizer, 0);
        assert_int_equal(cost.offload, backings[b] == BACKING_CPU ? n * sizeof(float) : 0);
        mem_read(&before);
        for (int k = 0; k < 3; k++)
            OK(ls_program_run(p, LS_OPTIMIZER_STEP));
        mem_read(&after);
        assert_int_equal(after.calls, before.calls);
        OK(ls_store_read(s, 3, "m", got, LS_F32, WIDTH));
        for (int i = 0; i < WIDTH; i++)
            assert_true(got[i] == 7);
        assert_int_equal(program_unit_value(p, 0, STORE_STATE, "m").id, 0);
        ls_program_release(&p);
        ls_store_release(&s);
    }
}

/* ---- the pass, the watch, the budget ---- */

struct seen { int n, op[64]; double began; };

static void instruction_watch(void *ctx, const ls_program *p, const struct instruction *i, double began, double ended)
{
    struct seen *seen = ctx;

    (void)p;
    assert_true(began <= ended && began >= seen->began);
    seen->began = ended;
    seen->op[seen->n++ % 64] = i->op;
}

static ls_status refusing_pass(ls_program *p, void *ctx)
{
    (void)p;
    (void)ctx;
    return ls_fail(LS_EINVAL, "this pass refuses");
}

static void pass_is_run_and_released(void **state)
{
    ls_store *s = seeded_store(LS_F32);
    ls_program *p = program_on(s);
    int released = 0;

    (void)state;
    ls_backward(p, model(p));
    p->arguments.distribution = (struct distribution){ .pass = refusing_pass, .release = count_release, .ctx = &released };
    REFUSED(LS_EINVAL, "this pass refuses", ls_program_compile(p, NULL));
    REFUSED(LS_EINVAL, "this pass refuses", ls_program_run(p, LS_FORWARD));
    assert_int_equal(released, 0);
    ls_program_release(&p);
    assert_int_equal(released, 1);
    ls_store_release(&s);
}

static void every_instruction_is_watched(void **state)
{
    ls_comm *c = plan_comm(0, 1);
    ls_store *s = unit_store(c, 0, BACKING_MEMORY);
    ls_program *p = program_on(s);
    struct seen seen = { 0 };
    int runs = 0;

    (void)state;
    ls_backward(p, model(p));
    p->arguments.distribution = (struct distribution){ .pass = reduce_at_the_end, .ctx = c };
    p->arguments.arena_comm = c;
    OK(ls_program_compile(p, NULL));
    program_watch(p, instruction_watch, &seen);
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD | LS_LAST));
    for (int g = 0; g < SEGMENTS; g++)
        for (int n = 0; n < p->list[g].n; n++)
            runs += p->list[g].at[n].op != OP_VIEW;
    assert_int_equal(seen.n, runs);
    assert_int_equal(seen.op[runs - 2], OP_COMM_START);
    assert_int_equal(seen.op[runs - 1], OP_COMM_WAIT);
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    assert_int_equal(seen.n, 2 * runs - 2);
    program_watch(p, NULL, NULL);
    OK(ls_program_run(p, LS_FORWARD));
    assert_int_equal(seen.n, 2 * runs - 2);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&c);
}

/* The budget is for activations; communication buffers are counted separately. */
static void budget_holds_with_a_pass(void **state)
{
    ls_comm *c = plan_comm(0, 1);
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    size_t full = 0, budget[3];

    (void)state;
    for (int k = 0; k < 3; k++) {
        ls_store *s = unit_store(c, 0, BACKING_MEMORY);
        ls_program *p = program_on(s);

        ls_backward(p, model(p));
        p->arguments.distribution = (struct distribution){ .pass = reduce_at_the_end, .ctx = c };
        p->arguments.arena_comm = c;
        o.recompute = k ? LS_RECOMPUTE_BUDGET : LS_RECOMPUTE_NONE;
        o.bytes = k == 1 ? full : 64;
        if (k == 2) {
            REFUSED(LS_EINVAL, "cannot be met", ls_program_compile(p, &o));
        } else {
            OK(ls_program_compile(p, &o));
            budget[k] = ls_program_cost(p).activations;
            full = MAX(full, budget[k]);
        }
        ls_program_release(&p);
        ls_store_release(&s);
    }
    assert_int_equal(budget[0], budget[1]);
    ls_comm_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_follow_weight_gradients),
        cmocka_unit_test(flat_values_are_named_and_placed),
        cmocka_unit_test(sharded_parameter_needs_a_gather),
        cmocka_unit_test(frozen_unit_has_no_gradient),
        cmocka_unit_test(offloaded_state_is_loaded_and_stored),
        cmocka_unit_test(pass_is_run_and_released),
        cmocka_unit_test(every_instruction_is_watched),
        cmocka_unit_test(budget_holds_with_a_pass),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
