/* launch.c - kernel calls on a device: at once, by the kernel itself, or as an operation of a queue. */
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

static int add_view(struct device_access *out, const struct view *v, bool write)
{
    ptrdiff_t low, high, esize = (ptrdiff_t)ls_dtype_bytes(v->dtype);

    if (!view_given(v) || !view_reach(v, &low, &high)) return 0;
    *out = (struct device_access){
        .data = (const char *)v->data + low * esize, .bytes = (size_t)((high - low + 1) * esize), .write = write, .element = (uint8_t)esize
    };
    return 1;
}

/* Lists what a call of k touches, at most CALL_ACCESSES; returns how many. */
static int call_accesses(const struct kernel *k, const struct call *c, struct device_access *out)
{
    size_t scratch = c->scratch ? k->scratch(c) : 0;
    int n = 0;

    for (int i = 0; i < c->nin; i++) n += add_view(&out[n], &c->in[i], false);
    for (int i = 0; i < c->nout; i++) n += add_view(&out[n], &c->out[i], true);
    if (scratch) out[n++] = (struct device_access){ .data = c->scratch, .bytes = scratch, .write = true };
    return n;
}

/* A pointer of l->call to device memory. */
static void add_pointer(struct device_operation *o, const struct launch *l, void *const *pointer)
{
    ASSERT(o->pointers < DEVICE_POINTERS);
    o->pointer[o->pointers++] = (size_t)((const char *)pointer - (const char *)l);
}

static struct device_operation launch_operation(struct launch *l)
{
    struct device_operation o = { .name = op_name(l->call.op), .run = launch_run, .args = l, .bytes = sizeof *l };
    struct call *c = &l->call;
    ptrdiff_t low, high;

    _Static_assert(CALL_ACCESSES <= DEVICE_POINTERS, "an operation has room for a call");
    for (int i = 0; i < c->nin; i++)
        if (view_given(&c->in[i]) && view_reach(&c->in[i], &low, &high)) add_pointer(&o, l, &c->in[i].data);
    for (int i = 0; i < c->nout; i++)
        if (view_given(&c->out[i]) && view_reach(&c->out[i], &low, &high)) add_pointer(&o, l, &c->out[i].data);
    if (c->scratch) add_pointer(&o, l, &c->scratch);
    o.accesses = call_accesses(l->kernel, c, o.access);
    return o;
}

ls_status kernel_launch(const struct device *d, const struct kernel *k, const struct call *c)
{
    bool queued = d->enqueue && kernel_is_cpu(k); /* a kernel of the cpu on a device with streams */

    if (queued || d->kernel_begin) {
        struct launch l = { k, *c };
        struct device_operation o = launch_operation(&l);

        if (queued) return d->enqueue(c->stream, &o);
        LS_TRY(d->kernel_begin(c->stream, o.name, o.access, o.accesses));
    }
    k->run(c);
    return LS_OK;
}

ls_status kernel_launch_many(const struct device *d, const struct kernel *k, const struct call *const *c, int n,
                             struct device_access *access)
{
    int accesses = 0;

    for (int i = 0; i < n; i++) accesses += call_accesses(k, c[i], access + accesses);
    if (d->kernel_begin) LS_TRY(d->kernel_begin(c[0]->stream, op_name(c[0]->op), access, accesses));
    k->run_many(c, n);
    return LS_OK;
}
