/* stub_cublaslt_values.c - the values of cuBLASLt's names, compiled against the stub's header and, where it is installed, against NVIDIA's:
 * they must be these in both. */
#include <cublasLt.h>

_Static_assert(CUBLAS_STATUS_SUCCESS == 0 && CUBLAS_STATUS_NOT_INITIALIZED == 1 && CUBLAS_STATUS_ALLOC_FAILED == 3, "statuses");
_Static_assert(CUBLAS_STATUS_INVALID_VALUE == 7 && CUBLAS_STATUS_EXECUTION_FAILED == 13 && CUBLAS_STATUS_NOT_SUPPORTED == 15, "statuses");
_Static_assert(CUBLAS_OP_N == 0 && CUBLAS_OP_T == 1 && CUBLAS_COMPUTE_32F == 68 && CUBLAS_COMPUTE_32F_FAST_TF32 == 77, "operations");
_Static_assert(CUDA_R_32F == 0 && CUDA_R_16F == 2 && CUDA_R_16BF == 14, "types");
_Static_assert(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT == 5 && CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET == 6, "layouts");
_Static_assert(CUBLASLT_MATMUL_DESC_TRANSA == 3 && CUBLASLT_MATMUL_DESC_TRANSB == 4, "matmuls");
_Static_assert(CUBLASLT_MATMUL_DESC_EPILOGUE == 7 && CUBLASLT_MATMUL_DESC_BIAS_POINTER == 8, "matmuls");
_Static_assert(CUBLASLT_EPILOGUE_DEFAULT == 1 && CUBLASLT_EPILOGUE_BIAS == 4, "epilogues");
_Static_assert(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER == 11 && CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD == 12, "matmuls");
_Static_assert(CUBLASLT_EPILOGUE_GELU == 32 && CUBLASLT_EPILOGUE_GELU_BIAS == 36 && CUBLASLT_EPILOGUE_GELU_AUX == 160, "epilogues");
_Static_assert(CUBLASLT_EPILOGUE_GELU_AUX_BIAS == 164 && CUBLASLT_EPILOGUE_BGRADB == 512, "epilogues");
_Static_assert(CUBLASLT_REDUCTION_SCHEME_NONE == 0 && CUBLASLT_REDUCTION_SCHEME_INPLACE == 1, "reductions");
_Static_assert(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE == 2 && CUBLASLT_REDUCTION_SCHEME_MASK == 7, "reductions");
_Static_assert(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES == 1 && CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK == 3, "preferences");
_Static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES == 5 && CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES == 6, "preferences");
_Static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES == 7 && CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES == 8, "preferences");
_Static_assert(sizeof(cublasLtMatmulAlgo_t) == 64 && sizeof(cublasLtMatmulHeuristicResult_t) == 96, "structs");
