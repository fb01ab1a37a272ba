/* test_partition_bytes.c - communication and memory of a partitioned layer: collectives in order, bytes, memory, per axis. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "helper_check.h"
#include "helper_partition.h"
#include "helper_partition_plan.h"
#include "parallel/sharding/partition.h"

/* ---- T1, T2: the exchanges of a layer ---- */

/* The ops of a block in a segment without views and waits; exchanges by the names of their collectives. */
static const char *ops_of(const ls_program *p, enum segment s, const char *block)
{
    static char text[2000];
    size_t at = 0;

    text[0] = 0;
    for (int n = 0; n < p->list[s].n; n++) {
        const struct instruction *i = &p->list[s].at[n];

        if (i->op != OP_VIEW && i->op != OP_COMM_WAIT && i->block && strcmp(p->blocks[i->block], block) == 0)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", at ? " " : "", instruction_name(i));
    }
    return text;
}

static void test_layer(void **state)
{
    struct partition_case c = partition_case_of(partition_gpt2(4, 24, 37, 0), 4, 1, 0, LS_CP_RING);
    struct partitioned s;
    struct partition_plan m;

    (void)state;
    partition_plan_open(&c, 1, &m, &s);
    assert_string_equal(ops_of(s.program, SEG_FORWARD, "h.0"),
                        "layer_norm linear linear linear attention linear all_reduce add add "
                        "layer_norm linear unary linear all_reduce add add");
    assert_int_equal(partition_exchanges(s.program, SEG_FORWARD, LS_COLLECTIVE_ALL_REDUCE, LS_AXIS_TP, NULL), 2 * 2 + 1);
    assert_int_equal(partition_exchanges(s.program, SEG_BACKWARD, LS_COLLECTIVE_ALL_REDUCE, LS_AXIS_TP, NULL), 2 * 2 + 1);
    for (int g = SEG_FORWARD; g <= SEG_BACKWARD; g++)  /* T3: each of B T C elements */
        for (int n = 0; n < s.program->list[g].n; n++) {
            const struct instruction *i = &s.program->list[g].at[n];

            if (i->op == OP_COMM_START && instruction_exchange(i)->op == LS_COLLECTIVE_ALL_REDUCE)
                assert_int_equal(instruction_exchange(i)->total, c.batch * c.time * c.model.width);
        }
    assert_int_equal(partition_exchanges(s.program, SEG_BACKWARD, LS_COLLECTIVE_ALL_GATHER, LS_AXIS_TP, NULL), 0);
    assert_int_equal(partition_exchanges(s.program, SEG_BACKWARD, LS_COLLECTIVE_REDUCE_SCATTER, LS_AXIS_TP, NULL), 0);
    partition_close(&s);
    partition_plan_close(&m);
}

/* In chunks: the start of one chunk's all-reduce comes before the next chunk's matmul, its wait after it. */
static void test_split_products(void **state)
{
    struct partition_case c = partition_case_of(partition_gpt2(4, 24, 37, 0), 4, 1, 0, LS_CP_RING);
    struct partitioned s;
    struct partition_plan m;

    (void)state;
    c.options.overlap = 1;
    c.options.tp_chunks = 2;
    partition_plan_open(&c, 1, &m, &s);
    assert_string_equal(ops_of(s.program, SEG_FORWARD, "h.1"),
                        "layer_norm linear linear linear attention linear all_reduce linear all_reduce add add "
                        "layer_norm linear unary linear all_reduce linear all_reduce add add");
    for (int n = 0, open = 0, most = 0; n <= s.program->list[SEG_FORWARD].n; n++) {
        const struct instruction *i = &s.program->list[SEG_FORWARD].at[n];

        if (n == s.program->list[SEG_FORWARD].n) {
            assert_int_equal(most, 2);
            break;
        }
        open += (i->op == OP_COMM_START) - (i->op == OP_COMM_WAIT);
        most = MAX(most, open);
        assert_true(i->op != OP_ADD || open == 0);
    }
    partition_close(&s);
    partition_plan_close(&m);
}

/* ---- T5: the same bytes, less memory ---- */

static void test_sequence(void **state)
{
    struct partition_case c = partition_case_of(partition_gpt2(4, 24, 37, 0), 4, 1, 0, LS_CP_RING);
    size_t whole = 0, part = 0, loss = 0, bytes;
    struct partitioned s;
    struct partition_plan m;

    (void)state;
    partition_plan_open(&c, 0, &m, &s);
    for (int g = SEG_FORWARD; g <= SEG_BACKWARD; g++) {
        partition_exchanges(s.program, (enum segment)g, LS_COLLECTIVE_ALL_REDUCE, LS_AXIS_TP, &bytes);
        whole += bytes;
        partition_exchanges(s.program, (enum segment)g, LS_COLLECTIVE_ALL_GATHER, LS_AXIS_TP, &bytes);
        loss += bytes;  /* statistics of the logits */
    }
    size_t activations = ls_program_cost(s.program).activations;
    partition_close(&s);
    partition_plan_close(&m);

    c.options.sp = 1;
    partition_plan_open(&c, 0, &m, &s);
    assert_string_equal(ops_of(s.program, SEG_FORWARD, "h.0"),
                        "layer_norm all_gather unpack_blocks linear linear linear attention linear pack_blocks reduce_scatter add add "
                        "layer_norm all_gather unpack_blocks linear unary linear pack_blocks reduce_scatter add add");
    for (int g = SEG_FORWARD; g <= SEG_BACKWARD; g++) {
        assert_int_equal(partition_exchanges(s.program, (enum segment)g, LS_COLLECTIVE_ALL_REDUCE, LS_AXIS_TP, NULL), 0);
        partition_exchanges(s.program, (enum segment)g, LS_COLLECTIVE_REDUCE_SCATTER, LS_AXIS_TP, &bytes);
        part += bytes;
        partition_exchanges(s.program, (enum segment)g, LS_COLLECTIVE_ALL_GATHER, LS_AXIS_TP, &bytes);
        part += bytes;
    }
    assert_int_equal(part - loss, whole);
    assert_true(ls_program_cost(s.program).activations < activations);
    partition_close(&s);
    partition_plan_close(&m);
}

/* ---- T4: weights are sharded, activations only partly ---- */

static void partition_bytes_test_memory(void **state)
{
    struct partition_case c = partition_case_of(partition_llama(4, 4, 24, 40, 0), 4, 1, 0, LS_CP_RING);
    const ls_model *k = &c.model;
    size_t cut = k->layers * (4 * 16 * k->width + 3 * k->ffn * k->width) + 2 * k->vocab * k->width, norms = (2 * k->layers + 1) * k->width;
    struct partitioned s;
    struct partition_plan m;

    (void)state;
    OK(partition_open(&c, NULL, true, &s));
    assert_int_equal(ls_program_cost(s.program).parameters, 4 * (cut + norms));
    size_t activations = ls_program_cost(s.program).activations;
    partition_close(&s);
    partition_plan_open(&c, 3, &m, &s);
    assert_int_equal(ls_program_cost(s.program).parameters, 4 * (cut / 4 + norms));
    assert_int_equal(ls_program_cost(s.program).gradients, 4 * (cut / 4 + norms));
    assert_true(ls_program_cost(s.program).activations < activations);
    assert_true(ls_program_cost(s.program).activations > activations / 4);
    partition_close(&s);
    partition_plan_close(&m);
}

/* ---- T6, T7: the ring compared with the exchange of heads ---- */

/* B t G D elements of keys and as many of values are sent n-1 times around the ring; the exchange sends (n-1)/n of this rank's q, k, v and
 * o. */
static void test_context_bytes(void **state)
{
    struct partition_case c = partition_case_of(partition_llama(8, 4, 24, 40, 0), 1, 4, 0, LS_CP_RING);
    size_t shard = 4 * c.batch * (c.time / 4) * 4, bytes;  /* bytes of one head of a shard */
    struct partitioned s;
    struct partition_plan m;

    (void)state;
    partition_plan_open(&c, 2, &m, &s);
    assert_int_equal(partition_exchanges(s.program, SEG_FORWARD, LS_COLLECTIVE_SEND, LS_AXIS_CP, &bytes), 2 * 3);
    assert_int_equal(bytes, 2 * 3 * (2 * 4 * shard));
    assert_int_equal(partition_exchanges(s.program, SEG_BACKWARD, LS_COLLECTIVE_SEND, LS_AXIS_CP, NULL), 2 * (3 + 4));
    partition_close(&s);
    partition_plan_close(&m);
    c.options.cp_method = LS_CP_ALL_TO_ALL;
    partition_plan_open(&c, 2, &m, &s);
    for (int g = SEG_FORWARD; g <= SEG_BACKWARD; g++)
        assert_int_equal(partition_exchanges(s.program, (enum segment)g, LS_COLLECTIVE_ALL_TO_ALL, LS_AXIS_CP, &bytes), 2 * 4);
    assert_int_equal(ls_program_comm_bytes(s.program, LS_FORWARD, LS_COLLECTIVE_ALL_TO_ALL, NULL), 2 * (2 * 8 + 2 * 4) * shard * 3 / 4);
    partition_close(&s);
    partition_plan_close(&m);
}

/* Activations of a long sequence fall as 1/cp, under both. */
static void test_context_memory(void **state)
{
    (void)state;
    for (int context = LS_CP_RING; context <= LS_CP_ALL_TO_ALL; context++) {
        size_t whole = 0;

        for (int cp = 1; cp <= 4; cp *= 2) {
            struct partition_case c = partition_case_of(partition_gpt2(8, 128, 40, 0), 1, cp, 0, (ls_cp_method)context);
            struct partitioned s;
            struct partition_plan m;

            c.time = c.model.max_positions = 4096;
            c.model.layers = 12;  /* one attention's scratch is all of a sequence under the exchange of heads */
            c.shape.dp = 1;
            partition_plan_open(&c, 0, &m, &s);
            whole = cp == 1 ? ls_program_cost(s.program).activations : whole;
            if (ls_program_cost(s.program).activations > whole / (size_t)cp * 4 / 3)
                fail_msg("context %d, cp %d: %zu bytes of %zu", context, cp, ls_program_cost(s.program).activations, whole);
            partition_close(&s);
            partition_plan_close(&m);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer),
        cmocka_unit_test(test_split_products),
        cmocka_unit_test(test_sequence),
        cmocka_unit_test(partition_bytes_test_memory),
        cmocka_unit_test(test_context_bytes),
        cmocka_unit_test(test_context_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
