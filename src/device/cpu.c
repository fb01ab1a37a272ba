/* cpu.c - the processor's own memory as a device. Everything runs at once on the calling thread, so streams and events are null. */
#include "device/device.h"

#include <string.h>

static ls_status cpu_stream_new(const char *name, struct device_stream **out)
{
    (void)name;
    *out = NULL;
    return LS_OK;
}

static void cpu_stream_free(struct device_stream *s) { (void)s; }
static ls_status cpu_stream_sync(struct device_stream *s) { return (void)s, LS_OK; }
static ls_status cpu_sync(void) { return LS_OK; }
static ls_status cpu_event_new(struct device_event **out) { return *out = NULL, LS_OK; }
static void cpu_event_free(struct device_event *e) { (void)e; }
static ls_status cpu_event_at(struct device_event *e, struct device_stream *s) { return (void)e, (void)s, LS_OK; }
static ls_status cpu_event_sync(struct device_event *e) { return (void)e, LS_OK; }

static ls_status cpu_copy(struct device_stream *s, void *dst, const void *src, size_t bytes)
{
    (void)s;
    if (bytes) memcpy(dst, src, bytes);
    return LS_OK;
}

static ls_status cpu_fill(struct device_stream *s, void *dst, int byte, size_t bytes)
{
    (void)s;
    if (bytes) memset(dst, byte, bytes);
    return LS_OK;
}

const struct device device_cpu = {
    .name = "cpu",
    .kernels = "cpu",
    .host_visible = true,
    .immediate = true,
    .comparison = "onednn",
    .alloc = mem_alloc,
    .alloc_zeroed = mem_zalloc,
    .free = mem_free,
    .stream_new = cpu_stream_new,
    .stream_free = cpu_stream_free,
    .stream_sync = cpu_stream_sync,
    .sync = cpu_sync,
    .event_new = cpu_event_new,
    .event_free = cpu_event_free,
    .event_record = cpu_event_at,
    .event_wait = cpu_event_at,
    .event_sync = cpu_event_sync,
    .fill = cpu_fill,
    .copy_in = cpu_copy,
    .copy_out = cpu_copy,
    .copy = cpu_copy,
};
