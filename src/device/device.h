/* device.h - where bytes live: a table of devices, each a const struct of functions.
 *
 * The processor's memory is row 0. An accelerator is one more row: tensors, programs and checkpoints reach
 * memory through these functions only. Calls are made on the device's current stream and are ordered.
 */
#ifndef LS_DEVICE_DEVICE_H
#define LS_DEVICE_DEVICE_H

#include <stddef.h>
#include "base/mem.h"
#include "lockstep/status.h"

struct device {
    const char *name;                                              /* "cpu" */
    int         host_visible;                                      /* the processor may read and write its pointers */
    void     *(*alloc)(enum mem_category c, size_t bytes);         /* 64-byte aligned; NULL with the message set */
    void      (*free)(void *p);
    void      (*copy_in)(void *dst, const void *host, size_t bytes);
    void      (*copy_out)(void *host, const void *src, size_t bytes);
    void      (*copy)(void *dst, const void *src, size_t bytes);   /* device to device, no overlap */
    void      (*fill)(void *dst, int byte, size_t bytes);
    void      (*sync)(void);                                       /* waits for everything issued */
};

/* By name; NULL with the message set when there is no such device in this build or on this machine. */
const struct device *device_find(const char *name);
const struct device *device_at(int i);  /* NULL past the last row */

#endif
