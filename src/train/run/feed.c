/* feed.c - writes a micro-batch into a program's inputs. */
#include "train/run/feed.h"

#include <string.h>
#include "base/mem.h"

ls_status feed_open(const struct ranks *ranks, ls_cp_method cp_method, size_t batch, size_t seq_len, size_t values, struct feed *out)
{
    struct feed f = { .batch = batch, .seq_len = seq_len, .values = values };

    f.ranges = ls_cp_ranges(ranks->mesh, cp_method, seq_len, f.begin, f.end);
    for (int k = 0; k < f.ranges; k++) f.local += f.end[k] - f.begin[k];
    if (f.local < seq_len) {
        f.part = mem_array(MEM_OTHER, batch * f.local, sizeof *f.part);
        if (!f.part) return LS_ENOMEM;
    }
    *out = f;
    return LS_OK;
}

size_t feed_bytes(const struct feed *f) { return f->part ? f->batch * f->local * sizeof *f->part : 0; }

void feed_close(struct feed *f)
{
    mem_free(f->part);
    *f = (struct feed){ 0 };
}

const int32_t *feed_shard(const struct feed *f, const int32_t *sequences)
{
    int32_t *at = f->part;

    if (!f->part) return sequences;
    for (size_t row = 0; row < f->batch; row++)
        for (int k = 0; k < f->ranges; k++) {
            memcpy(at, sequences + row * f->seq_len + f->begin[k], (f->end[k] - f->begin[k]) * sizeof *at);
            at += f->end[k] - f->begin[k];
        }
    return f->part;
}

ls_status feed_put(ls_program *p, const char *name, const void *data, ls_dtype type, size_t count)
{
    return ls_program_has(p, name) ? ls_program_write(p, name, data, type, count) : LS_OK;
}

ls_status feed_write(const struct feed *f, const struct task *task, ls_program *p, const struct micro_batch *m)
{
    LS_TRY(task->feed(f, p, m));
    if (ls_program_has(p, "targets")) LS_TRY(feed_put(p, "targets", feed_shard(f, m->targets), LS_I32, f->batch * f->local));
    return feed_put(p, "denominator", &m->denominator, LS_F32, 1);
}
