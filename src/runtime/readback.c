/* readback.c - see readback.h. */
#include "runtime/readback.h"

#include "base/mem.h"
#include "device/device.h"
#include "runtime/store.h"

/* part[count] of any type is added to sum[count]. */
static void add_part(double *sum, const void *part, ls_dtype type, size_t count)
{
    for (size_t e = 0; e < count; e++) {
        double x;

        ls_convert(&x, LS_F64, (const char *)part + e * ls_dtype_bytes(type), type, 1);
        sum[e] += x;
    }
}

static ls_status readback_open(struct readback *r, const struct device *d)
{
    ASSERT(!r->device || r->device == d);
    if (r->device) return LS_OK;
    LS_TRY(d->event_new(&r->copied));
    r->device = d;
    return LS_OK;
}

/* The next read, with room for `bytes`; its buffer stays for later steps. */
static ls_status pending_take(struct readback *r, size_t bytes, struct pending_read **out)
{
    if (r->n == READBACK_MOST) LS_TRY(readback_finish(r));
    struct pending_read *x = &r->read[r->n];
    if (x->room < bytes) {
        mem_free(x->host);
        x->room = 0;
        x->host = mem_alloc(MEM_OTHER, bytes);
        if (!x->host) return LS_ENOMEM;
        x->room = bytes;
    }
    *out = x;
    return LS_OK;
}

ls_status readback_add(struct readback *r, ls_program *p, const char *name, double *sum, size_t count)
{
    const struct device *d = store_device(p->store);
    struct pending_read *x;
    struct device_stream *s;
    int value;

    LS_TRY(transfer_find(p, name, count, &value));
    const struct value *v = &p->values[value];
    if (d->host_visible) {
        add_part(sum, program_data(p, (ls_value){ value }), v->dtype, count);
        return LS_OK;
    }
    LS_TRY(readback_open(r, d));
    LS_TRY(pending_take(r, count * ls_dtype_bytes(v->dtype), &x));
    LS_TRY(transfer_out(p, value, x->host, count, &s));
    r->n++;
    *x = (struct pending_read){ x->host, x->room, count, v->dtype, sum };
    return d->event_record(r->copied, s);
}

ls_status readback_finish(struct readback *r)
{
    int n = r->n;

    r->n = 0;
    if (!n) return LS_OK;
    LS_TRY(r->device->event_sync(r->copied));
    for (int k = 0; k < n; k++) add_part(r->read[k].sum, r->read[k].host, r->read[k].type, r->read[k].count);
    return LS_OK;
}

void readback_drop(struct readback *r)
{
    if (r->n) r->device->event_sync(r->copied); /* the failure is known already */
    r->n = 0;
}

void readback_close(struct readback *r)
{
    readback_drop(r);
    for (int k = 0; k < READBACK_MOST; k++) mem_free(r->read[k].host);
    if (r->device) r->device->event_free(r->copied);
    *r = (struct readback){ 0 };
}
