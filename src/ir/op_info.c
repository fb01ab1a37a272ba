/* op_info.c - the rows of the ops as a table: those with kernels and the program's own. */
#include "ir/op_info.h"

#define gradient_none NULL
#define flops_none    NULL
#define bytes_none    NULL
#define time_none     NULL

#define MODEL_ROW(id, name, shapes, inplace, rule, to, flops, bytes, recompute, sharding, check, traits, time)      \
    [OP_##id] = { name,   inplace,        gradient_##rule, to, flops_##flops, bytes_##bytes, RECOMPUTE_##recompute, \
                  traits, OPTIMIZER_NONE, time_##time },
#define PASS_ROW(id, name, shapes, inplace, flops, bytes) \
    [OP_##id] = { name, inplace, NULL, 0xff, flops_##flops, bytes_##bytes, RECOMPUTE_COSTLY, 0, OPTIMIZER_NONE, NULL },
#define OPTIMIZER_ROW(id, name, shapes, inplace, stage) \
    [OP_##id] = { name, inplace, NULL, 0, NULL, bytes_operands, RECOMPUTE_COSTLY, 0, OPTIMIZER_##stage, NULL },

static const struct op_info rows[PROGRAM_OPS] = { OP_MODEL_MAP(MODEL_ROW) OP_PASS_MAP(PASS_ROW) OP_OPTIMIZER_MAP(OPTIMIZER_ROW)
                                                      OP_PROGRAM_MODEL_MAP(MODEL_ROW) OP_PROGRAM_PASS_MAP(PASS_ROW) };

const struct op_info *op_info(int op)
{
    ASSERT(op >= 0 && op < PROGRAM_OPS);
    return &rows[op];
}

const char *program_op_name(int op) { return op_info(op)->name; }
