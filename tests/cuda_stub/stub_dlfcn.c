/* stub_dlfcn.c - replaces the module's dlopen() and dlsym(), so that it loads the stub's libraries. */
#include <cublasLt.h>
#include <cudnn.h>
#include <nccl.h>
#include <stdbool.h>
#include <string.h>
#include "kernels/cuda/cudnn_attention.h"
#include "stub.h"

int stub_nccl_registered(void);  /* stub_nccl_memory.c */
int stub_nccl_connections(void); /* stub_nccl_peers.c */
void *stub_dlopen(const char *file, int mode);
__attribute__((visibility("default"))) void *stub_dlsym(void *library, const char *name);

#define SYMBOL(name) { #name, (void (*)(void))name }
static const struct {
    const char *name;
    void (*at)(void);
} symbols[] = {
    SYMBOL(cublasLtCreate), SYMBOL(cublasLtGetVersion), SYMBOL(cublasLtGetStatusString), SYMBOL(cublasLtMatmul),
    SYMBOL(cublasLtMatmulAlgoGetHeuristic), SYMBOL(cublasLtMatrixLayoutCreate), SYMBOL(cublasLtMatrixLayoutDestroy),
    SYMBOL(cublasLtMatrixLayoutSetAttribute), SYMBOL(cublasLtMatmulDescCreate), SYMBOL(cublasLtMatmulDescDestroy),
    SYMBOL(cublasLtMatmulDescSetAttribute), SYMBOL(cublasLtMatmulPreferenceCreate), SYMBOL(cublasLtMatmulPreferenceDestroy),
    SYMBOL(cublasLtMatmulPreferenceSetAttribute), SYMBOL(cublasLtMatmulAlgoCheck),
    SYMBOL(cudnnGetVersion), SYMBOL(cudnnGetErrorString), SYMBOL(cudnnCreate), SYMBOL(cudnnSetStream), SYMBOL(cudnnBackendCreateDescriptor),
    SYMBOL(cudnnBackendDestroyDescriptor), SYMBOL(cudnnBackendSetAttribute), SYMBOL(cudnnBackendGetAttribute),
    SYMBOL(cudnnBackendFinalize), SYMBOL(cudnnBackendExecute),
    SYMBOL(ncclGetVersion), SYMBOL(ncclGetErrorString), SYMBOL(ncclGetLastError), SYMBOL(ncclGetUniqueId), SYMBOL(ncclCommInitRankConfig),
    SYMBOL(ncclCommFinalize), SYMBOL(ncclCommDestroy), SYMBOL(ncclCommAbort), SYMBOL(ncclCommGetAsyncError), SYMBOL(ncclAllReduce),
    SYMBOL(ncclAllGather), SYMBOL(ncclReduceScatter), SYMBOL(ncclReduce), SYMBOL(ncclBroadcast), SYMBOL(ncclSend), SYMBOL(ncclRecv),
    SYMBOL(ncclGroupStart), SYMBOL(ncclGroupEnd),
    SYMBOL(ncclMemAlloc), SYMBOL(ncclMemFree), SYMBOL(ncclCommRegister), SYMBOL(ncclCommDeregister),
    SYMBOL(cudaStreamCreateWithFlags), SYMBOL(cudaStreamQuery),
    SYMBOL(cudaFree), SYMBOL(stub_nccl_registered), SYMBOL(stub_nccl_connections), /* for tests that call the stub itself */
};

/* file is found, and its name is this one. */
static bool is_library(const char *file, const char *name)
{
    const char *folder = stub_settings()->library, *slash = strrchr(file, '/');

    if (!folder[0]) return strcmp(file, name) == 0;
    return slash && strncmp(file, folder, strlen(folder)) == 0 && strcmp(slash + 1, name) == 0;
}

void *stub_dlopen(const char *file, int mode)
{
    (void)mode;
    if (stub_settings()->nccl[0] && is_library(file, "libnccl.so.2")) return (void *)symbols;
    if (stub_settings()->cudnn && is_library(file, "libcudnn.so.9")) {
        if (stub_settings()->cudnn_pairs) cudnn_pairs_most = stub_settings()->cudnn_pairs;
        return (void *)symbols;
    }
    return stub_settings()->cublaslt && is_library(file, "libcublasLt.so.13") ? (void *)symbols : NULL;
}

void *stub_dlsym(void *library, const char *name)
{
    void *at = NULL;

    (void)library;
    for (size_t k = 0; k < sizeof symbols / sizeof symbols[0]; k++)
        if (strcmp(symbols[k].name, name) == 0) memcpy(&at, &symbols[k].at, sizeof at);
    return at;
}
