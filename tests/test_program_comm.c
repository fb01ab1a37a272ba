/* test_program_comm.c - collectives of programs in one process: lifetimes, arenas, which micro-batch runs them, bytes on the wire. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "comm/algorithms/steps.h"
#include "helper_check.h"
#include "helper_program.h"
#include "lockstep/ops.h"
#include "ir/program.h"

static void buffers_live_from_start_to_wait(void **state)
{
    size_t n = 1024, bytes = n * sizeof(float);
    ls_comm *c = plan_comm(0, 1);
    ls_store *s = seeded_store(LS_F32);
    ls_program *p = program_on(s);
    struct exchange e[3];
    ls_value x = ls_input(p, "x", LS_F32, 1, &n), v[3], y = x;
    struct mem_stats before, after;

    (void)state;
    for (int k = 0; k < 3; k++) {
        e[k] = (struct exchange){ .op = LS_COLLECTIVE_ALL_REDUCE, .comm = c, .redop = LS_SUM, .total = n };
        v[k] = emit_copy(p, y, program_comm_value(p, "bucket", LS_F32, n));
        program_exchange_start(p, &e[k], v[k], v[k]);
        if (k == 0) continue; /* the first two are in flight together; the third comes when they have ended */
        for (int j = k == 1 ? 0 : 2; j <= k; j++)
            program_exchange_wait(p, &e[j], v[j], v[j]);
        y = program_copy(p, v[k], LS_F32);
    }
    ls_output(p, "y", y);
    p->arguments.arena_comm = c;
    mem_read(&before);
    OK(ls_program_compile(p, NULL));
    mem_read(&after);
    ls_cost cost = ls_program_cost(p);
    assert_int_equal(cost.communication, 2 * bytes);
    assert_int_equal(after.now[MEM_COMMUNICATION] - before.now[MEM_COMMUNICATION], cost.communication);
    assert_int_equal(after.now[MEM_ACTIVATIONS] - before.now[MEM_ACTIVATIONS], cost.activations);
    assert_true(p->values[v[0].id].at != p->values[v[1].id].at);
    assert_true(p->values[v[0].id].last > p->values[v[1].id].first);
    assert_int_equal(p->builder.exchanges, 3);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&c);
}

/* A result doesn't take over the bytes of an operand in the other arena, nor of one that is in flight. */
static void arenas_do_not_share_bytes(void **state)
{
    size_t n = 1024;
    ls_comm *c = plan_comm(0, 1);
    ls_store *s = seeded_store(LS_F32);
    ls_program *p = program_on(s);
    struct exchange e = { .op = LS_COLLECTIVE_ALL_REDUCE, .comm = c, .redop = LS_SUM, .total = n };
    ls_value x = ls_input(p, "x", LS_F32, 1, &n), v = program_comm_value(p, "v", LS_F32, n);
    struct op_attr twice = { .scale = { 2 } };
    float data[1024], got[1024];

    (void)state;
    ls_value a = ls_scale(p, x, 3);
    program_emit(p, OP_SCALE, &twice, 1, &a, 1, &v);  /* activations -> communication, a dies here */
    program_exchange_start(p, &e, v, v);
    ls_value b = ls_scale(p, v, 5); /* reads a value in flight: an error in general, the same bits on one rank */
    program_exchange_wait(p, &e, v, v);
    ls_output(p, "y", ls_add(p, b, ls_scale(p, v, 7)));
    p->arguments.arena_comm = c;
    OK(ls_program_compile(p, NULL));
    assert_int_equal(p->values[v.id].shares, 0);
    assert_int_equal(p->values[b.id].shares, 0);
    assert_int_equal(ls_program_cost(p).communication, sizeof data);
    for (size_t i = 0; i < n; i++)
        data[i] = (float)i;
    OK(ls_program_write(p, "x", data, LS_F32, n));
    OK(ls_program_run(p, LS_FORWARD));
    OK(ls_program_read(p, "y", got, LS_F32, n));
    for (size_t i = 0; i < n; i++)
        assert_true(got[i] == 72 * data[i]);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&c);
}

static void instructions_run_on_their_micro_batch(void **state)
{
    static const struct { int segments; float always, last, not_last; } cases[] = {
        { LS_FORWARD, 1, 0, 1 }, { LS_FORWARD | LS_LAST, 2, 1, 1 }, { LS_FORWARD, 3, 1, 2 }, { LS_FORWARD | LS_LAST, 4, 2, 2 },
    };
    size_t one = 1;
    ls_store *s = seeded_store(LS_F32);
    ls_program *p = program_on(s);
    ls_tensor *t[3];
    ls_value x = ls_input(p, "x", LS_F32, 1, &one);
    float f = 1, got;

    (void)state;
    for (int k = 0; k < 3; k++) {
        OK(ls_tensor_new("cpu", LS_F32, 1, &one, LS_OTHER, &t[k]));
        ls_value v = ls_bind(p, (const char *[]){ "a", "b", "c" }[k], t[k]);
        struct cursor before = program_cursor_when(p, (ls_when)k);
        program_emit(p, OP_ACCUMULATE, NULL, 1, &x, 1, &v);
        program_cursor_end(p, before);
    }
    OK(ls_program_compile(p, NULL));
    OK(ls_program_write(p, "x", &f, LS_F32, 1));
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        OK(ls_program_run(p, cases[k].segments));
        OK(ls_tensor_read(t[0], &got, LS_F32, 1));
        assert_true(got == cases[k].always);
        OK(ls_tensor_read(t[1], &got, LS_F32, 1));
        assert_true(got == cases[k].last);
        OK(ls_tensor_read(t[2], &got, LS_F32, 1));
        assert_true(got == cases[k].not_last);
    }
    REFUSED(LS_EINVAL, "LS_OPTIMIZER_STEP, LS_LAST", ls_program_run(p, 32));
    ls_program_release(&p);
    ls_store_release(&s);
    for (int k = 0; k < 3; k++)
        ls_tensor_release(&t[k]);
}

static void bytes_on_the_wire_are_counted(void **state)
{
    size_t total = 1001, calls, counts[4];
    ls_comm *c = plan_comm(2, 4);
    ls_store *s = seeded_store(LS_F32);
    ls_program *p = program_on(s);
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    struct exchange e = { .op = LS_COLLECTIVE_ALL_GATHER, .comm = c, .total = total };
    struct exchange r = { .op = LS_COLLECTIVE_ALL_REDUCE, .comm = c, .redop = LS_SUM, .total = total };
    ls_value v = program_comm_value(p, "gathered", LS_BF16, total), b = emit_own_block(p, c, v, total);
    char *text;

    (void)state;
    for (int k = 0; k < 4; k++)
        counts[k] = block_at(total, k + 1, 4) - block_at(total, k, 4);
    program_exchange_start(p, &e, b, v);
    program_exchange_wait(p, &e, b, v);
    struct cursor before = program_cursor_when(p, LS_WHEN_LAST);
    program_exchange_start(p, &r, v, v);
    program_exchange_wait(p, &r, v, v);
    program_cursor_end(p, before);
    o.plan_only = 1;
    OK(ls_program_compile(p, &o));
    assert_int_equal(ls_program_comm_bytes(p, LS_FORWARD, LS_COLLECTIVE_ALL_GATHER, &calls),
                     ls_comm_bytes_of(c, LS_COLLECTIVE_ALL_GATHER, 0, counts, LS_BF16));
    assert_int_equal(calls, 1);
    assert_true(ls_program_comm_bytes(p, LS_FORWARD, LS_COLLECTIVE_ALL_GATHER, NULL) > 0);
    assert_int_equal(ls_program_comm_bytes(p, LS_FORWARD, LS_COLLECTIVE_ALL_REDUCE, &calls), 0);
    assert_int_equal(calls, 0);
    assert_int_equal(ls_program_comm_bytes(p, LS_FORWARD | LS_LAST, LS_COLLECTIVE_ALL_REDUCE, &calls),
                     ls_comm_bytes_of(c, LS_COLLECTIVE_ALL_REDUCE, total, NULL, LS_BF16));
    assert_int_equal(calls, 1);
    assert_int_equal(ls_program_comm_bytes(p, LS_BACKWARD, LS_COLLECTIVE_ALL_GATHER, NULL), 0);
    assert_int_equal(ls_program_cost(p).communication, 2048);
    OK(ls_program_text(p, &text));
    assert_non_null(strstr(text, "all_gather"));
    assert_non_null(strstr(text, "wait all_reduce"));
    assert_non_null(strstr(text, "gathered[1001]"));
    assert_non_null(strstr(text, "bf16 over 4 ranks"));
    assert_non_null(strstr(text, "last micro-batch only"));
    ls_free(text);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&c);
}

static void wrong_sizes_are_refused(void **state)
{
    ls_comm *c = plan_comm(1, 3);
    struct exchange e = { .op = LS_COLLECTIVE_ALL_GATHER, .comm = c, .total = 10 };
    ls_store *s = seeded_store(LS_F32);
    ls_program *p = program_on(s);
    ls_value v = program_comm_value(p, "v", LS_F32, 10);

    (void)state;
    program_exchange_start(p, &e, v, v);
    REFUSED(LS_EINVAL, "all_gather of 10 elements over 3 ranks: input 10 and output 10 elements; expected 3 and 10", ls_program_status(p));
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_live_from_start_to_wait),
        cmocka_unit_test(arenas_do_not_share_bytes),
        cmocka_unit_test(instructions_run_on_their_micro_batch),
        cmocka_unit_test(bytes_on_the_wire_are_counted),
        cmocka_unit_test(wrong_sizes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
