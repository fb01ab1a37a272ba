/* helper_onednn.h - calls of linear layers and their gradients for tests of oneDNN's rows. */
#ifndef LS_TESTS_HELPER_ONEDNN_H
#define LS_TESTS_HELPER_ONEDNN_H

#include "helper_kernels.h"

struct gemm_case { enum op op; size_t R, K, N; ls_dtype type, out; bool bias; };

/* A view of a block of its own, filled with random values between -1 and 1. */
struct view onednn_filled(struct block *b, ls_dtype type, int ndim, const size_t *size, int layout, uint64_t stream);

/* A call with operands filled in the same way. */
void onednn_open(struct kernel_case *c, const struct gemm_case *p);
void onednn_close(struct kernel_case *c);
const struct kernel *onednn_row(const struct call *c); /* the op's row of oneDNN; NULL: it does not accept the call */

#endif
