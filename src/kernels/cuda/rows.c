/* rows.c - the rows of the kernel table that the CUDA module brings along. */
#include "kernels/cuda/parts.h"

#define CUDA_PART_ROW(name) kernels_cuda_##name,
static const struct kernel *const rows_parts[] = { CUDA_PARTS(CUDA_PART_ROW) CUDA_LIBRARY_PARTS(CUDA_PART_ROW) NULL };
#undef CUDA_PART_ROW

extern const struct kernel_rows cuda_kernel_rows;
const struct kernel_rows cuda_kernel_rows = { KERNEL_ROWS_SHAPE, rows_parts };
