/* cublaslt_library.c - see cublaslt.h. */
#include "kernels/cuda/cublaslt.h"

#include <dlfcn.h>
#include "base/base.h"
#include "device/cuda/cuda.h"

#define CUBLASLT_FILE "libcublasLt.so.13" /* its number is that of the CUDA version */

enum { PATH_ROOM = 400 };

struct cublaslt_functions cublaslt;

/* NULL, or the function that the library lacks. */
static const char *library_resolve(void *library)
{
#define CUBLASLT_RESOLVE(name) \
    if (!(*(void **)&cublaslt.name = dlsym(library, "cublasLt" #name))) return "cublasLt" #name;
    CUBLASLT_FUNCTIONS(CUBLASLT_RESOLVE)
#undef CUBLASLT_RESOLVE
    return NULL;
}

static bool library_load(void)
{
    static const char instead[] = "matmuls run on lockstep's own kernels";
    char path[PATH_ROOM];
    void *library = cuda_library_open(CUBLASLT_FILE, path, sizeof path);
    const char *lacks = library ? library_resolve(library) : NULL, *file = library && path[0] ? path : CUBLASLT_FILE;

    if (library && !lacks) return true;
    cuda_library_warn(file, lacks, instead);
    return false;
}

bool cublaslt_found(void)
{
    static int found = -1;

    if (found < 0) found = library_load();
    return found;
}

ls_status cublaslt_check(cublasStatus_t s, const char *call)
{
    if (s == CUBLAS_STATUS_SUCCESS) return LS_OK;
    return cuda_fail(ls_fail(s == CUBLAS_STATUS_ALLOC_FAILED ? LS_ENOMEM : LS_EPEER, "cuda: GPU %d (%s): cublasLt%s: %s", cuda.gpu,
                             cuda.properties.name, call, cublaslt.GetStatusString(s)));
}

ls_status cublaslt_handle(cublasLtHandle_t *out)
{
    static cublasLtHandle_t handle;
    struct device_stream *s;

    LS_TRY(cuda_stream(NULL, &s)); /* there must be a context */
    if (!handle) LS_TRY(cublaslt_check(cublaslt.Create(&handle), "Create"));
    *out = handle;
    return LS_OK;
}
