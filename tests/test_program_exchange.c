/* test_program_exchange.c - collectives of programs on forked ranks: several in flight, waits in a later run, failures in between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/algorithms/steps.h"
#include "helper_forked.h"
#include "helper_program.h"
#include "lockstep/ops.h"
#include "ir/program.h"
#include "runtime/store.h"

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
        v[k] = emit_copy(p, x, program_comm_value(p, names[k], LS_F32, total));
        o[k] = k == 1 ? program_comm_value(p, "elsewhere", LS_F32, total) : k == 2 ? emit_own_block(p, c, v[k], total) : v[k];
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
        ls_store *s = seeded_store(LS_F32);
        ls_program *p = program_on(s);
        float *x = malloc(total * sizeof *x), *y = malloc(total * sizeof *y);

        build_all(p, c, total);
        p->arguments.arena_comm = c;
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
    ls_comm *c = plan_comm(0, 1);

    (void)state;
    run_all(c, NULL);
    ls_comm_close(&c);
}

/* ---- a group's parameters gathered, used, and their gradient reduced, as a pass for data parallelism does it ---- */

/* The update of a sharded group with fewer elements than ranks: some ranks hold nothing of it. */
static void update_little(ls_comm *c, void *ctx)
{
    struct store_unit_options o = { .sharded = 7 };
    ls_store *s = seeded_store(LS_F32);
    ls_program *p = program_on(s);
    struct op_attr attr = { .optim = { .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .trust = 1 } };
    int index, group, params[] = { 0 };
    size_t three = 3, four = 4, one = 1;
    float hyper[] = { 0.5f, 10, 1000, 1 }, got[3], factor = 1;
    double squares;
    ls_value in[3], out[3];

    (void)ctx;
    RANKS_TRY(store_declare(s, "w", (ls_init){ LS_INIT_ONES, 1 }, 1, &three, &index));
    RANKS_TRY(store_unit(s, 1, params, c, &o, &group));
    ls_value h = ls_input(p, "hyper", LS_F32, 1, &four);
    ls_value f = ls_input(p, "factor", LS_F32, 1, &one);
    ls_value g = program_unit_value(p, group, STORE_GRAD, NULL);
    ls_value w = program_unit_value(p, group, STORE_VALUE, NULL);
    ls_value acc = ls_constant(p, LS_F64, 1, &one, 0.0);
    program_emit(p, OP_SUM_SQUARES, NULL, 1, &g, 1, &acc);
    ls_output(p, "squares", program_copy(p, acc, LS_F64));
    in[0] = g;
    in[1] = h;
    in[2] = f;
    out[0] = w;
    out[1] = program_unit_value(p, group, STORE_STATE, "m");
    out[2] = program_unit_value(p, group, STORE_STATE, "v");
    struct cursor before = program_cursor_segment(p, SEG_OPTIMIZER, LS_PHASE_OPTIMIZER);
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

/* A wait in the next segment's run, or none: the next forward completes the exchange first. */
static void start_now_wait_later(ls_comm *c, void *ctx)
{
    size_t total = 5000;
    ls_store *s = seeded_store(LS_F32);
    ls_program *p = program_on(s);
    struct exchange e = { .op = LS_COLLECTIVE_ALL_REDUCE, .comm = c, .redop = LS_SUM, .total = total };
    ls_value x = ls_input(p, "x", LS_F32, 1, &total), v = emit_copy(p, x, program_comm_value(p, "v", LS_F32, total));
    float *data = calloc(total, sizeof *data);

    (void)ctx;
    struct cursor before = program_cursor_segment(p, SEG_BACKWARD, LS_PHASE_COMMUNICATE);
    program_exchange_start(p, &e, v, v);
    program_cursor_end(p, before);
    before = program_cursor_segment(p, SEG_OPTIMIZER, LS_PHASE_COMMUNICATE);
    program_exchange_wait(p, &e, v, v);
    ls_output(p, "y", program_copy(p, v, LS_F32));
    program_cursor_end(p, before);
    p->arguments.arena_comm = c;
    RANKS_TRY(ls_program_compile(p, NULL));
    for (int k = 0; k < 3; k++) {
        for (size_t i = 0; i < total; i++)
            data[i] = (float)(k + ls_comm_rank(c));
        RANKS_TRY(ls_program_write(p, "x", data, LS_F32, total));
        RANKS_TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
        RANKS_CHECK(ls_comm_size(c) == 1 || p->run.work[0]);
        if (k == 1)
            continue;
        RANKS_TRY(ls_program_run(p, LS_OPTIMIZER_STEP));
        RANKS_CHECK(!p->run.work[0]);
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
    ls_store *s = seeded_store(LS_F32);
    ls_program *p = program_on(s);
    struct exchange e = { .op = LS_COLLECTIVE_ALL_REDUCE, .comm = c, .redop = LS_SUM, .total = total };
    ls_value x = ls_input(p, "x", LS_F32, 1, &total), v = emit_copy(p, x, program_comm_value(p, "v", LS_F32, total));
    float *data = calloc(total, sizeof *data);

    (void)ctx;
    program_exchange_start(p, &e, v, v);
    ls_output(p, "root", ls_mul(p, ls_scale(p, x, 1e30), ls_scale(p, x, 1e30)));
    program_exchange_wait(p, &e, v, v);
    ls_output(p, "y", program_copy(p, v, LS_F32));
    p->arguments.arena_comm = c;
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
        RANKS_CHECK(!p->run.work[0]);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_overlap_several_collectives),
        cmocka_unit_test(ranks_update_fewer_elements_than_ranks),
        cmocka_unit_test(ranks_wait_in_a_later_run_or_never),
        cmocka_unit_test(ranks_fail_with_nothing_left_in_flight),
        cmocka_unit_test(one_rank_communicates_with_itself),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
