/* tensor.c - storages and the tensors that view them.
 *
 * A storage owns one block of a device's memory and is freed with its last tensor. A tensor that reaches
 * outside its storage cannot be made, so no later access is checked.
 */
#include "lockstep/tensor.h"

#include <stdatomic.h>
#include <stdbool.h>
#include "base/base.h"
#include "base/mem.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "tensor/tensor_over.h"

struct storage {
    const struct device *device;
    char *data;
    size_t bytes;
    bool foreign;    /* data belongs to the caller */
    atomic_int refs; /* tensors that view it */
};

struct ls_tensor {
    struct storage *storage;
    atomic_int refs;
    ls_dtype dtype;
    int ndim;
    size_t offset; /* bytes from the storage's start to the first element */
    size_t size[LS_DIMS];
    ptrdiff_t stride[LS_DIMS];
};

static const enum mem_category categories[] = {
    [LS_PARAMETERS] = MEM_PARAMETERS,   [LS_GRADIENTS] = MEM_GRADIENTS,         [LS_OPTIMIZER] = MEM_OPTIMIZER,
    [LS_ACTIVATIONS] = MEM_ACTIVATIONS, [LS_COMMUNICATION] = MEM_COMMUNICATION, [LS_OTHER] = MEM_OTHER,
};

/* data NULL: a fresh zeroed block of the device. */
static ls_status storage_new(const struct device *device, enum mem_category category, size_t bytes, void *data, struct storage **out)
{
    struct storage *s = mem_zalloc(MEM_OTHER, sizeof *s);

    if (!s) return LS_ENOMEM;
    s->foreign = data != NULL;
    s->data = data ? data : device_alloc_zeroed(device, category, bytes);
    if (!s->data) {
        mem_free(s);
        return device_no_memory(device);
    }
    s->device = device;
    s->bytes = bytes;
    atomic_init(&s->refs, 1);
    *out = s;
    return LS_OK;
}

static void storage_release(struct storage *s)
{
    if (atomic_fetch_sub(&s->refs, 1) > 1) return;
    if (!s->foreign) s->device->free(s->data);
    mem_free(s);
}

/* *bytes = what a contiguous tensor of these sizes takes. */
static ls_status tensor_bytes_of(ls_dtype type, int ndim, const size_t *size, size_t *bytes)
{
    size_t n = ls_dtype_bytes(type);

    for (int d = 0; d < ndim; d++)
        if (!size_mul(n, size[d], &n) || n > PTRDIFF_MAX)
            return ls_fail(LS_EINVAL, "tensor: dim %d of size %zu makes it larger than any memory", d, size[d]);
    *bytes = n;
    return LS_OK;
}

static ls_status check_ndim(int ndim)
{
    if (ndim < 0 || ndim > LS_DIMS) return ls_fail(LS_EINVAL, "tensor: %d dims; 0 to %d are possible", ndim, LS_DIMS);
    return LS_OK;
}

/* A contiguous tensor with a storage of its own, over data if that is given. */
static ls_status tensor_make(const struct device *device, ls_dtype type, int ndim, const size_t *size, enum mem_category category,
                             void *data, ls_tensor **out)
{
    size_t bytes = 0, stride = 1;
    ls_tensor *t;

    LS_TRY(check_ndim(ndim));
    LS_TRY(tensor_bytes_of(type, ndim, size, &bytes));
    t = mem_zalloc(MEM_OTHER, sizeof *t);
    if (!t) return LS_ENOMEM;
    ls_status st = storage_new(device, category, bytes, data, &t->storage);
    if (st < 0) {
        mem_free(t);
        return st;
    }
    atomic_init(&t->refs, 1);
    t->dtype = type;
    t->ndim = ndim;
    for (int d = ndim - 1; d >= 0; d--) {
        t->size[d] = size[d];
        t->stride[d] = (ptrdiff_t)stride;
        stride *= size[d] ? size[d] : 1;
    }
    *out = t;
    return LS_OK;
}

ls_status ls_tensor_new(const char *device, ls_dtype type, int ndim, const size_t *size, ls_memory category, ls_tensor **out)
{
    const struct device *where = device_find(device);

    if (!where) return LS_EUNSUPPORTED;
    if ((unsigned)type >= LS_DTYPES || (unsigned)category >= COUNT_OF(categories))
        return ls_fail(LS_EINVAL, "tensor: element type %d or memory category %d does not exist", (int)type, (int)category);
    return tensor_make(where, type, ndim, size, categories[category], NULL, out);
}

ls_status tensor_over(const struct device *device, void *data, ls_dtype type, int ndim, const size_t *size, ls_tensor **out)
{
    return tensor_make(device, type, ndim, size, MEM_OTHER, data, out);
}

/* *low and *high: the elements that a view reaches, from its first; false when they fit no ptrdiff_t.
 * A view without elements reaches none, and both are 0. */
static bool tensor_reach(int ndim, const size_t *size, const ptrdiff_t *stride, ptrdiff_t *low, ptrdiff_t *high)
{
    bool fits = true;

    *low = *high = 0;
    for (int d = 0; d < ndim; d++)
        if (size[d] == 0) return true;
    for (int d = 0; d < ndim; d++) {
        ptrdiff_t far, *end = stride[d] < 0 ? low : high;

        fits = fits && !__builtin_mul_overflow(size[d] - 1, stride[d], &far) && !__builtin_add_overflow(*end, far, end);
    }
    return fits;
}

ls_status ls_tensor_view(ls_tensor *t, int ndim, const size_t *size, const ptrdiff_t *stride, ptrdiff_t offset, ls_tensor **out)
{
    ptrdiff_t esize = (ptrdiff_t)ls_dtype_bytes(t->dtype), low, high, first;
    ptrdiff_t room = (ptrdiff_t)(t->storage->bytes / (size_t)esize), at = (ptrdiff_t)t->offset / esize;
    size_t bytes;
    bool empty = false;
    ls_tensor *v;

    LS_TRY(check_ndim(ndim));
    LS_TRY(tensor_bytes_of(t->dtype, ndim, size, &bytes));
    for (int d = 0; d < ndim; d++) empty |= size[d] == 0;
    bool inside = tensor_reach(ndim, size, stride, &low, &high) && !__builtin_add_overflow(at, offset, &first) &&
                  !__builtin_add_overflow(low, first, &low) && !__builtin_add_overflow(high, first, &high);
    if (!inside || low < 0 || (empty ? high > room : high >= room))
        return ls_fail(LS_EINVAL,
                       "tensor: a view of %d dims at offset %td leaves its storage of %td elements, in which the tensor starts at %td",
                       ndim, offset, room, at);
    v = mem_zalloc(MEM_OTHER, sizeof *v);
    if (!v) return LS_ENOMEM;
    atomic_init(&v->refs, 1);
    v->storage = t->storage;
    v->dtype = t->dtype;
    v->ndim = ndim;
    v->offset = (size_t)(first * esize);
    for (int d = 0; d < ndim; d++) {
        v->size[d] = size[d];
        v->stride[d] = stride[d];
    }
    atomic_fetch_add(&t->storage->refs, 1);
    *out = v;
    return LS_OK;
}

ls_tensor *ls_tensor_retain(ls_tensor *t)
{
    atomic_fetch_add(&t->refs, 1);
    return t;
}

void ls_tensor_release(ls_tensor **t)
{
    ls_tensor *dead = t ? *t : NULL;

    if (!dead) return;
    *t = NULL;
    if (atomic_fetch_sub(&dead->refs, 1) > 1) return;
    storage_release(dead->storage);
    mem_free(dead);
}

struct view view_of_tensor(const ls_tensor *t)
{
    struct view v = { .data = ls_tensor_data(t), .dtype = ls_tensor_dtype(t), .ndim = ls_tensor_ndim(t) };

    for (int d = 0; d < v.ndim; d++) {
        v.size[d] = ls_tensor_size(t, d);
        v.stride[d] = ls_tensor_stride(t, d);
    }
    return v;
}

const struct device *tensor_device(const ls_tensor *t) { return t->storage->device; }

ls_dtype ls_tensor_dtype(const ls_tensor *t) { return t->dtype; }
int ls_tensor_ndim(const ls_tensor *t) { return t->ndim; }
void *ls_tensor_data(const ls_tensor *t) { return t->storage->data + t->offset; }

size_t ls_tensor_size(const ls_tensor *t, int dim)
{
    ASSERT(dim >= 0 && dim < t->ndim);
    return t->size[dim];
}

ptrdiff_t ls_tensor_stride(const ls_tensor *t, int dim)
{
    ASSERT(dim >= 0 && dim < t->ndim);
    return t->stride[dim];
}

size_t ls_tensor_count(const ls_tensor *t)
{
    struct view v = view_of_tensor(t);

    return view_count(&v);
}

int ls_tensor_is_contiguous(const ls_tensor *t)
{
    struct view v = view_of_tensor(t);

    return view_is_contiguous(&v);
}

/* Between a view that the processor can reach and a contiguous buffer of another type. */
static void tensor_exchange(const struct view *v, char *host, ls_dtype type, size_t count, bool write)
{
    size_t run = view_is_contiguous(v) ? count : 1;
    size_t vsize = ls_dtype_bytes(v->dtype), hsize = ls_dtype_bytes(type);

    for (size_t i = 0; i < count; i += run) {
        char *mine = (char *)v->data + (run == 1 ? view_offset(v, i) * (ptrdiff_t)vsize : 0);

        if (write)
            ls_convert(mine, v->dtype, host + i * hsize, type, run);
        else
            ls_convert(host + i * hsize, type, mine, v->dtype, run);
    }
}

/* Device memory that the processor cannot reach passes through a host copy of the bytes that the tensor spans. */
static ls_status transfer_staged(const ls_tensor *t, const struct view *v, char *host, ls_dtype type, size_t count, bool write)
{
    const struct device *device = t->storage->device;
    ptrdiff_t low, high, esize = (ptrdiff_t)ls_dtype_bytes(t->dtype);
    struct view staged = *v;

    view_reach(v, &low, &high);
    char *first = (char *)v->data + low * esize;
    size_t span = (size_t)((high - low + 1) * esize);
    char *stage = mem_alloc(MEM_OTHER, span);
    if (!stage) return LS_ENOMEM;
    staged.data = stage - low * esize;
    ls_status st = write && view_is_contiguous(v) ? LS_OK : device_read(device, stage, first, span);
    if (st == LS_OK) tensor_exchange(&staged, host, type, count, write);
    if (st == LS_OK && write) st = device_write(device, first, stage, span);
    mem_free(stage);
    return st;
}

static ls_status transfer(const ls_tensor *t, char *host, ls_dtype type, size_t count, bool write)
{
    struct view v = view_of_tensor(t);

    if ((unsigned)type >= LS_DTYPES) return ls_fail(LS_EINVAL, "tensor: element type %d does not exist", (int)type);
    if (count != view_count(&v)) return ls_fail(LS_EINVAL, "tensor: %zu elements to copy, the tensor has %zu", count, view_count(&v));
    if (count == 0) return LS_OK;
    if (!t->storage->device->host_visible) return transfer_staged(t, &v, host, type, count, write);
    tensor_exchange(&v, host, type, count, write);
    return LS_OK;
}

ls_status ls_tensor_read(const ls_tensor *t, void *host, ls_dtype type, size_t count) { return transfer(t, host, type, count, false); }

ls_status ls_tensor_write(ls_tensor *t, const void *host, ls_dtype type, size_t count)
{
    return transfer(t, (char *)host, type, count, true);
}
