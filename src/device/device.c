/* device.c - the table of devices. */
#include "device/device.h"

#include <stdatomic.h>
#include <string.h>
#include "base/base.h"

#define DEVICE_ADDRESS(name, help) &device_##name,
#define DEVICE_NAME(name, help)    ", " #name

static const struct device *const devices[] = { DEVICE_MAP(DEVICE_ADDRESS) };

/* Row k, or that of its module where that has been loaded. */
static const struct device *_Atomic loaded[COUNT_OF(devices)];

static bool alone;

static const struct device *device_open(size_t k)
{
    const struct device *d = devices[k]->load ? atomic_load(&loaded[k]) : devices[k];

    if (d || !(d = devices[k]->load())) return d;
    if (alone && d->alone) d->alone();
    atomic_store(&loaded[k], d);
    return d;
}

void device_set_alone(void) { alone = true; }

const struct device *device_find(const char *name)
{
    for (size_t k = 0; k < COUNT_OF(devices); k++)
        if (strcmp(devices[k]->name, name) == 0) return device_open(k);
    ls_fail(LS_EUNSUPPORTED, "there is no device '%s'; this build has %s", name, &DEVICE_MAP(DEVICE_NAME)[strlen(", ")]);
    return NULL;
}

const struct device *device_row(int k)
{
    ASSERT(k >= 0 && k < (int)COUNT_OF(devices));
    return devices[k];
}

const struct device *device_automatic(int local_ranks, const char **why)
{
    const struct device *d = device_cuda.built() ? device_find(device_cuda.name) : NULL;
    int processors;

    *why = NULL;
    if (!device_cuda.built()) return &device_cpu;
    if (d && d->count(&processors) == LS_OK) {
        if (processors >= local_ranks) return d;
        ls_fail(LS_EUNSUPPORTED, "%d ranks would share %d GPU%s", local_ranks, processors, processors == 1 ? "" : "s");
    }
    *why = ls_errmsg();
    return &device_cpu;
}

void *device_alloc_zeroed(const struct device *d, enum mem_category c, size_t bytes)
{
    if (d->alloc_zeroed) return d->alloc_zeroed(c, bytes);

    void *p = d->alloc(c, bytes);
    if (p && (d->fill(NULL, p, 0, bytes) < 0 || d->stream_sync(NULL) < 0)) {
        d->free(p);
        return NULL;
    }
    return p;
}

ls_status device_no_memory(const struct device *d)
{
    ls_status st = d->sync();

    return st < 0 ? st : LS_ENOMEM;
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
        if (devices[i]->load ? atomic_load(&loaded[i]) != NULL : !devices[i]->immediate) LS_TRY(device_open(i)->sync());
    return LS_OK;
}
