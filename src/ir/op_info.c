/* op_info.c - the rows of the ops as a table: those with kernels and the program's own. */
#include "ir/op_info.h"

#define gradient_none NULL
#define flops_none    NULL
#define bytes_none    NULL
#define time_none     NULL

#define ROW(id, name, shapes, inplace, rule, to, flops, bytes, recompute, sharding, check, traits, time, stage, ...)   \
    [OP_##id] = { name,   inplace,           gradient_##rule, to, flops_##flops, bytes_##bytes, RECOMPUTE_##recompute, \
                  traits, OPTIMIZER_##stage, time_##time },

static const struct op_info op_info_rows[PROGRAM_OPS] = { OP_MAP(ROW) };

const struct op_info *op_info(int op)
{
    ASSERT(op >= 0 && op < PROGRAM_OPS);
    return &op_info_rows[op];
}

const char *program_op_name(int op) { return op_info(op)->name; }
