/* cpu.c - the processor's own memory as a device, and the table of devices. */
#include "device/device.h"

#include <string.h>
#include "base/base.h"

static void cpu_copy(void *dst, const void *src, size_t bytes) { if (bytes) memcpy(dst, src, bytes); }
static void cpu_fill(void *dst, int byte, size_t bytes) { if (bytes) memset(dst, byte, bytes); }
static void cpu_sync(void) { }

static const struct device devices[] = {
    { "cpu", 1, mem_alloc, mem_free, cpu_copy, cpu_copy, cpu_copy, cpu_fill, cpu_sync },
};

const struct device *device_at(int i)
{
    return i >= 0 && (size_t)i < COUNT_OF(devices) ? &devices[i] : NULL;
}

const struct device *device_find(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(devices); i++)
        if (strcmp(devices[i].name, name) == 0)
            return &devices[i];
    ls_fail(LS_EUNSUPPORTED, "no device '%s'; this build has: cpu", name);
    return NULL;
}
