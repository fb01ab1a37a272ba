/* import.c - the functions of the library that the module uses, under their usual names, and the module's entry. See module.h. */
#include "kernels/cpu/onednn/module.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/base.h"

static const struct onednn_host *onednn_import_host;

ls_status ls_fail(ls_status st, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    return onednn_import_host->fail(st, "%s", line);
}

void *mem_zalloc(enum mem_category c, size_t bytes) { return onednn_import_host->zalloc(c, bytes); }
void mem_free(void *p) { onednn_import_host->free(p); }

void base_assert_failed(const char *cond, const char *file, int line)
{
    onednn_import_host->assert_failed(cond, file, line);
    abort();
}

__attribute__((visibility("default"))) onednn_module_fn lockstep_onednn_functions;

const struct onednn_module *lockstep_onednn_functions(const struct onednn_host *h)
{
    if (h->shape != ONEDNN_MODULE_SHAPE) return NULL;
    onednn_import_host = h;
    return &onednn_module;
}
