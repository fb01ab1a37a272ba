/* helper_device_calls.h - runs calls with host operands on copies of them on a device; for kernel_observer.run. */
#ifndef LS_TESTS_HELPER_DEVICE_CALLS_H
#define LS_TESTS_HELPER_DEVICE_CALLS_H

#include "device/device.h"
#include "helper_kernels.h"

extern const struct device *device_calls_on; /* the device; set before the first call */

/* Fails with the name of the case: a failure of the device shows in whichever call comes next. */
void device_calls_ok(ls_status st, const char *name);

/* Copies the operands and the scratch of c to the device, runs k there and copies them back. The copies have the alignment of their
 * originals up to 64 bytes, and are surrounded by bytes that must not change. */
void device_calls_run(const struct kernel *k, const struct call *c, size_t scratch, const char *name);

#endif
