/* test_partition_pass.c - the partition pass: settings that it refuses, other programs, the optimizer, failing allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "helper_check.h"
#include "helper_partition.h"
#include "helper_partition_plan.h"
#include "lockstep/optim.h"
#include "parallel/sharding/partition.h"
#include "train/faults/fault_points.h"

/* ---- refused ---- */

static void impossible_partitions_are_refused(void **state)
{
    struct partition_case c = partition_case_of(partition_gpt2(3, 24, 37, 0), 4, 1, 0, LS_CP_RING);

    (void)state;
    partition_refused(c, "model.heads=3 cannot be sharded over parallel.tp=4: every rank needs at least one");
    c = partition_case_of(partition_gpt2(4, 3, 37, 0), 4, 1, 0, LS_CP_RING);
    partition_refused(c, "model.ffn=3 cannot be sharded over parallel.tp=4");
    c = partition_case_of(partition_gpt2(4, 24, 37, 0), 2, 3, 0, LS_CP_ALL_TO_ALL);
    partition_refused(c, "parallel.cp=3: with model.heads=4 and parallel.tp=2 a rank has 2 heads, enough for parallel.cp=2");
    c = partition_case_of(partition_gpt2(4, 24, 37, 0), 1, 3, 0, LS_CP_RING);
    c.time = 5;
    partition_refused(c, "data.seq_len=5 is too short for parallel.cp=3 with two chunks per rank; use at least 6 tokens");
    c = partition_case_of(partition_gpt2(4, 24, 37, 0), 4, 2, 1, LS_CP_ALL_TO_ALL);
    c.time = 7;
    c.shape.cp = 2;
    c.shape.tp = 4;
    partition_refused(c, "parallel.cp_method=all_to_all with parallel.cp=2");
    c.options.cp_method = LS_CP_RING;
    c.time = 6;
    partition_refused(c, "data.seq_len=6 over parallel.cp=2 gives shards of 3 tokens, too few for parallel.sp over parallel.tp=4");
    c = partition_case_of(partition_gpt2(4, 24, 37, 0), 2, 1, 0, LS_CP_RING);
    c.recompute = LS_RECOMPUTE_BUDGET;
    partition_refused(c, "within a budget, ranks of tp=2, cp=1, ep=1 could choose different blocks; use LS_RECOMPUTE_FIRST");
    c = partition_case_of(partition_gpt2(4, 24, 37, 0), 2, 1, 0, (ls_cp_method)7);
    partition_refused(c, "parallel.cp_method: 7 does not exist; use ring or all_to_all");
}

/* An op without a rule, and a sharded operand where the rule needs it unsharded: op, axis, tensor. */
static void refuse_graph(int tp, int cp, void (*build)(ls_program *p, const ls_model *m), const char *says[4])
{
    struct partition_case c = partition_case_of(partition_gpt2(4, 24, 37, 0), tp, cp, 0, LS_CP_RING);
    struct partition_plan m = partition_plan_mesh(&c.shape, 0);
    ls_store *store;
    ls_program *p;

    OK(ls_store_new(NULL, &store));
    OK(ls_program_new(store, &p));
    build(p, &c.model);
    OK(ls_partition(p, m.mesh, &c.model, &c.options));
    assert_true(ls_program_compile(p, NULL) < 0);
    for (int k = 0; k < 4 && says[k]; k++)
        if (!strstr(ls_errmsg(), says[k]))
            fail_msg("'%s' lacks '%s'", ls_errmsg(), says[k]);
    ls_program_release(&p);
    ls_store_release(&store);
    partition_plan_close(&m);
}

static ls_value fc_of(ls_program *p, const ls_model *m)
{
    ls_value x = ls_input(p, "x", LS_F32, 2, (size_t[]){ 6, m->width });

    return ls_linear(p, x, ls_param(p, "h.0.mlp.fc.weight", (ls_init){ LS_INIT_NORMAL, 1 }, 2, (size_t[]){ m->ffn, m->width }), LS_NONE);
}

static void build_mse(ls_program *p, const ls_model *m)
{
    ls_value y = fc_of(p, m);

    ls_backward(p, ls_mse(p, y, ls_input(p, "y", LS_F32, 2, (size_t[]){ 6, m->ffn })));
}

static void build_softmax(ls_program *p, const ls_model *m) { ls_backward(p, ls_sum(p, ls_softmax(p, fc_of(p, m)), -1)); }

/* The maximum of each channel over the tokens: over cp each rank has that of its own tokens. */
static ls_value partition_pass_largest(ls_program *p, const ls_model *m)
{
    ls_value x = ls_input(p, "x", LS_F32, 3, (size_t[]){ 2, 6, m->width });

    ls_declare_time(p, x, 1);
    return ls_max(p, x, 1);
}

static void build_sum_of_max(ls_program *p, const ls_model *m) { ls_sum(p, partition_pass_largest(p, m), 1); }
static void build_scaled_max(ls_program *p, const ls_model *m) { ls_scale(p, partition_pass_largest(p, m), -1); }

static void build_max_and_sum(ls_program *p, const ls_model *m)
{
    ls_value x = partition_pass_largest(p, m);

    ls_concat(p, 2, (ls_value[]){ x, ls_sum(p, (ls_value){ x.id - 1 }, 1) }, 0);
}

static void partial_max_is_no_partial_sum(void **state)
{
    (void)state;
    refuse_graph(1, 2, build_sum_of_max, (const char *[4]){ "reduce_sum over cp", "'max' [2,16]", "is a partial max", "reduce it first" });
    refuse_graph(1, 2, build_scaled_max, (const char *[4]){ "scale over cp", "'max' [2,16]", "is a partial max", "reduce it first" });
    refuse_graph(1, 2, build_max_and_sum, (const char *[4]){ "concat over cp", "is a partial max", "cannot be combined", "partial sum" });
}

/* Inputs that count tokens must agree on their number. */
static void build_two_lengths(ls_program *p, const ls_model *m)
{
    ls_value x = ls_input(p, "x", LS_F32, 3, (size_t[]){ 2, 6, m->width }), y = ls_input(p, "y", LS_F32, 3, (size_t[]){ 2, 8, m->width });

    ls_declare_time(p, x, 1);
    ls_declare_time(p, y, 1);
    ls_scale(p, x, 2);
}

static void build_no_time(ls_program *p, const ls_model *m) { ls_scale(p, ls_input(p, "x", LS_F32, 3, (size_t[]){ 2, 6, m->width }), 2); }

static void time_dims_are_declared_and_agree(void **state)
{
    (void)state;
    refuse_graph(1, 2, build_two_lengths, (const char *[4]){ "'x' has 6 tokens", "'y' has 8" });
    refuse_graph(1, 2, build_no_time, (const char *[4]){ "cp 2", "ls_declare_time()" });
}

static void op_without_rule_is_refused(void **state)
{
    (void)state;
    refuse_graph(2, 1, build_mse, (const char *[4]){ "mse over tp", "'linear' [6,12]", "is sharded along dim 1", "no rule" });
    refuse_graph(2, 1, build_softmax,
                 (const char *[4]){ "softmax over tp", "'linear' [6,12]", "is sharded along dim 1", "must not be sharded" });
}

/* ---- other programs ---- */

/* A second program of the store uses the boxes; its outputs are replicated over tp. */
static void test_second_program(void **state)
{
    struct partition_case c = partition_case_of(partition_llama(6, 3, 20, 37, 0), 2, 1, 1, LS_CP_RING);
    struct partitioned s;
    struct partition_plan m;
    ls_program *p;

    (void)state;
    partition_plan_open(&c, 1, &m, &s);
    OK(ls_program_new(s.store, &p));
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ 1, c.time });
    ls_value logits = ls_output(p, "logits", ls_model_logits(p, &c.model, tokens));
    OK(ls_partition(p, m.mesh, &c.model, &c.options));
    OK(ls_program_compile(p, &(ls_compile_options){ .plan_only = 1 }));
    assert_int_equal(ls_value_size(p, logits, 1), c.time);
    assert_int_equal(ls_value_size(p, logits, 2), 37);
    assert_int_equal(ls_value_size(p, program_find(p, "tokens"), 1), c.time);
    ls_program_release(&p);
    partition_close(&s);
    partition_plan_close(&m);
}

/* An optimizer alone, and one after a forward: values of a parameter have the sizes of its box. */
static void test_optimizer(void **state)
{
    struct partition_case c = partition_case_of(partition_llama(6, 3, 20, 37, 1), 2, 1, 0, LS_CP_RING);
    ls_optimizer o = LS_OPTIMIZER_DEFAULTS;
    struct partitioned s;
    struct partition_plan m;
    ls_program *p;
    int found = 0;

    (void)state;
    partition_plan_open(&c, 0, &m, &s);
    OK(ls_program_new(s.store, &p));
    OK(ls_optimizer_append(p, &o));
    OK(ls_partition(p, m.mesh, &c.model, &c.options));
    OK(ls_program_compile(p, &(ls_compile_options){ .plan_only = 1 }));
    for (int v = 1; v < p->nvalues; v++) {
        const struct value *x = &p->values[v];

        for (int d = 0; x->param >= 0 && d < x->ndim; d++)
            assert_int_equal(x->size[d], store_local_size(s.store, (size_t)x->param, d));
        found += x->param >= 0 && x->role == LS_ROLE_OPTIMIZER;
    }
    assert_int_equal(found, 2 * (int)ls_store_count(s.store));
    ls_program_release(&p);
    partition_close(&s);
    partition_plan_close(&m);
}

static void test_cp_ranges(void **state)
{
    size_t begin[2], end[2], seen;

    (void)state;
    assert_int_equal(ls_cp_ranges(NULL, LS_CP_RING, 9, begin, end), 1);
    assert_int_equal(begin[0], 0);
    assert_int_equal(end[0], 9);
    for (int context = LS_CP_RING; context <= LS_CP_ALL_TO_ALL; context++) {
        char taken[14] = "";

        seen = 0;
        for (int r = 0; r < 3; r++) {
            struct partition_plan m = partition_plan_mesh(&(ls_mesh_shape){ 1, 1, 1, 3, 1, 1 }, r);
            int n = ls_cp_ranges(m.mesh, (ls_cp_method)context, 13, begin, end);

            assert_int_equal(n, context == LS_CP_RING ? 2 : 1);
            for (int k = 0; k < n; k++)
                for (size_t t = begin[k]; t < end[k]; t++, seen++)
                    assert_int_equal(taken[t]++, 0);
            if (n == 2)
                assert_true(begin[0] == shard_begin(13, 1, r, 6) && begin[1] == shard_begin(13, 1, 5 - r, 6));
            partition_plan_close(&m);
        }
        assert_int_equal(seen, 13);
    }
}

/* Every allocation of a compile fails once: a message each time, and nothing left behind. */
static void partition_fails_cleanly_without_memory(void **state)
{
    struct partition_case c = partition_case_of(partition_llama(6, 1, 20, 37, 0), 2, 2, 1, LS_CP_RING);

    (void)state;
    for (int context = LS_CP_RING; context <= LS_CP_ALL_TO_ALL; context++) {
        struct partition_plan m = partition_plan_mesh(&c.shape, 3);
        ls_status st = LS_ENOMEM;
        struct partitioned s;

        c.options.cp_method = (ls_cp_method)context;
        for (int64_t nth = 1; st < 0; nth += 1 + nth / 50) {
            struct mem_stats before, after;

            mem_read(&before);
            mem_fail_at(nth);
            st = partition_open(&c, m.mesh, true, &s);
            mem_fail_at(0);
            if (st == LS_OK)
                partition_close(&s);
            else
                assert_int_equal(st, LS_ENOMEM);
            mem_read(&after);
            assert_int_equal(before.total_now, after.total_now);
        }
        partition_plan_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impossible_partitions_are_refused),
        cmocka_unit_test(op_without_rule_is_refused),
        cmocka_unit_test(partial_max_is_no_partial_sum),
        cmocka_unit_test(time_dims_are_declared_and_agree),
        cmocka_unit_test(test_second_program),
        cmocka_unit_test(test_optimizer),
        cmocka_unit_test(test_cp_ranges),
        cmocka_unit_test(partition_fails_cleanly_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
