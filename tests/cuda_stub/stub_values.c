/* stub_values.c - the values of the API's names, compiled against the stub's header and, where it is installed, against NVIDIA's: they must
 * be these in both. */
#include <cuda_runtime_api.h>

_Static_assert(cudaSuccess == 0 && cudaErrorInvalidValue == 1 && cudaErrorMemoryAllocation == 2, "errors");
_Static_assert(cudaErrorInsufficientDriver == 35 && cudaErrorNoDevice == 100 && cudaErrorInvalidDevice == 101, "errors");
_Static_assert(cudaErrorInvalidResourceHandle == 400 && cudaErrorNotReady == 600 && cudaErrorLaunchFailure == 719, "errors");
_Static_assert(cudaMemcpyHostToDevice == 1 && cudaMemcpyDeviceToHost == 2 && cudaMemcpyDeviceToDevice == 3, "directions");
_Static_assert(cudaDriverEntryPointSuccess == 0 && cudaDriverEntryPointSymbolNotFound == 1, "entry points");
_Static_assert(cudaHostAllocDefault == 0 && cudaEventDefault == 0 && cudaEventDisableTiming == 2 && cudaEventWaitDefault == 0, "flags");
_Static_assert(cudaStreamNonBlocking == 1 && cudaEnableDefault == 0, "flags");
_Static_assert(cudaEventWaitExternal == 1 && cudaEventRecordDefault == 0 && cudaEventRecordExternal == 1, "flags");
_Static_assert(cudaErrorStreamCaptureUnsupported == 900 && cudaErrorStreamCaptureInvalidated == 901, "errors");
_Static_assert(cudaErrorGraphExecUpdateFailure == 910, "errors");
_Static_assert(cudaStreamCaptureModeGlobal == 0 && cudaStreamCaptureModeThreadLocal == 1 && cudaStreamCaptureModeRelaxed == 2, "modes");
_Static_assert(cudaHostRegisterMapped == 2 && cudaIpcMemLazyEnablePeerAccess == 1 && cudaDevAttrIpcEventSupport == 125, "flags");
_Static_assert(sizeof(cudaIpcMemHandle_t) == 64, "structs");
_Static_assert(sizeof(cudaUUID_t) == 16 && sizeof(((struct cudaDeviceProp *)0)->name) == 256, "structs");
