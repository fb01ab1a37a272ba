/* cudnn_library.c - see cudnn_library.h. */
#include "kernels/cuda/cudnn_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include "base/base.h"
#include "base/log.h"
#include "device/cuda/cuda.h"

#define CUDNN_FILE "libcudnn.so.9"

/* Before 9.15.1, attention over a number of keys that is no multiple of 128 needs a mask for the rest (cudnn-frontend). For some sizes the
 * gradient of later versions needs one, too; cudnn_attention.c does not accept them. */
enum { PATH_ROOM = 400, VERSION_ROOM = 40, CUDNN_OLDEST = 91501 };
#define CUDNN_OLDEST_TEXT "9.15.1"

struct cudnn_functions cudnn;

/* NULL, or the function that the library lacks. */
static const char *cudnn_resolve(void *library)
{
#define CUDNN_RESOLVE(name) \
    if (!(*(void **)&cudnn.name = dlsym(library, "cudnn" #name))) return "cudnn" #name;
    CUDNN_FUNCTIONS(CUDNN_RESOLVE)
#undef CUDNN_RESOLVE
    return NULL;
}

const char *cudnn_version(void)
{
    static char text[VERSION_ROOM];
    size_t v = cudnn.GetVersion();

    snprintf(text, sizeof text, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    return text;
}

static bool cudnn_load(void)
{
    static const char instead[] = "attention and convolutions run on lockstep's own kernels";
    char path[PATH_ROOM];
    void *library = cuda_library_open(CUDNN_FILE, path, sizeof path);
    const char *lacks = library ? cudnn_resolve(library) : NULL, *file = library && path[0] ? path : CUDNN_FILE;

    if (!library || lacks)
        cuda_library_warn(file, lacks, instead);
    else if (cudnn.GetVersion() < CUDNN_OLDEST)
        log_line(LOG_WARN, "cuda: %s is cuDNN %s, but " CUDNN_OLDEST_TEXT " or a later one is needed; %s, which are slower (%s)", file,
                 cudnn_version(), instead, CUDA_LIBRARY_OTHER);
    else
        return true;
    return false;
}

bool cudnn_found(void)
{
    static int found = -1;

    if (cuda.settings.no_cudnn) return false;
    if (found < 0) found = cudnn_load();
    return found;
}

bool cudnn_is_allocation(cudnnStatus_t s)
{
    return s == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED || s == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

ls_status cudnn_check(cudnnStatus_t s, const char *call)
{
    if (s == CUDNN_STATUS_SUCCESS) return LS_OK;
    return cuda_fail(ls_fail(cudnn_is_allocation(s) ? LS_ENOMEM : LS_EPEER, "cuda: GPU %d (%s): cudnn%s: %s", cuda.gpu,
                             cuda.properties.name, call, cudnn.GetErrorString(s)));
}

/* A part of the library is missing, or does not match the others or the driver. */
static bool is_broken(cudnnStatus_t s) { return s / 1000 == 1 || s / 1000 == 3; }

ls_status cudnn_handle(cudnnHandle_t *out)
{
    static cudnnHandle_t handle;
    static cudnnStatus_t status;
    struct device_stream *s;

    LS_TRY(cuda_stream(NULL, &s)); /* there must be a context */
    if (!handle && !is_broken(status)) status = cudnn.Create(&handle);
    if (is_broken(status)) return ls_fail(LS_EUNSUPPORTED, "cudnnCreate: %s", cudnn.GetErrorString(status));
    LS_TRY(cudnn_check(status, "Create"));
    *out = handle;
    return LS_OK;
}
