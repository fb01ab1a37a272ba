/* backing_queue.c - what is offloaded between a unit's file and a device with streams: operations of the copy stream, whose file access
 * the store's worker thread does, so that neither the host nor another stream waits for the disk.
 *
 * A state is transferred in chunks: what a device sets aside for an operation that runs on the processor stays small.
 */
#include "runtime/store_parts.h"

#include "base/base.h"
#include "base/worker.h"

enum { CHUNK = 8 << 20 };

/* A chunk of a file, from or to memory. The device keeps it in place from its first run to its end. */
struct file_chunk {
    struct worker *worker;
    const struct flat_unit *g;
    off_t at;
    void *data; /* run gets an address at which it may be touched */
    size_t bytes;
    bool save, given;
    struct worker_task task;
};

static ls_status chunk_move(void *ctx)
{
    struct file_chunk *x = ctx;

    return x->save ? backing_write(x->g, x->at, x->data, x->bytes, &x->task.progress)
                   : backing_read(x->g, x->at, x->data, x->bytes, &x->task.progress);
}

static ls_status chunk_run(void *args)
{
    struct file_chunk *x = args;

    if (!x->given) {
        x->given = true;
        x->task = (struct worker_task){ .fn = chunk_move, .ctx = x };
        worker_give(x->worker, &x->task);
    }
    return worker_result(&x->task);
}

ls_status backing_enqueue(const ls_store *s, struct device_stream *stream, const struct flat_unit *g, const struct flat *f, void *data,
                          bool save)
{
    for (size_t at = 0; at < f->bytes; at += CHUNK) {
        struct file_chunk x = { .worker = s->worker,
                                .g = g,
                                .at = f->at + (off_t)at,
                                .data = (char *)data + at,
                                .bytes = MIN(f->bytes - at, (size_t)CHUNK),
                                .save = save };
        struct device_operation o = { .name = save ? "save" : "load",
                                      .run = chunk_run,
                                      .args = &x,
                                      .bytes = sizeof x,
                                      .pointer = { offsetof(struct file_chunk, data) },
                                      .pointers = 1,
                                      .access = { { .data = x.data, .bytes = x.bytes, .write = !save, .overwrites = true } },
                                      .accesses = 1 };

        LS_TRY(s->where->enqueue(stream, &o));
    }
    return LS_OK;
}
