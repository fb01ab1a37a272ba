/* helper_device_calls.c - see helper_device_calls.h. */
#include "helper_device_calls.h"

#include <stdlib.h>
#include <string.h>
#include "base/base.h"

enum { SIDE = 256, RANGES = 2 * CALL_OPERANDS + 1 };

const struct device *device_calls_on;

/* Bytes of the host, with a copy on the device between SIDE bytes of 0xa5; the copy is aligned to 64 bytes, or as the bytes of the host. */
struct range { char *begin, *end, *base; };
struct ranges { struct range at[RANGES]; int n; };
static bool ranges_aligned;

static void ranges_add(struct ranges *r, char *begin, char *end)
{
    for (int i = 0; i < r->n; i++)
        if (begin < r->at[i].end && r->at[i].begin < end) {  /* one range for both */
            struct range old = r->at[i];

            r->at[i] = r->at[--r->n];
            ranges_add(r, old.begin < begin ? old.begin : begin, old.end > end ? old.end : end);
            return;
        }
    r->at[r->n++] = (struct range){ begin, end, NULL };
}

static void ranges_add_view(struct ranges *r, const struct view *v)
{
    ptrdiff_t low, high, esize = (ptrdiff_t)ls_dtype_bytes(v->dtype);

    if (view_given(v) && view_reach(v, &low, &high))
        ranges_add(r, (char *)v->data + low * esize, (char *)v->data + (high + 1) * esize);
}

static size_t range_shift(const struct range *r) { return SIDE + (ranges_aligned ? 0 : (uintptr_t)r->begin % 64); }

void device_calls_ok(ls_status st, const char *name)
{
    if (st < 0)
        fail_msg("%s: %s", name, ls_errmsg());
}

static void range_upload(struct range *r, const char *name)
{
    size_t bytes = (size_t)(r->end - r->begin);

    r->base = device_calls_on->alloc(MEM_OTHER, range_shift(r) + bytes + SIDE);
    if (!r->base)
        fail_msg("%s: %s", name, ls_errmsg());
    device_calls_ok(device_calls_on->fill(NULL, r->base, 0xa5, range_shift(r) + bytes + SIDE), name);
    device_calls_ok(device_calls_on->copy_in(NULL, r->base + range_shift(r), r->begin, bytes), name);
}

static void check_side(const char *host, size_t bytes, const char *where, const char *name)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)host[i] != 0xa5)
            fail_msg("%s: wrote byte %zu of the %zu %s an operand", name, i, bytes, where);
}

static void range_download(struct range *r, const char *name)
{
    size_t bytes = (size_t)(r->end - r->begin), before = range_shift(r);
    char *all = malloc(before + bytes + SIDE);

    assert_non_null(all);
    device_calls_ok(device_calls_on->copy_out(NULL, all, r->base, before + bytes + SIDE), name);
    device_calls_ok(device_calls_on->stream_sync(NULL), name);
    check_side(all, before, "before", name);
    check_side(all + before + bytes, SIDE, "after", name);
    memcpy(r->begin, all + before, bytes);
    free(all);
    device_calls_on->free(r->base);
}

static void *range_find(const struct ranges *r, const void *host)
{
    for (int i = 0; i < r->n; i++)
        if ((const char *)host >= r->at[i].begin && (const char *)host < r->at[i].end)
            return r->at[i].base + range_shift(&r->at[i]) + ((const char *)host - r->at[i].begin);
    return NULL;  /* an operand without elements */
}

void device_calls_run(const struct kernel *k, const struct call *c, size_t scratch, const char *name)
{
    unsigned letters = 0;
    struct ranges r = { .n = 0 };
    struct call there = *c;

    /* For half of the cases, the same ones each time: libraries use other algorithms for such operands. */
    for (const char *at = name; *at; at++) letters += (unsigned char)*at;
    ranges_aligned = k->prepare && letters % 2;
    for (int i = 0; i < c->nin; i++) ranges_add_view(&r, &c->in[i]);
    for (int i = 0; i < c->nout; i++) ranges_add_view(&r, &c->out[i]);
    if (scratch)
        ranges_add(&r, c->scratch, (char *)c->scratch + scratch);
    for (int i = 0; i < r.n; i++) range_upload(&r.at[i], name);
    for (int i = 0; i < c->nin; i++) there.in[i].data = range_find(&r, c->in[i].data);
    for (int i = 0; i < c->nout; i++) there.out[i].data = range_find(&r, c->out[i].data);
    there.scratch = scratch ? range_find(&r, c->scratch) : NULL;
    if (k->prepare && k->prepare(&there) != LS_OK)
        fail_msg("%s: %s: prepare: %s", name, k->name, ls_errmsg());
    device_calls_ok(kernel_launch(device_calls_on, k, &there), name);
    if (k->release)
        k->release(&there);
    for (int i = 0; i < r.n; i++) range_download(&r.at[i], name);
}
