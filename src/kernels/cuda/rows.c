/* rows.c - the entry of the CUDA module: the device's row with the rows of the kernel table that come with it. See device/cuda/module.h. */
#include "device/cuda/cuda.h"
#include "device/cuda/module.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/sums.h"

#define CUDA_PART_ROW(name) kernels_cuda_##name,
static const struct kernel *const rows_parts[] = { CUDA_PARTS(CUDA_PART_ROW) CUDA_LIBRARY_PARTS(CUDA_PART_ROW) NULL };
#undef CUDA_PART_ROW

static const struct kernel_rows rows_of_module = { KERNEL_ROWS_SHAPE, rows_parts };

__attribute__((visibility("default"))) const struct device *lockstep_cuda_row(const struct cuda_host *h);

const struct device *lockstep_cuda_row(const struct cuda_host *h)
{
    static struct device row;

    if (!cuda_module_open(h, &cuda_ipc_sum)) return NULL;
    row = cuda_row;
    row.rows = &rows_of_module;
    return &row;
}
