/* stub_nccl_values.c - the values of the names of NCCL's API, compiled against the stub's header and, where it is installed, against
 * NCCL's: they must be these in both. */
#include <nccl.h>
#include <stddef.h>

_Static_assert(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2 && ncclInternalError == 3, "results");
_Static_assert(ncclInvalidArgument == 4 && ncclInvalidUsage == 5 && ncclRemoteError == 6 && ncclInProgress == 7, "results");
_Static_assert(ncclSum == 0 && ncclProd == 1 && ncclMax == 2 && ncclMin == 3 && ncclAvg == 4, "operators");
_Static_assert(ncclInt8 == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclUint32 == 3 && ncclInt64 == 4 && ncclUint64 == 5, "types");
_Static_assert(ncclFloat16 == 6 && ncclFloat32 == 7 && ncclFloat64 == 8 && ncclBfloat16 == 9, "types");
_Static_assert(sizeof(ncclUniqueId) == NCCL_UNIQUE_ID_BYTES && NCCL_UNIQUE_ID_BYTES == 128, "ids");
_Static_assert(NCCL_VERSION(2, 8, 4) == 2804 && NCCL_VERSION(2, 28, 9) == 22809, "versions");
_Static_assert(offsetof(ncclConfig_t, blocking) == 16 && offsetof(ncclConfig_t, maxCTAs) == 28, "the config");
