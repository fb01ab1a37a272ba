/* device.c - the table of devices. */
#include "device/device.h"

#include <string.h>
#include "base/base.h"

#define DEVICE_ADDRESS(name, help) &device_##name,
#define DEVICE_NAME(name, help)    ", " #name

static const struct device *const devices[] = { DEVICE_MAP(DEVICE_ADDRESS) };

const struct device *device_find(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(devices); i++)
        if (strcmp(devices[i]->name, name) == 0) return devices[i];
    ls_fail(LS_EUNSUPPORTED, "there is no device '%s'; this build has %s", name, &DEVICE_MAP(DEVICE_NAME)[strlen(", ")]);
    return NULL;
}

const struct device *device_row(int k)
{
    ASSERT(k >= 0 && k < (int)COUNT_OF(devices));
    return devices[k];
}

const struct device *device_automatic(void) { return &device_cpu; }

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
