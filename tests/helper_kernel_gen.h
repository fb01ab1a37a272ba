/* helper_kernel_gen.h - functions that build the cases of the kernel table: begin, operands in order, attributes, emit. */
#ifndef LS_TESTS_HELPER_KERNEL_GEN_H
#define LS_TESTS_HELPER_KERNEL_GEN_H

#include "base/base.h"
#include "helper_kernels.h"

struct gen {
    kernel_case_fn *fn;
    void    *ctx;
    size_t   count;    /* cases so far */
    enum op  op;
    ls_dtype type; /* type of the main operands */
    int layout;    /* layout of the following operands */
    struct kernel_case c;
};

#define DIMS(...) (int)COUNT_OF(((size_t[]){ __VA_ARGS__ })), (const size_t[]){ __VA_ARGS__ }

/* The types that cases run through: f32, bf16, f16. */
enum { GEN_TYPES = 3 };
extern const ls_dtype gen_types[GEN_TYPES];

/* Numbers of elements around those of vectors and blocks. */
enum { GEN_COUNTS = 11 };
extern const size_t gen_counts[GEN_COUNTS];
/* Numbers of elements for kernels that sum over everything: the second is more than a test on the emulator runs by default. */
enum { TWO_BLOCKS = 5003, SEVERAL_BLOCKS = 140009 };

void gen_begin(struct gen *g);
/* An input uniform in [low, high), whole numbers for integer types. */
struct view *gen_in(struct gen *g, ls_dtype type, double low, double high, int ndim, const size_t *size);
struct view *gen_out(struct gen *g, ls_dtype type, int ndim, const size_t *size);  /* 0xff: NaN */
void gen_out_add(struct gen *g, ls_dtype type, double low, double high, int ndim, const size_t *size);
void gen_in_absent(struct gen *g);
void gen_out_absent(struct gen *g);
/* Hands the case over under "op type text" and frees its operands. */
void gen_emit(struct gen *g, const char *fmt, ...) LS_PRINTF(2, 3);

void accumulate_cases(struct gen *g);
void add_cases(struct gen *g);
void attention_cases(struct gen *g);
void attention_grad_cases(struct gen *g);
void attention_merge_cases(struct gen *g);
void batch_cases(struct gen *g);
void bias_grad_cases(struct gen *g);
void cache_write_cases(struct gen *g);
void channel_cases(struct gen *g);
void clip_cases(struct gen *g);
void concat_cases(struct gen *g);
void conv_cases(struct gen *g);
void copy_cases(struct gen *g);
void pack_cases(struct gen *g);
void dropout_cases(struct gen *g);
void embedding_cases(struct gen *g);
void fill_cases(struct gen *g);
void grouped_cases(struct gen *g);
void lamb_cases(struct gen *g);
void linear_cases(struct gen *g);
void linear_unary_cases(struct gen *g);
void linear_xent_cases(struct gen *g);
void linear_xent_grad_cases(struct gen *g);
void matmul_cases(struct gen *g);
void mse_grad_cases(struct gen *g);
void mul_cases(struct gen *g);
void norm_cases(struct gen *g);
void norm_dw_cases(struct gen *g);
void norms_cases(struct gen *g);
void pad_cases(struct gen *g);
void pool_cases(struct gen *g);
void reduce_cases(struct gen *g);
void relu_squared_cases(struct gen *g);
void relu_squared_grad_cases(struct gen *g);
void rope_cases(struct gen *g);
void rope_table_cases(struct gen *g);
void route_cases(struct gen *g);
void route_excess_cases(struct gen *g);
void route_grad_cases(struct gen *g);
void route_rows_cases(struct gen *g);
void router_loss_cases(struct gen *g);
void route_load_cases(struct gen *g);
void rows_cases(struct gen *g);
void scale_cases(struct gen *g);
void sign_cases(struct gen *g);
void softmax_cases(struct gen *g);
void swiglu_cases(struct gen *g);
void swiglu_grad_cases(struct gen *g);
void total_cases(struct gen *g);
void unary_cases(struct gen *g);
void unary_grad_cases(struct gen *g);
void update_cases(struct gen *g);
void xent_count_cases(struct gen *g);
void xent_dlogits_cases(struct gen *g);
void xent_part_cases(struct gen *g);
void xent_whole_cases(struct gen *g);

#endif
