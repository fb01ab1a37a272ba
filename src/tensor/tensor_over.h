/* tensor_over.h - tensors and devices: over memory that the caller owns, and which device a tensor is on. */
#ifndef LS_TENSOR_TENSOR_OVER_H
#define LS_TENSOR_TENSOR_OVER_H

#include "device/device.h"
#include "lockstep/tensor.h"

/* A contiguous tensor over data on `device`, which must outlive it and all views of it. */
ls_status tensor_over(const struct device *device, void *data, ls_dtype type, int ndim, const size_t *size, ls_tensor **out);
const struct device *tensor_device(const ls_tensor *t);

#endif
