/* test_program_exchange.c - programs of several ranks: collectives that begin and end, when instructions run, what lives how long,
 * offloaded state, flat values. Tests with "ranks" in their names fork them, first of all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "comm/steps.h"
#include "helper_check.h"
#include "helper_forked.h"
#include "lockstep/ops.h"
#include "program/program.h"
#include "program/store.h"

static ls_comm *planned(int rank, int n)
{
    ls_comm *c;

    OK(ls_comm_open("plan:", rank, n, &c));
    return c;
}

static ls_store *store_of(ls_dtype type)
{
    ls_store *s;

    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", type, 0, 7 }, &s));
    return s;
}

static ls_program *program_of(ls_store *s)
{
    ls_program *p;

    RANKS_TRY(ls_program_new(s, &p));
    return p;
}

static ls_value part(ls_program *p, ls_value x, size_t begin, size_t count)
{
    ptrdiff_t one = 1;

    return program_view(p, x, (struct view_rule){ VIEW_SLICE, 0, 0, begin }, 1, &count, &one, (ptrdiff_t)begin);
}

static ls_value copied(ls_program *p, ls_value x, ls_value to) { return program_emit(p, OP_COPY, NULL, 1, &x, 1, &to); }

static ls_value own(ls_program *p, ls_comm *c, ls_value x, size_t total)
{
    size_t begin = block_at(total, ls_comm_rank(c), ls_comm_size(c)), end = block_at(total, ls_comm_rank(c) + 1, ls_comm_size(c));

    return part(p, x, begin, end - begin);
}

/* ---- every kind of exchange, all of them in flight at once ---- */

/* x[total] -> sum, most: all-reduced; block: reduce-scattered and gathered again; first: rank n-1's x. */
static void build_all(ls_program *p, ls_comm *c, size_t total)
{
    ls_value x = ls_input(p, "x", LS_F32, 1, &total), v[4], o[4], out;
    struct exchange e[4] = {
        { .op = LS_COLLECTIVE_ALL_REDUCE, .comm = c, .redop = LS_SUM, .total = total },
        { .op = LS_COLLECTIVE_ALL_REDUCE, .comm = c, .redop = LS_MAX, .total = total },
        { .op = LS_COLLECTIVE_REDUCE_SCATTER, .comm = c, .redop = LS_SUM, .total = total },
        { .op = LS_COLLECTIVE_BROADCAST, .comm = c, .root = ls_comm_size(c) - 1, .total = total },
    };
    struct exchange gather = { .op = LS_COLLECTIVE_ALL_GATHER, .comm = c, .total = total };
    static const char *const names[] = { "sum", "most", "scattered", "first" };

    for (int k = 0; k < 4; k++) {
        v[k] = copied(p, x, program_comm_value(p, names[k], LS_F32, total));
        o[k] = k == 1 ? program_comm_value(p, "elsewhere", LS_F32, total) : k == 2 ? own(p, c, v[k], total) : v[k];
        program_exchange_start(p, &e[k], k == 3 ? LS_NONE : v[k], o[k]);
    }
    for (int k = 0; k < 4; k++)
        program_exchange_wait(p, &e[k], k == 3 ? LS_NONE : v[k], o[k]);
    program_exchange_start(p, &gather, o[2], v[2]);
    ls_output(p, "doubled", ls_scale(p, x, 2));  /* beside it */
    program_exchange_wait(p, &gather, o[2], v[2]);
    for (int k = 0; k < 4; k++) {
        out = program_copy(p, k == 1 ? o[1] : v[k], LS_F32);
        ls_output(p, names[k], out);
    }
}

static void run_all(ls_comm *c, void *ctx)
{
    static const size_t totals[] = { 1, 3, 63, 10007 };
    int n = ls_comm_size(c), rank = ls_comm_rank(c);

    (void)ctx;
    for (size_t t = 0; t < COUNT_OF(totals); t++) {
        size_t total = totals[t];
        ls_store *s = store_of(LS_F32);
        ls_program *p = program_of(s);
        float *x = malloc(total * sizeof *x), *y = malloc(total * sizeof *y);

        build_all(p, c, total);
        p->spread.comm = c;
        RANKS_TRY(ls_program_compile(p, NULL));
        for (int again = 0; again < 4; again++) {
            for (size_t i = 0; i < total; i++)
                x[i] = (float)((i * 7 + (size_t)(rank * 3 + again)) % 1000);
            RANKS_TRY(ls_program_write(p, "x", x, LS_F32, total));
            RANKS_TRY(ls_program_run(p, LS_FORWARD));
            for (int k = 0; k < 4; k++) {
                RANKS_TRY(ls_program_read(p, (const char *[]){ "sum", "most", "scattered", "first" }[k], y, LS_F32, total));
                for (size_t i = 0; i < total; i++) {
                    float sum = 0, most = 0, last = 0;

                    for (int r = 0; r < n; r++) {
                        last = (float)((i * 7 + (size_t)(r * 3 + again)) % 1000);
                        sum += last;
                        most = fmaxf(most, last);
                    }
                    RANKS_CHECK(y[i] == (k == 1 ? most : k == 3 ? last : sum));
                }
            }
            RANKS_TRY(ls_program_read(p, "doubled", y, LS_F32, total));
            RANKS_CHECK(y[total - 1] == 2 * x[total - 1]);
        }
        ls_program_release(&p);
        ls_store_release(&s);
        free(x);
        free(y);
    }
}

static void ranks_overlap_several_collectives(void **state)
{
    (void)state;
    forked_run(2, run_all, NULL);
    forked_run(3, run_all, NULL);
    forked_run(5, run_all, NULL);
}

static void one_rank_communicates_with_itself(void **state)
{
    ls_comm *c = planned(0, 1);

    (void)state;
    run_all(c, NULL);
    ls_comm_close(&c);
}

/* ---- a group's parameters gathered, used, and their gradient reduced, as a spread pass does it ---- */

/* The update of a sharded group with fewer elements than ranks: some ranks hold nothing of it. */
static void update_little(ls_comm *c, void *ctx)
{
    struct store_group_options o = { .sharded = 7 };
    ls_store *s = store_of(LS_F32);
    ls_program *p = program_of(s);
    struct op_attr attr = { .optim = { .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .trust = 1 } };
    int index, group, params[] = { 0 };
    size_t three = 3, four = 4, one = 1;
    float hyper[] = { 0.5f, 10, 1000, 1 }, got[3], factor = 1;
    double squares;
    ls_value g, w, acc, h, f, in[3], out[3];
    struct cursor before;

    (void)ctx;
    RANKS_TRY(store_declare(s, "w", (ls_init){ LS_INIT_ONES, 1 }, 1, &three, &index));
    RANKS_TRY(store_group(s, 1, params, c, &o, &group));
    h = ls_input(p, "hyper", LS_F32, 1, &four);
    f = ls_input(p, "factor", LS_F32, 1, &one);
    g = program_group_value(p, group, STORE_GRAD, NULL);
    w = program_group_value(p, group, STORE_VALUE, NULL);
    acc = ls_constant(p, LS_F64, 1, &one, 0.0);
    program_emit(p, OP_SUM_SQUARES, NULL, 1, &g, 1, &acc);
    ls_output(p, "squares", program_copy(p, acc, LS_F64));
    in[0] = g;
    in[1] = h;
    in[2] = f;
    out[0] = w;
    out[1] = program_group_value(p, group, STORE_STATE, "m");
    out[2] = program_group_value(p, group, STORE_STATE, "v");
    before = program_cursor_segment(p, SEG_OPTIMIZER, LS_PHASE_OPTIMIZER);
    program_emit(p, OP_ADAM, &attr, 3, in, 3, out);
    program_emit(p, OP_FILL, NULL, 0, NULL, 1, &g);
    program_emit(p, OP_ACCUMULATE, NULL, 1, &w, 1, &g);
    program_cursor_end(p, before);
    RANKS_TRY(ls_program_compile(p, NULL));
    RANKS_TRY(ls_store_write(s, 0, "gradient", (float[]){ 1, -2, 3 }, LS_F32, 3));
    RANKS_TRY(ls_program_write(p, "hyper", hyper, LS_F32, 4));
    RANKS_TRY(ls_program_write(p, "factor", &factor, LS_F32, 1));
    RANKS_TRY(ls_program_run(p, LS_FORWARD | LS_OPTIMIZER_STEP));
    RANKS_TRY(ls_store_read(s, 0, "parameter", got, LS_F32, 3));
    RANKS_CHECK(fabsf(got[0] - 0.5f) < 1e-5f && fabsf(got[1] - 1.5f) < 1e-5f && fabsf(got[2] - 0.5f) < 1e-5f);
    RANKS_TRY(ls_store_read(s, 0, "gradient", got, LS_F32, 3));
    RANKS_CHECK(fabsf(got[1] - 1.5f) < 1e-5f);
    RANKS_TRY(ls_program_read(p, "squares", &squares, LS_F64, 1));
    RANKS_TRY(ls_all_reduce(c, &squares, &squares, 1, LS_F64, LS_SUM, NULL));
    RANKS_CHECK(squares == 14);
    ls_program_release(&p);
    ls_store_release(&s);
}

static void ranks_update_fewer_elements_than_ranks(void **state)
{
    (void)state;
    forked_run(5, update_little, NULL);
    forked_run(2, update_little, NULL);
}

/* A wait that comes in the next segment's run, or never: the next forward finds it done. */
static void start_now_wait_later(ls_comm *c, void *ctx)
{
    size_t total = 5000;
    ls_store *s = store_of(LS_F32);
    ls_program *p = program_of(s);
    struct exchange e = { .op = LS_COLLECTIVE_ALL_REDUCE, .comm = c, .redop = LS_SUM, .total = total };
    ls_value x = ls_input(p, "x", LS_F32, 1, &total), v = copied(p, x, program_comm_value(p, "v", LS_F32, total));
    float *data = calloc(total, sizeof *data);
    struct cursor before;

    (void)ctx;
    before = program_cursor_segment(p, SEG_BACKWARD, LS_PHASE_COMMUNICATE);
    program_exchange_start(p, &e, v, v);
    program_cursor_end(p, before);
    before = program_cursor_segment(p, SEG_OPTIMIZER, LS_PHASE_COMMUNICATE);
    program_exchange_wait(p, &e, v, v);
    ls_output(p, "y", program_copy(p, v, LS_F32));
    program_cursor_end(p, before);
    p->spread.comm = c;
    RANKS_TRY(ls_program_compile(p, NULL));
    for (int k = 0; k < 3; k++) {
        for (size_t i = 0; i < total; i++)
            data[i] = (float)(k + ls_comm_rank(c));
        RANKS_TRY(ls_program_write(p, "x", data, LS_F32, total));
        RANKS_TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
        RANKS_CHECK(ls_comm_size(c) == 1 || p->work[0]);
        if (k == 1)
            continue;
        RANKS_TRY(ls_program_run(p, LS_OPTIMIZER_STEP));
        RANKS_CHECK(!p->work[0]);
        RANKS_TRY(ls_program_read(p, "y", data, LS_F32, total));
        for (size_t i = 0; i < total; i++)
            RANKS_CHECK(data[i] == (float)(k * ls_comm_size(c) + ls_comm_size(c) * (ls_comm_size(c) - 1) / 2));
    }
    RANKS_TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    ls_program_release(&p);  /* with the exchange in flight */
    ls_store_release(&s);
    free(data);
}

static void ranks_wait_in_a_later_run_or_never(void **state)
{
    (void)state;
    forked_run(3, start_now_wait_later, NULL);
}

/* A run that fails between start and wait leaves nothing in flight, keeps its message, and can be repeated. */
static void fail_in_between(ls_comm *c, void *ctx)
{
    size_t total = 3000;
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    ls_store *s = store_of(LS_F32);
    ls_program *p = program_of(s);
    struct exchange e = { .op = LS_COLLECTIVE_ALL_REDUCE, .comm = c, .redop = LS_SUM, .total = total };
    ls_value x = ls_input(p, "x", LS_F32, 1, &total), v = copied(p, x, program_comm_value(p, "v", LS_F32, total));
    float *data = calloc(total, sizeof *data);

    (void)ctx;
    program_exchange_start(p, &e, v, v);
    ls_output(p, "root", ls_mul(p, ls_scale(p, x, 1e30), ls_scale(p, x, 1e30)));
    program_exchange_wait(p, &e, v, v);
    ls_output(p, "y", program_copy(p, v, LS_F32));
    p->spread.comm = c;
    o.check_finite = 1;
    RANKS_TRY(ls_program_compile(p, &o));
    for (int k = 0; k < 4; k++) {
        data[7] = k % 2 ? 1.0f : 0.0f;
        RANKS_TRY(ls_program_write(p, "x", data, LS_F32, total));
        if (k % 2) {
            RANKS_CHECK(ls_program_run(p, LS_FORWARD) == LS_EINVAL);
            RANKS_CHECK(strstr(ls_errmsg(), "element 7 is infinite"));
        } else {
            RANKS_TRY(ls_program_run(p, LS_FORWARD));
        }
        RANKS_CHECK(!p->work[0]);
    }
    ls_program_release(&p);
    ls_store_release(&s);
    free(data);
}

static void ranks_fail_with_nothing_left_in_flight(void **state)
{
    (void)state;
    forked_run(2, fail_in_between, NULL);
}

/* ---- one process: lives, bytes, predicates, prints ---- */

static void buffers_live_from_start_to_wait(void **state)
{
    size_t n = 1024, bytes = n * sizeof(float);
    ls_comm *c = planned(0, 1);
    ls_store *s = store_of(LS_F32);
    ls_program *p = program_of(s);
    struct exchange e[3];
    ls_value x = ls_input(p, "x", LS_F32, 1, &n), v[3], y = x;
    struct mem_stats before, after;
    ls_cost cost;

    (void)state;
    for (int k = 0; k < 3; k++) {
        e[k] = (struct exchange){ .op = LS_COLLECTIVE_ALL_REDUCE, .comm = c, .redop = LS_SUM, .total = n };
        v[k] = copied(p, y, program_comm_value(p, "bucket", LS_F32, n));
        program_exchange_start(p, &e[k], v[k], v[k]);
        if (k == 0)
            continue;  /* the first two are in flight together; the third comes when they are over */
        for (int j = k == 1 ? 0 : 2; j <= k; j++)
            program_exchange_wait(p, &e[j], v[j], v[j]);
        y = program_copy(p, v[k], LS_F32);
    }
    ls_output(p, "y", y);
    p->spread.comm = c;
    mem_read(&before);
    OK(ls_program_compile(p, NULL));
    mem_read(&after);
    cost = ls_program_cost(p);
    assert_int_equal(cost.communication, 2 * bytes);
    assert_int_equal(after.now[MEM_COMMUNICATION] - before.now[MEM_COMMUNICATION], cost.communication);
    assert_int_equal(after.now[MEM_ACTIVATIONS] - before.now[MEM_ACTIVATIONS], cost.activations);
    assert_true(p->values[v[0].id].at != p->values[v[1].id].at);
    assert_true(p->values[v[0].id].last > p->values[v[1].id].first);
    assert_int_equal(p->slots, 3);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&c);
}

/* A result doesn't take over the bytes of an operand in the other arena, nor of one that is in flight. */
static void arenas_do_not_share_bytes(void **state)
{
    size_t n = 1024;
    ls_comm *c = planned(0, 1);
    ls_store *s = store_of(LS_F32);
    ls_program *p = program_of(s);
    struct exchange e = { .op = LS_COLLECTIVE_ALL_REDUCE, .comm = c, .redop = LS_SUM, .total = n };
    ls_value x = ls_input(p, "x", LS_F32, 1, &n), v = program_comm_value(p, "v", LS_F32, n), a, b;
    struct op_attr twice = { .scale = { 2 } };
    float data[1024], got[1024];

    (void)state;
    a = ls_scale(p, x, 3);
    program_emit(p, OP_SCALE, &twice, 1, &a, 1, &v);  /* activations -> communication, a dies here */
    program_exchange_start(p, &e, v, v);
    b = ls_scale(p, v, 5);                            /* reads what is in flight: a mistake in general, the same bits on one rank */
    program_exchange_wait(p, &e, v, v);
    ls_output(p, "y", ls_add(p, b, ls_scale(p, v, 7)));
    p->spread.comm = c;
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
    ls_store *s = store_of(LS_F32);
    ls_program *p = program_of(s);
    ls_tensor *t[3];
    ls_value x = ls_input(p, "x", LS_F32, 1, &one);
    float f = 1, got;

    (void)state;
    for (int k = 0; k < 3; k++) {
        struct cursor before;
        ls_value v;

        OK(ls_tensor_new("cpu", LS_F32, 1, &one, LS_OTHER, &t[k]));
        v = ls_bind(p, (const char *[]){ "a", "b", "c" }[k], t[k]);
        before = program_cursor_when(p, (ls_when)k);
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
    REFUSED(LS_EINVAL, "LS_LAST is wanted", ls_program_run(p, 32));
    ls_program_release(&p);
    ls_store_release(&s);
    for (int k = 0; k < 3; k++)
        ls_tensor_release(&t[k]);
}

static void bytes_on_the_wire_are_counted(void **state)
{
    size_t total = 1001, calls, counts[4];
    ls_comm *c = planned(2, 4);
    ls_store *s = store_of(LS_F32);
    ls_program *p = program_of(s);
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    struct exchange e = { .op = LS_COLLECTIVE_ALL_GATHER, .comm = c, .total = total };
    struct exchange r = { .op = LS_COLLECTIVE_ALL_REDUCE, .comm = c, .redop = LS_SUM, .total = total };
    ls_value v = program_comm_value(p, "gathered", LS_BF16, total), b = own(p, c, v, total);
    struct cursor before;
    char *text;

    (void)state;
    for (int k = 0; k < 4; k++)
        counts[k] = block_at(total, k + 1, 4) - block_at(total, k, 4);
    program_exchange_start(p, &e, b, v);
    program_exchange_wait(p, &e, b, v);
    before = program_cursor_when(p, LS_WHEN_LAST);
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
    ls_comm *c = planned(1, 3);
    struct exchange e = { .op = LS_COLLECTIVE_ALL_GATHER, .comm = c, .total = 10 };
    ls_store *s = store_of(LS_F32);
    ls_program *p = program_of(s);
    ls_value v = program_comm_value(p, "v", LS_F32, 10);

    (void)state;
    program_exchange_start(p, &e, v, v);
    REFUSED(LS_EINVAL, "all_gather of 10 elements over 3 ranks: 10 go in and 10 come out; 3 and 10", ls_program_status(p));
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&c);
}

/* ---- groups as values ---- */

enum { WIDTH = 6 };

/* Two layers whose four parameters make one group of the store. */
static ls_store *grouped_store(ls_comm *c, unsigned sharded, enum store_backing backing)
{
    struct store_group_options o = { .sharded = sharded, .backing = backing, .path = "/tmp" };
    static const char *const names[] = { "h.0.weight", "h.0.bias", "h.1.weight", "h.1.bias" };
    ls_store *s = store_of(LS_F32);
    int params[4], group;

    for (int k = 0; k < 4; k++)
        OK(store_declare(s, names[k], (ls_init){ LS_INIT_NORMAL, 0.3 }, k % 2 ? 1 : 2, (size_t[]){ WIDTH, WIDTH }, &params[k]));
    OK(store_group(s, 4, params, c, &o, &group));
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

/* A pass that all-reduces the group's gradients at the end of the backward. */
static ls_status reduce_at_the_end(ls_program *p, void *ctx)
{
    struct exchange e = { .op = LS_COLLECTIVE_ALL_REDUCE, .comm = ctx, .redop = LS_SUM, .total = store_group_at(p->store, 0)->total };
    ls_value g = program_group_value(p, 0, STORE_GRAD, NULL);
    enum segment final = p->options.split_backward ? SEG_WEIGHTS : SEG_BACKWARD;
    struct cursor before = program_cursor_begin(p, (struct cursor){ .segment = final, .when = LS_WHEN_LAST });

    program_exchange_start(p, &e, g, g);
    program_exchange_wait(p, &e, g, g);
    program_cursor_end(p, before);
    for (int n = 0; n < p->list[final].n; n++) {  /* parameters' gradients become views of the group's */
        struct instruction *i = &p->list[final].at[n];

        for (int k = 0; k < i->nout; k++) {
            struct value *v = &p->values[i->out[k].id];

            if (v->role == LS_ROLE_GRADIENT && v->param >= 0) {
                v->root = g.id;
                v->offset = (ptrdiff_t)store_group_at(p->store, 0)->at[v->param];
            }
        }
    }
    return ls_program_status(p);
}

static void count_release(void *ctx) { ++*(int *)ctx; }

static void collectives_follow_weight_gradients(void **state)
{
    ls_comm *c = planned(0, 1);
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    float got[2][2 * (WIDTH * WIDTH + WIDTH)];

    (void)state;
    for (int split = 0; split < 2; split++) {
        ls_store *s = grouped_store(c, 0, BACKING_MEMORY);
        ls_program *p = program_of(s);
        const struct list *l;
        size_t at = 0;
        float x[2 * WIDTH];

        for (int i = 0; i < 2 * WIDTH; i++)
            x[i] = (float)sin(i);
        ls_backward(p, model(p));
        p->spread = (struct spread){ .pass = reduce_at_the_end, .ctx = c, .comm = c };
        o.split_backward = split;
        OK(ls_program_compile(p, &o));
        l = &p->list[split ? SEG_WEIGHTS : SEG_BACKWARD];
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
    ls_comm *c = planned(1, 3);
    ls_store *s = grouped_store(c, 1u << STORE_GRAD, BACKING_MEMORY);
    ls_program *p = program_of(s);
    ls_value v = program_group_value(p, 0, STORE_VALUE, NULL), g = program_group_value(p, 0, STORE_GRAD, NULL);
    ls_value m = program_group_value(p, 0, STORE_STATE, "m");

    (void)state;
    assert_string_equal(program_value(p, v)->name, "h (4 parameters)");
    assert_string_equal(program_value(p, g)->name, "h (4 parameters).grad");
    assert_string_equal(program_value(p, m)->name, "h (4 parameters).m");
    assert_int_equal(program_group_value(p, 0, STORE_GRAD, NULL).id, g.id);
    assert_int_equal(program_group_value(p, 0, STORE_STATE, "m").id, m.id);
    assert_true(program_group_value(p, 0, STORE_STATE, "v").id != m.id);
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
    ls_comm *c = planned(1, 3);
    ls_store *s = grouped_store(c, 1u << STORE_VALUE, BACKING_MEMORY);
    ls_program *p = program_of(s);

    (void)state;
    model(p);
    REFUSED(LS_EINVAL, "value of parameter 'h.0.weight' lies in parts", ls_program_compile(p, NULL));
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&c);
}

static void frozen_group_has_no_gradient(void **state)
{
    ls_store *s = grouped_store(NULL, 0, BACKING_MEMORY);
    ls_program *p = program_of(s);
    ls_value g;

    (void)state;
    for (size_t i = 0; i < 4; i++)
        OK(ls_store_freeze(s, i));
    g = program_group_value(p, 0, STORE_GRAD, NULL);
    program_emit(p, OP_FILL, NULL, 0, NULL, 1, &g);
    REFUSED(LS_EINVAL, "'h (4 parameters).grad': none of the group's", ls_program_compile(p, NULL));
    ls_program_release(&p);
    ls_store_release(&s);
}

/* state = 2 state + 1, where it is offloaded: nothing of it stays in memory. */
static void offloaded_state_is_loaded_and_stored(void **state)
{
    static const enum store_backing backings[] = { BACKING_CPU, BACKING_FILE };

    (void)state;
    for (size_t b = 0; b < COUNT_OF(backings); b++) {
        ls_store *s = grouped_store(NULL, 0, backings[b]);
        ls_program *p = program_of(s);
        size_t n = store_group_at(s, 0)->total;
        ls_value x = program_new_value(p, "m", LS_F32, 1, &n), y, one;
        struct cursor cursor;
        struct mem_stats before, after;
        float got[WIDTH];
        ls_cost cost;

        cursor = program_cursor_segment(p, SEG_OPTIMIZER, LS_PHASE_OPTIMIZER);
        program_load(p, 0, "m", x);
        one = ls_constant(p, LS_F32, 1, &n, 1.0);
        y = ls_add(p, ls_scale(p, x, 2), one);
        program_save(p, 0, "m", y);
        program_cursor_end(p, cursor);
        OK(ls_program_compile(p, NULL));
        cost = ls_program_cost(p);
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
        assert_int_equal(program_group_value(p, 0, STORE_STATE, "m").id, 0);
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
    ls_store *s = store_of(LS_F32);
    ls_program *p = program_of(s);
    int released = 0;

    (void)state;
    ls_backward(p, model(p));
    p->spread = (struct spread){ .pass = refusing_pass, .release = count_release, .ctx = &released };
    REFUSED(LS_EINVAL, "this pass refuses", ls_program_compile(p, NULL));
    REFUSED(LS_EINVAL, "this pass refuses", ls_program_run(p, LS_FORWARD));
    assert_int_equal(released, 0);
    ls_program_release(&p);
    assert_int_equal(released, 1);
    ls_store_release(&s);
}

static void every_instruction_is_watched(void **state)
{
    ls_comm *c = planned(0, 1);
    ls_store *s = grouped_store(c, 0, BACKING_MEMORY);
    ls_program *p = program_of(s);
    struct seen seen = { 0 };
    int runs = 0;

    (void)state;
    ls_backward(p, model(p));
    p->spread = (struct spread){ .pass = reduce_at_the_end, .ctx = c, .comm = c };
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

/* The budget is for activations; what is communicated is counted beside it. */
static void budget_holds_with_a_pass(void **state)
{
    ls_comm *c = planned(0, 1);
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    size_t full = 0, budget[3];

    (void)state;
    for (int k = 0; k < 3; k++) {
        ls_store *s = grouped_store(c, 0, BACKING_MEMORY);
        ls_program *p = program_of(s);

        ls_backward(p, model(p));
        p->spread = (struct spread){ .pass = reduce_at_the_end, .ctx = c, .comm = c };
        o.recompute = k ? LS_RECOMPUTE_BUDGET : LS_RECOMPUTE_NONE;
        o.bytes = k == 1 ? full : 64;
        if (k == 2) {
            REFUSED(LS_EINVAL, "can't be met", ls_program_compile(p, &o));
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
        cmocka_unit_test(ranks_overlap_several_collectives),
        cmocka_unit_test(ranks_update_fewer_elements_than_ranks),
        cmocka_unit_test(ranks_wait_in_a_later_run_or_never),
        cmocka_unit_test(ranks_fail_with_nothing_left_in_flight),
        cmocka_unit_test(one_rank_communicates_with_itself),
        cmocka_unit_test(buffers_live_from_start_to_wait),
        cmocka_unit_test(arenas_do_not_share_bytes),
        cmocka_unit_test(instructions_run_on_their_micro_batch),
        cmocka_unit_test(bytes_on_the_wire_are_counted),
        cmocka_unit_test(wrong_sizes_are_refused),
        cmocka_unit_test(collectives_follow_weight_gradients),
        cmocka_unit_test(flat_values_are_named_and_placed),
        cmocka_unit_test(sharded_parameter_needs_a_gather),
        cmocka_unit_test(frozen_group_has_no_gradient),
        cmocka_unit_test(offloaded_state_is_loaded_and_stored),
        cmocka_unit_test(pass_is_run_and_released),
        cmocka_unit_test(every_instruction_is_watched),
        cmocka_unit_test(budget_holds_with_a_pass),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
