/* device.c - the table of devices. */
#include "device/device.h"

#include <string.h>
#include "base/base.h"
#include "device/check.h"

static const struct device *const devices[] = { &device_cpu, &device_check };

const struct device *device_find(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(devices); i++)
        if (strcmp(devices[i]->name, name) == 0) return devices[i];
    ls_fail(LS_EUNSUPPORTED, "there is no device '%s'; this build has: cpu and, for tests, check", name);
    return NULL;
}

ls_status device_read(const struct device *d, void *host, const void *src, size_t bytes)
{
    LS_TRY(d->sync());
    LS_TRY(d->copy_out(NULL, host, src, bytes));
    return d->stream_sync(NULL);
}

ls_status device_write(const struct device *d, void *dst, const void *host, size_t bytes)
{
    LS_TRY(d->sync());
    LS_TRY(d->copy_in(NULL, dst, host, bytes));
    return d->stream_sync(NULL);
}

ls_status device_settle(void)
{
    for (size_t i = 0; i < COUNT_OF(devices); i++)
        if (!devices[i]->immediate) LS_TRY(devices[i]->sync());
    return LS_OK;
}
