/* parity_write.c - one side of a comparison: steps made, and what they came to. */
#include "train/parity.h"

#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "train/random_tokens.h"

static const double IGNORED = 0.1;  /* of the targets: ranks then hold unequal counts */

struct side { const struct config *config; struct step step; file_writer *out; /* rank 0's */ float *host; };

static ls_status put(struct side *s, enum parity_kind kind, uint64_t step, const char *name, const void *data,
                     size_t count)
{
    uint32_t head[2] = { kind, (uint32_t)step };
    uint64_t sizes[2] = { strlen(name), count };
    size_t bytes = count * (kind <= PARITY_NORM ? sizeof(double) : sizeof(float));

    if (!s->out) return LS_OK;
    LS_TRY(file_writer_put(s->out, head, sizeof head));
    LS_TRY(file_writer_put(s->out, sizes, sizeof sizes));
    LS_TRY(file_writer_put(s->out, name, strlen(name)));
    return file_writer_put(s->out, data, bytes);
}

static size_t count_of(const ls_store *s, size_t i)
{
    size_t count = 1;

    for (int d = 0; d < ls_store_ndim(s, i); d++) count *= ls_store_size(s, i, d);
    return count;
}

/* Every rank reads, because sharded tensors are gathered. */
static ls_status put_tensors(struct side *s, enum parity_kind kind, uint64_t step)
{
    const ls_store *store = s->step.store;

    for (size_t i = 0; i < ls_store_count(store); i++) {
        const char *what = kind == PARITY_GRADIENT ? "gradient" : ls_store_settings(store).master ? "master" : "parameter";
        size_t count = count_of(store, i);

        if (ls_store_is_frozen(store, i) && kind == PARITY_GRADIENT) continue;
        if (ls_store_is_frozen(store, i)) what = "parameter";
        LS_TRY(ls_store_read(store, i, what, s->host, LS_F32, count));
        LS_TRY(put(s, kind, step, ls_store_name(store, i), s->host, count));
    }
    return LS_OK;
}

static ls_status take_step(struct side *s, uint64_t index)
{
    double loss, norm;
    size_t valid;

    random_tokens(&s->step, index, IGNORED);
    LS_TRY(step_gradients(&s->step, index, &loss, &valid));
    LS_TRY(step_update(&s->step, s->config->optim.lr, index + 1, &norm));
    LS_TRY(put(s, PARITY_LOSS, index, "loss", &loss, 1));
    LS_TRY(put(s, PARITY_NORM, index, "norm", &norm, 1));
    LS_TRY(put_tensors(s, PARITY_GRADIENT, index));
    return put_tensors(s, PARITY_WEIGHT, index);
}

static ls_status make(struct side *s, uint64_t steps)
{
    size_t most = 1;

    for (size_t i = 0; i < ls_store_count(s->step.store); i++)
        if (count_of(s->step.store, i) > most) most = count_of(s->step.store, i);
    s->host = mem_array(MEM_OTHER, most, sizeof *s->host);
    if (!s->host) return LS_ENOMEM;
    for (uint64_t i = 0; i < steps; i++) LS_TRY(take_step(s, i));
    return LS_OK;
}

static ls_status open_side(struct side *s, const struct ranks *ranks, const char *path)
{
    ls_image_model image;
    ls_model model;

    if (!config_image(s->config, &image)) LS_TRY(config_model(s->config, 0, &model));
    LS_TRY(step_open(s->config, &model, ranks, false, &s->step));
    return ranks->rank == 0 ? file_writer_open(path, &s->out) : LS_OK;
}

ls_status parity_write(const struct config *c, const struct ranks *ranks, uint64_t steps, const char *path)
{
    struct side s = { .config = c };
    ls_status st = open_side(&s, ranks, path);

    ranks_be_patient(ranks, false);
    if (st == LS_OK) st = make(&s, steps);
    if (st == LS_OK && s.out) st = file_writer_publish(&s.out);
    file_writer_abandon(&s.out);
    mem_free(s.host);
    step_close(&s.step);
    return st;
}
