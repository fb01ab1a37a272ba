/* launch.c - a kernel call on a device: at once, by the kernel itself, or as an operation of a queue. */
#include "kernels/kernel.h"

#include "base/base.h"
#include "device/device.h"

struct launch {
    const struct kernel *kernel;
    struct call call;
};

static ls_status launch_run(void *args)
{
    const struct launch *l = args;

    l->kernel->run(&l->call);
    return LS_OK;
}

/* A pointer of l->call to `bytes` bytes of device memory. */
static void add_pointer(struct device_operation *o, const struct launch *l, void *const *pointer)
{
    ASSERT(o->pointers < DEVICE_POINTERS);
    o->pointer[o->pointers++] = (size_t)((const char *)pointer - (const char *)l);
}

static void add_access(struct device_operation *o, const void *data, size_t bytes, size_t element, bool write)
{
    if (bytes)
        o->access[o->accesses++] = (struct device_access){ .data = data, .bytes = bytes, .write = write, .element = (uint8_t)element };
}

static void add_view(struct device_operation *o, const struct launch *l, const struct view *v, bool write)
{
    ptrdiff_t low, high, esize = (ptrdiff_t)ls_dtype_bytes(v->dtype);

    if (!view_given(v) || !view_reach(v, &low, &high)) return;
    add_pointer(o, l, &v->data);
    add_access(o, (const char *)v->data + low * esize, (size_t)((high - low + 1) * esize), (size_t)esize, write);
}

/* What the call touches. */
static struct device_operation launch_operation(struct launch *l)
{
    struct device_operation o = { .name = op_name(l->call.op), .run = launch_run, .args = l, .bytes = sizeof *l };
    struct call *c = &l->call;

    for (int i = 0; i < c->nin; i++) add_view(&o, l, &c->in[i], false);
    for (int i = 0; i < c->nout; i++) add_view(&o, l, &c->out[i], true);
    if (c->scratch) {
        add_pointer(&o, l, &c->scratch);
        add_access(&o, c->scratch, l->kernel->scratch(c), 0, true);
    }
    return o;
}

ls_status kernel_launch(const struct device *d, const struct kernel *k, const struct call *c)
{
    bool queued = d->enqueue && !k->device; /* a kernel of the cpu on a device with streams */

    if (queued || d->kernel_begin) {
        struct launch l = { k, *c };
        struct device_operation o = launch_operation(&l);

        if (queued) return d->enqueue(c->stream, &o);
        LS_TRY(d->kernel_begin(c->stream, o.name, o.access, o.accesses));
    }
    k->run(c);
    return LS_OK;
}
