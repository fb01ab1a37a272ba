/* module.h - the interface between the CUDA module and the library that loads it.
 *
 * The module, lockstep_cuda.so, holds the functions of the device (this folder) and its kernels (src/kernels/cuda). ../cuda_load.c loads it
 * when the device "cuda" is asked for. It uses no symbol of the library or the command: a table of functions gives it what it needs, and
 * import.c defines these functions in the module under their usual names. It exports one function, CUDA_MODULE_ENTRY, which is among the
 * kernels (src/kernels/cuda/rows.c): they know the device, but the device does not know them. It gives the device its kernel for sums and
 * adds the rows of the kernel table to the device's row.
 */
#ifndef LS_DEVICE_CUDA_MODULE_H
#define LS_DEVICE_CUDA_MODULE_H

#include "base/log.h"
#include "base/mem.h"
#include "device/collectives.h"
#include "device/device.h"

/* Sizes of the structures that both sides use. */
struct cuda_shape {
    uint32_t size[10];
};

struct cuda_host {
    struct cuda_shape shape; /* CUDA_MODULE_SHAPE of the host */
    ls_status (*fail)(ls_status st, const char *fmt, ...) LS_PRINTF(2, 3);
    const char *(*message)(void);
    void *(*alloc)(enum mem_category c, size_t bytes);
    void *(*resize)(void *p, size_t bytes);
    void (*free)(void *p);
    ls_status (*take)(enum mem_category c, size_t bytes);
    void (*give)(enum mem_category c, size_t bytes);
    ls_status (*take_device)(enum mem_category c, size_t bytes);
    void (*give_device)(enum mem_category c, size_t bytes);
    const char *(*category_name)(enum mem_category c);
    void (*pulse)(void);
    void (*log)(enum log_level level, const char *fmt, ...) LS_PRINTF(2, 3);
    void (*assert_failed)(const char *cond, const char *file, int line);
};

/* The host's differs from the module's if they were compiled from headers in which one of these structures has another size. The kernels
 * have a check of their own: kernel_table_open(). */
#define CUDA_MODULE_SHAPE                                                                                                     \
    {                                                                                                                         \
        {                                                                                                                     \
            sizeof(struct cuda_host), sizeof(struct device), sizeof(struct device_operation), sizeof(struct device_settings), \
                sizeof(struct device_facts), sizeof(struct device_collectives), sizeof(struct device_group_spec),             \
                sizeof(struct device_call), sizeof(struct device_watch), MEM_CATEGORIES                                       \
        }                                                                                                                     \
    }

/* Returns the row of the device; NULL: host and module were built from different headers. */
#define CUDA_MODULE_ENTRY "lockstep_cuda_row"
typedef const struct device *cuda_module_fn(const struct cuda_host *host);

/* In the module, called by its entry. False: host and module were built from different headers. */
struct ipc_sum_kernel;
bool cuda_module_open(const struct cuda_host *h, const struct ipc_sum_kernel *sum);

#endif
