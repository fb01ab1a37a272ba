/* cudnn_driver.c - a libcuda.so.1 for test_cudnn_plans on machines without a GPU: cuDNN compiles kernels for a GPU with given properties,
 * and then needs a driver that loads them. This one accepts everything and runs nothing.
 */
#include <string.h>

enum { SUCCESS = 0, NO_DEVICE = 100, NOT_FOUND = 500, VERSION = 13000 };

/* Functions that are looked up, but never called, or whose results are not used. */
#define TAKEN(F) \
    F(cuCtxGetCurrent) F(cuCtxGetDevice) F(cuCtxGetLimit) F(cuCtxPopCurrent) F(cuCtxPushCurrent) F(cuDeviceGet) F(cuDeviceGetAttribute) \
    F(cuDeviceGetCount) F(cuDevicePrimaryCtxRelease) F(cuDevicePrimaryCtxReset) F(cuDevicePrimaryCtxRetain) F(cuFuncGetAttribute) \
    F(cuFuncSetAttribute) F(cuGetErrorName) F(cuGetErrorString) F(cuKernelGetAttribute) F(cuKernelSetAttribute) \
    F(cuLaunchCooperativeKernel) F(cuLaunchKernel) F(cuLaunchKernelEx) F(cuLibraryUnload) F(cuLinkAddData) F(cuLinkAddData_v2) \
    F(cuLinkAddFile_v2) F(cuLinkComplete) \
    F(cuLinkCreate) F(cuLinkCreate_v2) F(cuLinkDestroy) F(cuMemcpyDtoH_v2) F(cuModuleGetGlobal_v2) F(cuModuleUnload) \
    F(cuOccupancyMaxActiveBlocksPerMultiprocessor) F(cuOccupancyMaxPotentialClusterSize) F(cuStreamGetCtx) F(cuStreamSynchronize) \
    F(cuTensorMapEncodeTiled)
#define TAKEN_DECLARE(name) int name(void);
#define TAKEN_DEFINE(name) int name(void) { return SUCCESS; }
TAKEN(TAKEN_DECLARE)
TAKEN(TAKEN_DEFINE)

/* Functions with results. */
#define GIVEN(F) F(cuLibraryLoadData) F(cuLibraryLoadFromFile) F(cuLibraryGetKernel) F(cuModuleLoadData) F(cuModuleLoadDataEx) \
    F(cuModuleLoadFatBinary) F(cuModuleGetFunction)
static int cudnn_driver_given;
#define GIVEN_DECLARE(name) int name(void **out);
#define GIVEN_DEFINE(name) \
    int name(void **out) \
    { \
        *out = &cudnn_driver_given; \
        return SUCCESS; \
    }
GIVEN(GIVEN_DECLARE)
GIVEN(GIVEN_DEFINE)

int cuDriverGetVersion(int *version);
int cuGetExportTable(const void **table, const void *id);
int cuGetProcAddress(const char *name, void **out, int version, unsigned long long flags);
int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags, int *status);
int cuInit(unsigned flags);

int cuDriverGetVersion(int *version)
{
    *version = VERSION;
    return SUCCESS;
}

int cuGetExportTable(const void **table, const void *id)
{
    (void)id;
    *table = NULL;
    return NOT_FOUND;
}

int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags, int *status)
{
#define ROW(name) { #name, (void (*)(void))name },
    static const struct { const char *name; void (*at)(void); } rows[] = { TAKEN(ROW) GIVEN(ROW) ROW(cuDriverGetVersion)
                                                                           ROW(cuGetExportTable) ROW(cuInit) };

    (void)version, (void)flags;
    *out = NULL;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++)
        if (strcmp(rows[k].name, name) == 0)
            memcpy(out, &rows[k].at, sizeof *out);
    if (status)
        *status = !*out;
    return *out ? SUCCESS : NOT_FOUND;
}

int cuGetProcAddress(const char *name, void **out, int version, unsigned long long flags)
{
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}

/* The runtime, which is linked into cuDNN, then has no GPU either. */
int cuInit(unsigned flags)
{
    (void)flags;
    return NO_DEVICE;
}
