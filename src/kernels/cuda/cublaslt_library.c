/* cublaslt_library.c - see cublaslt.h. */
#include "kernels/cuda/cublaslt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/base.h"
#include "base/log.h"
#include "device/cuda/cuda.h"

#define CUBLASLT_FILE "libcublasLt.so.13" /* its number is that of the CUDA version */

enum { PATH_ROOM = 4200 };

struct cublaslt_functions cublaslt;

static void *library_open(void)
{
    const char *home = getenv("CUDA_HOME");
    char path[PATH_ROOM];
    void *library = dlopen(CUBLASLT_FILE, RTLD_NOW | RTLD_LOCAL);

    if (!library && home) {
        snprintf(path, sizeof path, "%.4000s/lib64/%s", home, CUBLASLT_FILE);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return library ? library : dlopen("/usr/local/cuda/lib64/" CUBLASLT_FILE, RTLD_NOW | RTLD_LOCAL);
}

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
    void *library = library_open();
    const char *lacks = library ? library_resolve(library) : NULL;

    if (library && !lacks) return true;
    log_line(LOG_WARN, "cuda: %s %s%s; matmuls run on lockstep's own kernels, which are slower", CUBLASLT_FILE,
             library ? "lacks " : "was not found: not by the loader, in CUDA_HOME/lib64 or in /usr/local/cuda/lib64", library ? lacks : "");
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
