/* cudnn_conv.h - convolutions as cuDNN's. They look at types, sizes and strides alone. */
#ifndef LS_KERNELS_CUDA_CUDNN_CONV_H
#define LS_KERNELS_CUDA_CUDNN_CONV_H

#include "kernels/cuda/cudnn_graph.h"

/* The operands of cudnn_plan_run(): images, weight, outputs, or their gradients. */
enum { CONV_X, CONV_W, CONV_Y };

/* False: not for cuDNN. */
bool cudnn_conv_accepts(const struct call *c);
/* NULL: no memory. */
struct cudnn_graph *cudnn_conv_graph(const struct call *c);
size_t cudnn_conv_workspace(const struct call *c); /* the most that a plan may take */
/* The operand of the call; *written: the plan writes it. */
const struct view *cudnn_conv_operand(const struct call *c, int at, bool *written);
/* The type that the plan has all operands in. */
ls_dtype cudnn_conv_type(const struct call *c);

#endif
