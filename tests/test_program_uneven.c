/* test_program_uneven.c - exchanges with counts given by the caller, all_to_all, messages; and nothing leaks when memory runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "helper_check.h"
#include "helper_forked.h"
#include "lockstep/ops.h"
#include "ir/program.h"
#include "train/faults/fault_points.h"

static ls_comm *program_uneven_planned(int rank, int n)
{
    ls_comm *c;

    OK(ls_comm_open("plan:", rank, n, &c));
    return c;
}

static ls_store *store_of(ls_dtype type)
{
    ls_store *s;

    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", type, 0, 7, 0 }, &s));
    return s;
}

static ls_program *program_of(ls_store *s)
{
    ls_program *p;

    RANKS_TRY(ls_program_new(s, &p));
    return p;
}

/* ---- uneven counts, all_to_all, messages ---- */

/* Rank r has `counts(r)` elements in a gather; in an all_to_all, r sends q r + 2 q of them; their values are 1000 r + index. */
static size_t uneven(int r) { return (size_t)(r * r % 5); }

static ls_value copied_into(ls_program *p, ls_value x, const char *what)
{
    return program_emit(p, OP_COPY, NULL, 1, &x, 1, (ls_value[]){ program_comm_value(p, what, LS_F32, value_count(program_value(p, x))) });
}

static void run_uneven(ls_comm *c, void *ctx)
{
    int n = ls_comm_size(c), r = ls_comm_rank(c), next = (r + 1) % n, before = (r + n - 1) % n;
    size_t mine = uneven(r), total = 0, to = 0, from = 0, big = 70000, offset = 0;
    ls_store *s = store_of(LS_F32);
    ls_program *p = program_of(s);
    size_t *gather = program_counts(p, n), *both = program_counts(p, 2 * n);
    float *data = calloc(big, sizeof *data);
    struct exchange e[4];
    ls_value x[4], y[4];

    (void)ctx;
    for (int q = 0; q < n; q++) {
        gather[q] = uneven(q);
        total += gather[q];
        both[q] = (size_t)(r + 2 * q);
        both[n + q] = (size_t)(q + 2 * r);
        to += both[q];
        from += both[n + q];
    }
    e[0] = (struct exchange){ .op = LS_COLLECTIVE_ALL_GATHER, .comm = c, .counts = gather };
    e[1] = (struct exchange){ .op = LS_COLLECTIVE_ALL_TO_ALL, .comm = c, .counts = both, .recv_counts = both + n };
    e[2] = (struct exchange){ .op = LS_COLLECTIVE_SEND, .comm = c, .root = next, .total = big };
    e[3] = (struct exchange){ .op = LS_COLLECTIVE_RECV, .comm = c, .root = before, .total = big };
    x[0] = copied_into(p, ls_input(p, "gather", LS_F32, 1, &mine), "a");
    x[1] = copied_into(p, ls_input(p, "exchange", LS_F32, 1, &to), "b");
    x[2] = copied_into(p, ls_input(p, "pass", LS_F32, 1, &big), "c");
    x[3] = LS_NONE;
    y[0] = program_comm_value(p, "gathered", LS_F32, total);
    y[1] = program_comm_value(p, "exchanged", LS_F32, from);
    y[2] = LS_NONE;
    y[3] = program_comm_value(p, "passed", LS_F32, big);
    for (int k = 0; k < 4; k++)
        program_exchange_start(p, &e[k], x[k], y[k]);
    for (int k = 3; k >= 0; k--)
        program_exchange_wait(p, &e[k], x[k], y[k]);
    ls_output(p, "gathered", program_copy(p, y[0], LS_F32));
    ls_output(p, "exchanged", program_copy(p, y[1], LS_F32));
    ls_output(p, "passed", program_copy(p, y[3], LS_F32));
    p->arguments.arena_comm = c;
    RANKS_TRY(ls_program_compile(p, NULL));
    RANKS_CHECK(ls_program_comm_bytes(p, LS_FORWARD, LS_COLLECTIVE_SEND, NULL) == big * sizeof(float));
    RANKS_CHECK(ls_program_comm_bytes(p, LS_FORWARD, LS_COLLECTIVE_RECV, NULL) == 0);
    RANKS_CHECK(ls_program_comm_bytes(p, LS_FORWARD, LS_COLLECTIVE_ALL_TO_ALL, NULL) == (to - (size_t)(3 * r)) * sizeof(float));
    RANKS_CHECK(e[0].total == total && e[1].total == to);
    for (int again = 0; again < 3; again++) {
        for (size_t i = 0; i < big; i++)
            data[i] = (float)((size_t)(1000 * r + again) + i);
        RANKS_TRY(ls_program_write(p, "gather", data, LS_F32, mine));
        RANKS_TRY(ls_program_write(p, "exchange", data, LS_F32, to));
        RANKS_TRY(ls_program_write(p, "pass", data, LS_F32, big));
        RANKS_TRY(ls_program_run(p, LS_FORWARD));
        RANKS_TRY(ls_program_read(p, "gathered", data, LS_F32, total));
        offset = 0;
        for (int q = 0; q < n; q++)
            for (size_t i = 0; i < uneven(q); i++)
                RANKS_CHECK(data[offset++] == (float)((size_t)(1000 * q + again) + i));
        RANKS_TRY(ls_program_read(p, "exchanged", data, LS_F32, from));
        offset = 0;
        for (int q = 0; q < n; q++) {
            size_t begin = 0;

            for (int k = 0; k < r; k++)
                begin += (size_t)(q + 2 * k);
            for (int i = 0; i < q + 2 * r; i++)
                RANKS_CHECK(data[offset++] == (float)((size_t)(1000 * q + again) + begin + (size_t)i));
        }
        RANKS_TRY(ls_program_read(p, "passed", data, LS_F32, big));
        for (size_t i = 0; i < big; i++)
            RANKS_CHECK(data[i] == (float)((size_t)(1000 * before + again) + i));
    }
    ls_program_release(&p);
    ls_store_release(&s);
    free(data);
}

static void ranks_exchange_uneven_counts_and_messages(void **state)
{
    (void)state;
    forked_run(2, run_uneven, NULL);
    forked_run(3, run_uneven, NULL);
    forked_run(4, run_uneven, NULL);
}

static void mismatched_counts_are_refused(void **state)
{
    size_t five = 5, four = 4;
    ls_comm *c = program_uneven_planned(1, 2);
    ls_store *s = store_of(LS_F32);
    ls_program *p = program_of(s);
    ls_value x = ls_input(p, "x", LS_F32, 1, &five);
    struct exchange e = { .op = LS_COLLECTIVE_ALL_TO_ALL, .comm = c, .counts = program_counts(p, 4) };
    struct exchange m = { .op = LS_COLLECTIVE_SEND, .comm = c, .root = 0, .total = 4 };

    (void)state;
    e.recv_counts = e.counts + 2;
    e.counts[0] = 2;
    e.counts[1] = 3;
    e.recv_counts[0] = 4;
    program_exchange_start(p, &e, x, program_comm_value(p, "y", LS_F32, 5));
    REFUSED(LS_EINVAL, "all_to_all of 5 elements over 2 ranks: input 5 and output 5 elements; expected 5 and 4", ls_program_status(p));
    ls_program_release(&p);
    p = program_of(s);
    program_exchange_start(p, &m, ls_input(p, "x", LS_F32, 1, &four), program_comm_value(p, "y", LS_F32, 4));
    REFUSED(LS_EINVAL, "send of 4 elements over 2 ranks: input 4 and output 4 elements; expected 4 and 0", ls_program_status(p));
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&c);
}

/* A chain of every kind of move, full -> full. */
static ls_value all_moves(ls_program *p, ls_comm *c, ls_value x, int floating)
{
    static const enum move_kind kinds[] = { MOVE_SHARD, MOVE_ALL_GATHER, MOVE_IDENTITY, MOVE_ALL_REDUCE, MOVE_REDUCE_SCATTER,
                                            MOVE_ALL_TO_ALL, MOVE_ALL_TO_ALL,
                                            MOVE_UNSHARD, MOVE_SHARD_PARTIAL, MOVE_UNSHARD };

    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        struct move m = { .kind = kinds[k], .axis = LS_AXIS_TP, .comm = c, .dim = 1, .full = 5, .dim2 = 2, .full2 = 6,
                          .floating = floating };

        if (k == 6) {  /* back */
            m.dim = 2, m.full = 6;
            m.dim2 = 1, m.full2 = 5;
        }
        x = ls_scale(p, program_move(p, &m, x), 2);
    }
    return x;
}

/* Compiles with the nth allocation failing; true: none failed. */
static bool compiled_with(ls_comm *c, int64_t nth)
{
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    ls_store *s = NULL;
    ls_program *p = NULL;

    o.recompute = LS_RECOMPUTE_FULL;
    o.split_backward = 1;
    o.plan_only = 1;
    o.slots = 2;
    OK(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 0, 7, 0 }, &s));
    OK(ls_program_new(s, &p));
    mem_fail_at(nth);
    ls_value x = ls_param(p, "x", (ls_init){ LS_INIT_ONES, 1 }, 3, (size_t[]){ 2, 5, 6 });
    for (int block = 0; block < 3; block++) {
        ls_block_begin(p, "block");
        x = all_moves(p, c, ls_scale(p, x, 3), nth % 2);
        ls_block_end(p);
    }
    ls_backward(p, ls_output(p, "loss", ls_sum(p, x, -1)));
    ls_status st = ls_program_compile(p, &o);
    mem_fail_at(0);
    if (st < 0 && st != LS_ENOMEM)
        fail_msg("allocation %lld: %s", (long long)nth, ls_errmsg());
    ls_program_release(&p);
    ls_store_release(&s);
    return st == LS_OK;
}

static void nothing_leaks_without_memory(void **state)
{
    ls_comm *c = program_uneven_planned(1, 2);
    struct mem_stats before, after;
    int64_t nth = 1;

    (void)state;
    mem_read(&before);
    while (!compiled_with(c, nth)) {
        nth++;
        mem_read(&after);
        assert_int_equal(after.total_now, before.total_now);
    }
    assert_true(nth > 100);
    mem_read(&after);
    assert_int_equal(after.total_now, before.total_now);
    ls_comm_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_exchange_uneven_counts_and_messages),
        cmocka_unit_test(mismatched_counts_are_refused),
        cmocka_unit_test(nothing_leaks_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
