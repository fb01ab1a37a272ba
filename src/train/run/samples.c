/* samples.c - the samples of a step: each rank reads its own; with parallel.method=dataparallel rank 0 reads those of all ranks and sends
 * each rank its part. A loader per rank whose samples are read here prepares them in the background; drawn samples need none.
 */
#include "train/run/samples.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"

static bool samples_scatters(const struct step *s) { return s->layout.method == LS_METHOD_DATAPARALLEL && s->ranks.size > 1; }

int samples_loaders(const ls_layout *l, int rank)
{
    if (l->method == LS_METHOD_DATAPARALLEL) return rank == 0 ? l->dp : 0;
    return l->method == LS_METHOD_ASYNC && l->dp > 1 && rank == 0 ? 0 : 1;
}

/* A rank's share of the step's samples. */
struct samples_part {
    size_t begin, end;
};

static struct samples_part samples_part_of(const struct step *s, int rank)
{
    struct samples_part p = { s->begin, s->end };

    if (samples_scatters(s)) ranks_block(s->global, rank, s->ranks.size, &p.begin, &p.end);
    return p;
}

/* ---- loaders ---- */

void samples_close(struct samples *f)
{
    for (int i = 0; i < f->loaders; i++) ls_loader_close(&f->loader[i]);
    mem_free(f->loader);
    *f = (struct samples){ 0 };
}

static ls_status samples_open_all(const struct step *s, const ls_sampler *text, uint64_t first, struct samples *f)
{
    int n = samples_loaders(&s->layout, s->ranks.rank);

    f->loader = mem_array(MEM_OTHER, (size_t)MAX(n, 1), sizeof(ls_loader *));
    if (!f->loader) return LS_ENOMEM;
    for (; f->loaders < n; f->loaders++) {
        struct samples_part p = samples_part_of(s, f->loaders);
        ls_batches batches = {
            .batch = s->batch, .first = first, .per_step = s->accumulate, .step = s->global, .offset = p.begin, .rows = p.end - p.begin
        };

        LS_TRY(ls_loader_open(text, &batches, &f->loader[f->loaders]));
    }
    return LS_OK;
}

ls_status samples_start(const struct step *s, const ls_sampler *text, uint64_t first, struct samples *f)
{
    samples_close(f);
    if (s->model.task->drawn) return LS_OK;
    ls_status st = samples_open_all(s, text, first, f);
    if (st != LS_OK) samples_close(f);
    return st;
}

/* ---- one step ---- */

static size_t samples_rows(const struct step *s) { return s->accumulate * s->batch; }

/* Draws the samples of one part into the step's buffers. */
static void samples_draw(struct step *s, struct samples_part p, uint64_t first)
{
    struct samples_part own = { s->begin, s->end };

    s->begin = p.begin;
    s->end = p.end;
    s->model.task->draw(s, first);
    s->begin = own.begin;
    s->end = own.end;
    for (size_t i = (p.end - p.begin) * s->seq_len; i < samples_rows(s) * s->seq_len; i++) s->targets[i] = -1;
}

static ls_status samples_load(struct step *s, ls_loader *loader)
{
    size_t count = s->batch * s->seq_len;
    int32_t *tokens = s->inputs;
    const int32_t *x, *y;

    for (size_t k = 0; k < s->accumulate; k++) {
        LS_TRY(ls_loader_next(loader, &x, &y));
        memcpy(tokens + k * count, x, count * sizeof *x);
        memcpy(s->targets + k * count, y, count * sizeof *y);
    }
    return LS_OK;
}

/* The samples of one rank, which is this one or, on rank 0, another one that they are for. */
static ls_status samples_read(struct step *s, const struct samples *f, int rank, uint64_t first)
{
    if (!s->model.task->drawn) return samples_load(s, f->loader[samples_scatters(s) ? rank : 0]);
    samples_draw(s, samples_part_of(s, rank), first);
    return LS_OK;
}

static ls_status samples_scatter(struct step *s, const struct samples *f, uint64_t first)
{
    size_t inputs = samples_rows(s) * s->feed.values * TASK_VALUE_BYTES, targets = samples_rows(s) * s->seq_len;
    ls_comm *comm = s->ranks.comm;

    if (s->ranks.rank > 0) {
        LS_TRY(ls_recv(comm, s->inputs, inputs, LS_U8, 0, NULL));
        return ls_recv(comm, s->targets, targets, LS_I32, 0, NULL);
    }
    for (int rank = s->ranks.size - 1; rank >= 0; rank--) {
        LS_TRY(samples_read(s, f, rank, first));
        if (rank > 0) LS_TRY(ls_send(comm, s->inputs, inputs, LS_U8, rank, NULL));
        if (rank > 0) LS_TRY(ls_send(comm, s->targets, targets, LS_I32, rank, NULL));
    }
    return LS_OK;
}

ls_status samples_fetch(struct step *s, const struct samples *f, uint64_t first)
{
    return samples_scatters(s) ? samples_scatter(s, f, first) : samples_read(s, f, s->ranks.rank, first);
}

size_t samples_sent(const struct step *s, size_t *calls)
{
    size_t others = samples_scatters(s) && s->ranks.rank == 0 ? (size_t)s->ranks.size - 1 : 0;

    *calls = 2 * others;
    return others * s->accumulate * step_micro_bytes(s);
}
