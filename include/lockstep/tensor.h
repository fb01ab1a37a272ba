/* tensor.h - typed, strided views of storages.
 *
 * A storage holds the bytes; a tensor is a view of one: type, sizes, strides, offset. Both are reference-counted; views share the storage
 * and keep it alive. Strides are in elements and may be 0 (a dim that repeats).
 *   1. The caller of ls_tensor_new, _view, _retain owns a reference and returns it with ls_tensor_release.
 *   2. Every other ls_tensor pointer is borrowed.
 *   3. Counts are atomic; contents are not locked.
 */
#ifndef LS_TENSOR_H
#define LS_TENSOR_H

#include <stddef.h>
#include <stdint.h>
#include "lockstep/dtype.h"
#include "lockstep/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LS_DIMS 6 /* most dims of a tensor */

typedef struct ls_tensor ls_tensor;

/* Categories of the memory ledger. */
typedef enum ls_memory { LS_PARAMETERS, LS_GRADIENTS, LS_OPTIMIZER, LS_ACTIVATIONS, LS_COMMUNICATION, LS_OTHER } ls_memory;

/* A new contiguous tensor of zeros on the device of that name ("cpu"; option run.device lists them). ndim 0: a scalar. */
ls_status ls_tensor_new(const char *device, ls_dtype type, int ndim, const size_t *size, ls_memory category, ls_tensor **out);
/* A view of t's storage: element (i0, i1, ...) is t's element offset + sum of i * stride, counted from t's first. LS_EINVAL if it would
 * reach outside the storage. */
ls_status ls_tensor_view(ls_tensor *t, int ndim, const size_t *size, const ptrdiff_t *stride, ptrdiff_t offset, ls_tensor **out);
ls_tensor *ls_tensor_retain(ls_tensor *t);
void ls_tensor_release(ls_tensor **t); /* sets *t to NULL; NULL and pointer to NULL are no-ops */

ls_dtype ls_tensor_dtype(const ls_tensor *t);
int ls_tensor_ndim(const ls_tensor *t);
size_t ls_tensor_size(const ls_tensor *t, int dim);
ptrdiff_t ls_tensor_stride(const ls_tensor *t, int dim);
size_t ls_tensor_count(const ls_tensor *t); /* elements */
int ls_tensor_is_contiguous(const ls_tensor *t);
void *ls_tensor_data(const ls_tensor *t); /* first element, on its device */

/* Copies between a tensor and a contiguous host buffer of `count` elements of `type`, converting. count must be
 * the tensor's. */
ls_status ls_tensor_read(const ls_tensor *t, void *host, ls_dtype type, size_t count);
ls_status ls_tensor_write(ls_tensor *t, const void *host, ls_dtype type, size_t count);

#ifdef __cplusplus
}
#endif
#endif
