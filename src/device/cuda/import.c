/* import.c - the functions of the library that the module uses, under their usual names. See module.h. */
#include "device/cuda/module.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/pulse.h"
#include "device/cuda/cuda.h"

static const struct cuda_host *cuda_import_host;

ls_status ls_fail(ls_status st, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    return cuda_import_host->fail(st, "%s", line);
}

void log_line(enum log_level level, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    cuda_import_host->log(level, "%s", line);
}

const char *ls_errmsg(void) { return cuda_import_host->message(); }
void *mem_alloc(enum mem_category c, size_t bytes) { return cuda_import_host->alloc(c, bytes); }
void *mem_resize(void *p, size_t bytes) { return cuda_import_host->resize(p, bytes); }
void mem_free(void *p) { cuda_import_host->free(p); }
ls_status mem_take(enum mem_category c, size_t bytes) { return cuda_import_host->take(c, bytes); }
void mem_give(enum mem_category c, size_t bytes) { cuda_import_host->give(c, bytes); }
ls_status mem_take_device(enum mem_category c, size_t bytes) { return cuda_import_host->take_device(c, bytes); }
void mem_give_device(enum mem_category c, size_t bytes) { cuda_import_host->give_device(c, bytes); }
const char *mem_category_name(enum mem_category c) { return cuda_import_host->category_name(c); }
void pulse(void) { cuda_import_host->pulse(); }

void *mem_zalloc(enum mem_category c, size_t bytes)
{
    void *p = mem_alloc(c, bytes);

    return p ? memset(p, 0, bytes) : NULL;
}

void base_assert_failed(const char *cond, const char *file, int line)
{
    cuda_import_host->assert_failed(cond, file, line);
    abort();
}

bool cuda_module_open(const struct cuda_host *h, const struct ipc_sum_kernel *sum)
{
    static const struct cuda_shape shape = CUDA_MODULE_SHAPE;

    if (memcmp(&h->shape, &shape, sizeof shape) != 0) return false;
    cuda_import_host = h;
    cuda.sum = sum;
    return true;
}
