/* cublaslt.h - cuBLASLt's functions, from libcublasLt as it is found when it is first needed; the only file that includes its header.
 *
 *   cublaslt_problem.c   calls of the op list as cuBLASLt's matrices: types, sizes and strides alone
 *   cublaslt_library.c   finds the library and its functions, makes the handle
 *   cublaslt_tune.c      measures algorithms
 *   cublaslt_cache.c     the file of measured algorithms
 *   cublaslt_matmul.c    descriptors, the choice of an algorithm, the call
 *   cublaslt.c           linear layers and batched matmuls: rows of the kernel table
 *   cublaslt_fused.c     a linear layer with its GELU, a weight gradient with its bias gradient: rows of the kernel table
 *   cublaslt_xent.c      the output projection with its cross-entropy: rows of the kernel table
 */
#ifndef LS_KERNELS_CUDA_CUBLASLT_H
#define LS_KERNELS_CUDA_CUBLASLT_H

#include <cublasLt.h>
#include <stdbool.h>
#include "lockstep/status.h"

/* clang-format off */
#define CUBLASLT_FUNCTIONS(F) \
    F(Create) F(GetVersion) F(GetStatusString) F(Matmul) F(MatmulAlgoGetHeuristic) F(MatrixLayoutCreate) F(MatrixLayoutDestroy) \
    F(MatrixLayoutSetAttribute) F(MatmulDescCreate) F(MatmulDescDestroy) F(MatmulDescSetAttribute) F(MatmulPreferenceCreate) \
    F(MatmulPreferenceDestroy) F(MatmulPreferenceSetAttribute) F(MatmulAlgoCheck)
/* clang-format on */

/* cublaslt.Create is cublasLtCreate, and so on. */
struct cublaslt_functions {
#define CUBLASLT_FUNCTION(name) __typeof__(cublasLt##name) *name;
    CUBLASLT_FUNCTIONS(CUBLASLT_FUNCTION)
#undef CUBLASLT_FUNCTION
};
extern struct cublaslt_functions cublaslt;

/* Looks for the library the first time; warns once if it is missing. */
bool cublaslt_found(void);
/* After cublaslt_found(). The handle for this process' GPU, made the first time. */
ls_status cublaslt_handle(cublasLtHandle_t *out);
/* LS_OK, or the device has failed. */
ls_status cublaslt_check(cublasStatus_t s, const char *call);

#endif
