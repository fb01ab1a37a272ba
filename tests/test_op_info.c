/* test_op_info.c - the rows of the ops: each op has one in every table, and the columns of a row agree with each other.
 *
 * A row that lacks a column, or names a rule that does not exist, does not compile: every table is made of OP_MAP.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "ir/op_info.h"

/* Columns as the rows write them. rows: how many OP_MAP has for this op. */
struct written {
    int rows;
    const char *shapes, *gradient, *sharding, *time, *stage, *lowering;
};
static struct written written[PROGRAM_OPS];

enum { KIND_MODEL = 1, KIND_PASS, KIND_OPTIMIZER };
#define KIND_OF_MODEL(id, ...)     [OP_##id] = KIND_MODEL,
#define KIND_OF_PASS(id, ...)      [OP_##id] = KIND_PASS,
#define KIND_OF_OPTIMIZER(id, ...) [OP_##id] = KIND_OPTIMIZER,
static const int op_info_kinds[PROGRAM_OPS] = { OP_MODEL_MAP(KIND_OF_MODEL) OP_PASS_MAP(KIND_OF_PASS) OP_OPTIMIZER_MAP(KIND_OF_OPTIMIZER)
                                            OP_PROGRAM_MODEL_MAP(KIND_OF_MODEL) OP_PROGRAM_PASS_MAP(KIND_OF_PASS) };

static int read_rows(void **state)
{
    (void)state;
#define WRITTEN(id, name, shapes, inplace, gradient, to, flops, bytes, recompute, sharding, check, traits, time, stage, payload, run, \
                lowering)                                                                                                             \
    written[OP_##id] = (struct written){ written[OP_##id].rows + 1, shapes, #gradient, #sharding, #time, #stage, #lowering };
    OP_MAP(WRITTEN)
#undef WRITTEN
    return 0;
}

static bool is_none(const char *word) { return strcmp(word, "none") == 0; }

#define EXPECT(op, condition) \
    do { \
        if (!(condition)) fail_msg("the row of %s: %s", program_op_name(op), #condition); \
    } while (0)

static void every_op_has_one_row(void **state)
{
    (void)state;
    for (int op = 0; op < PROGRAM_OPS; op++) {
        assert_true(op_info(op)->name && *op_info(op)->name);
        EXPECT(op, written[op].rows == 1);
        EXPECT(op, op_info_kinds[op] != 0);
        EXPECT(op, op_info(op)->bytes || instruction_is_view(&(struct instruction){ .op = op }));
        for (int other = 0; other < op; other++) EXPECT(op, strcmp(program_op_name(op), program_op_name(other)) != 0);
    }
}

/* The kernel table and the program read the same row. */
static void ops_with_kernels_are_launched(void **state)
{
    (void)state;
    for (int op = 0; op < PROGRAM_OPS; op++) {
        EXPECT(op, (op < OPS) == (op_run_kind(op) == RUN_KERNEL));
        EXPECT(op, (op < OPS) == (*written[op].shapes != 0));
        if (op >= OPS) continue;
        EXPECT(op, strcmp(op_name((enum op)op), program_op_name(op)) == 0);
        EXPECT(op, op_inplace_mask((enum op)op) == op_info(op)->inplace);
        EXPECT(op, strcmp(op_shapes((enum op)op), written[op].shapes) == 0);
    }
}

static void payload_fits_the_way_an_op_runs(void **state)
{
    (void)state;
    for (int op = 0; op < PROGRAM_OPS; op++) {
        enum payload has = op_payload(op);

        switch (op_run_kind(op)) {
        case RUN_KERNEL: EXPECT(op, has == PAYLOAD_none); break;
        case RUN_NOTHING: EXPECT(op, has == PAYLOAD_view); break;
        case RUN_START:
        case RUN_WAIT: EXPECT(op, has == PAYLOAD_exchange); break;
        case RUN_LOAD:
        case RUN_SAVE:
        case RUN_OFFLOAD_WAIT: EXPECT(op, has == PAYLOAD_state); break;
        case RUN_SHUFFLE_COUNTS:
        case RUN_SHUFFLE: EXPECT(op, has == PAYLOAD_shuffle); break;
        case RUN_LOWERED: EXPECT(op, has == PAYLOAD_move || has == PAYLOAD_across); break;
        }
        /* on one rank a shuffle runs unchanged */
        EXPECT(op, (op_run_kind(op) == RUN_LOWERED || op_run_kind(op) == RUN_SHUFFLE) == !is_none(written[op].lowering));
    }
}

static void rules_fit_the_kind(void **state)
{
    (void)state;
    for (int op = 0; op < PROGRAM_OPS; op++) {
        const struct op_info *o = op_info(op);

        EXPECT(op, (op_info_kinds[op] == KIND_OPTIMIZER) == (o->stage != OPTIMIZER_NONE));
        EXPECT(op, (o->gradient != NULL) == !is_none(written[op].gradient));
        EXPECT(op, (o->time != NULL) == !is_none(written[op].time));
        EXPECT(op, op_info_kinds[op] == KIND_MODEL || (!o->gradient && !o->time && is_none(written[op].sharding)));
        EXPECT(op, !o->gradient || o->to);
        EXPECT(op, o->gradient || !(o->traits & (TRAIT_STRIDED_DY | TRAIT_OWN_LOSS | TRAIT_LOSS_BY_GRADIENT)));
        EXPECT(op, !(o->traits & TRAIT_SUM) || (o->traits & TRAIT_LINEAR));
    }
}

/* emit_squares() of update.c emits the only op that adds squares, and a run stops at the only op that clips. */
static void optimizer_has_each_stage(void **state)
{
    int ops[OPTIMIZER_NONE] = { 0 };

    (void)state;
    for (int op = 0; op < PROGRAM_OPS; op++)
        if (op_info(op)->stage != OPTIMIZER_NONE) ops[op_info(op)->stage]++;
    assert_int_equal(ops[OPTIMIZER_SQUARES], 1);
    assert_int_equal(ops[OPTIMIZER_CLIP], 1);
    assert_true(ops[OPTIMIZER_NORMS] && ops[OPTIMIZER_UPDATE]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_one_row), cmocka_unit_test(ops_with_kernels_are_launched),
        cmocka_unit_test(payload_fits_the_way_an_op_runs), cmocka_unit_test(rules_fit_the_kind),
        cmocka_unit_test(optimizer_has_each_stage),
    };

    return cmocka_run_group_tests(tests, read_rows, NULL);
}
