/* op_info.h - what the passes know about an op: its row in kernels/op_list.h or, for the program's own ops, in ir.h. */
#ifndef LS_IR_OP_INFO_H
#define LS_IR_OP_INFO_H

#include "passes/gradient.h"

enum recompute_class { RECOMPUTE_CHEAP, RECOMPUTE_COSTLY, RECOMPUTE_SAME, RECOMPUTE_ONCE, RECOMPUTE_MOVE };
enum optimizer_stage { OPTIMIZER_SQUARES, OPTIMIZER_CLIP, OPTIMIZER_NORMS, OPTIMIZER_UPDATE, OPTIMIZER_NONE };

/* FLOPs of i. inside: include what the kernel recomputes internally. */
typedef double op_flops_fn(const ls_program *p, const struct instruction *i, bool inside);
/* Bytes that i reads and writes. */
typedef size_t op_bytes_fn(const ls_program *p, const struct instruction *i);
/* The time dim of out[k]; -1: none. */
typedef int op_time_fn(const ls_program *p, const struct instruction *i, int k);

struct op_info {
    const char *name;
    unsigned inplace;               /* bit i: out[0] may reuse the bytes of in[i] */
    gradient_rule_fn *gradient;     /* NULL: none */
    unsigned to;                    /* bit i: in[i] has a derivative */
    op_flops_fn *flops;             /* NULL: no counted FLOPs */
    op_bytes_fn *bytes;             /* NULL: none */
    enum recompute_class recompute; /* for ops in a forward segment */
    unsigned traits;                /* TRAIT_* */
    enum optimizer_stage stage;
    op_time_fn *time; /* NULL: no output has a time dim */
};

const struct op_info *op_info(int op); /* 0 <= op < PROGRAM_OPS */

/* cost.c */
op_flops_fn flops_linear, flops_linear_dx, flops_linear_dw, flops_matmul, flops_grouped_linear, flops_grouped_linear_dx,
    flops_grouped_linear_dw, flops_attention, flops_attention_grad, flops_ring_attention, flops_ring_attention_grad, flops_linear_xent,
    flops_linear_xent_grad, flops_conv2d, flops_conv2d_dx, flops_conv2d_dw;
op_bytes_fn bytes_operands, bytes_embedding, bytes_embedding_dw, bytes_cache_write;

/* time.c */
op_time_fn time_first, time_all, time_suffix, time_concat, time_matmul, time_sum, time_rows, time_attention, time_view;

#endif
