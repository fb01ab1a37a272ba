/* store_offload.c - kinds of a unit that are stored in host memory or in a file: copies to and from the memory of programs.
 *
 * On a device with streams a copy is enqueued. Elsewhere copies of host memory are made at once, and those of files by the store's worker,
 * one after another in the order in which they were started, while the caller computes; store_offload_wait() ends one.
 * Gradients that are set to zero are not written: the flat buffer is marked, a load fills the program's memory with zeros, and a save ends
 * the mark.
 */
#include "runtime/store_parts.h"

#include <string.h>
#include "base/base.h"
#include "device/device.h"
#include "ir/ir.h"

static ls_status offloaded(const ls_store *s, const struct unit_state *of, struct flat **out)
{
    *out = flat_unit_find(s->unit[of->unit], (enum store_kind)of->kind, of->name);
    if (*out) return LS_OK;
    if (of->name) return ls_fail(LS_EINVAL, "store: unit %d has no state '%s', or it is not allocated", of->unit, of->name);
    return ls_fail(LS_EINVAL, "store: unit %d has no %s, or they are not allocated", of->unit,
                   of->kind == STORE_GRAD ? "gradients" : "values");
}

static ls_status transfer_run(void *ctx)
{
    struct file_transfer *t = ctx;

    return t->save ? backing_write(t->g, t->at, t->data, t->bytes, &t->task.progress)
                   : backing_read(t->g, t->at, t->data, t->bytes, &t->task.progress);
}

static void transfer_start(const ls_store *s, const struct flat_unit *g, struct flat *f, void *data, bool save)
{
    ASSERT(!f->transfer.open);
    f->transfer = (struct file_transfer){ .g = g, .at = f->at, .data = data, .bytes = f->bytes, .save = save, .open = true };
    f->transfer.task.fn = transfer_run;
    f->transfer.task.ctx = &f->transfer;
    worker_give(s->worker, &f->transfer.task);
}

static ls_status transfer_wait(const ls_store *s, struct flat *f)
{
    if (!f->transfer.open) return LS_OK;
    f->transfer.open = false;
    return worker_wait(s->worker, &f->transfer.task);
}

ls_status store_load(ls_store *s, struct device_stream *stream, const struct unit_state *of, void *to)
{
    struct flat *f;

    LS_TRY(offloaded(s, of, &f));
    if (f->zero) return s->where->fill(stream, to, 0, f->bytes);
    s->moved.loaded += f->bytes;
    if (f->data) return s->where->copy_in(stream, to, f->data, f->bytes);
    if (!s->where->immediate) return backing_enqueue(s, stream, s->unit[of->unit], f, to, false);
    transfer_start(s, s->unit[of->unit], f, to, false);
    return LS_OK;
}

ls_status store_save(ls_store *s, struct device_stream *stream, const struct unit_state *of, const void *from)
{
    struct flat *f;

    LS_TRY(offloaded(s, of, &f));
    f->zero = false;
    s->moved.saved += f->bytes;
    if (f->data) return s->where->copy_out(stream, f->data, from, f->bytes);
    if (!s->where->immediate) return backing_enqueue(s, stream, s->unit[of->unit], f, (void *)(uintptr_t)from, true);
    transfer_start(s, s->unit[of->unit], f, (void *)(uintptr_t)from, true);
    return LS_OK;
}

ls_status store_offload_wait(ls_store *s, const struct unit_state *of)
{
    double began = base_now();
    struct flat *f;

    LS_TRY(offloaded(s, of, &f));
    if (!f->transfer.open) return LS_OK;
    ls_status st = transfer_wait(s, f);
    s->moved.waited += base_now() - began;
    return st;
}

void store_offload_drop(ls_store *s)
{
    for (int g = 0; g < s->units; g++)
        for (int k = 0; k < s->unit[g]->flats; k++) transfer_wait(s, &s->unit[g]->flat[k]);
}

static ls_status write_zeros(const struct flat_unit *g, const struct flat *f)
{
    enum { CHUNK = 1 << 20 };
    ls_status st = LS_OK;

    if (f->data) {
        memset(f->data, 0, f->bytes);
        return LS_OK;
    }
    char *zeros = mem_zalloc(MEM_OTHER, CHUNK);
    if (!zeros) return LS_ENOMEM;
    for (size_t at = 0; at < f->bytes && st == LS_OK; at += CHUNK)
        st = backing_write(g, f->at + (off_t)at, zeros, MIN(f->bytes - at, (size_t)CHUNK), NULL);
    mem_free(zeros);
    return st;
}

ls_status flat_settle(ls_store *s, struct flat_unit *g, struct flat *f)
{
    LS_TRY(transfer_wait(s, f));
    if (!f->zero) return LS_OK;
    LS_TRY(write_zeros(g, f));
    f->zero = false;
    return LS_OK;
}

struct offload_count store_offload_count(const ls_store *s) { return s->moved; }
