/* parity_write.c - one side of a comparison: steps made, and what they came to. */
#include "train/parity.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/verify.h"
#include "lockstep/checkpoint.h"
#include "program/store.h"
#include "train/random_tokens.h"

static const double IGNORED = 0.1;  /* of the targets: ranks then hold unequal counts */

struct side {
    const struct config *config;
    const struct parity_run *run;
    struct step  step;
    file_writer *out;    /* rank 0's */
    float       *host;   /* [elements of the largest parameter] */
};

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

/* Every rank reads, because sharded tensors are gathered; what no rank has is no number. */
static ls_status read_whole(struct side *s, size_t i, const char *kind, size_t count)
{
    int64_t have = store_is_here(s->step.store, i);

    LS_TRY(ranks_sum_int(&s->step.ranks, &have, 1));
    if (have) return ls_store_read(s->step.store, i, kind, s->host, LS_F32, count);
    for (size_t k = 0; k < count; k++) s->host[k] = NAN;
    return LS_OK;
}

static ls_status put_tensors(struct side *s, enum parity_kind kind, uint64_t step)
{
    const ls_store *store = s->step.store;

    for (size_t i = 0; i < ls_store_count(store); i++) {
        const char *what = kind == PARITY_GRADIENT ? "gradient" : ls_store_settings(store).master ? "master" : "parameter";
        size_t count = count_of(store, i);

        if (ls_store_is_frozen(store, i) && kind == PARITY_GRADIENT) continue;
        if (ls_store_is_frozen(store, i)) what = "parameter";
        LS_TRY(read_whole(s, i, what, count));
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

/* ---- a checkpoint ---- */

static ls_status put_state(struct side *s, size_t i, const char *kind)
{
    const ls_store *store = s->step.store;
    size_t count = count_of(store, i);
    char *name = file_path("%s/%s", ls_store_name(store, i), kind);
    ls_status st = name ? read_whole(s, i, kind, count) : LS_ENOMEM;

    if (st == LS_OK) st = put(s, PARITY_STATE, 0, name, s->host, count);
    mem_free(name);
    return st;
}

static bool has_state(const ls_store *s, size_t i, const char *name)
{
    for (int k = 0; k < ls_store_states(s, i); k++)
        if (strcmp(ls_store_state_name(s, i, k), name) == 0) return true;
    return false;
}

/* All ranks read what any of them has. */
static ls_status put_states(struct side *s)
{
    static const char *const kinds[] = { "master", "m", "v" };
    const ls_store *store = s->step.store;

    for (size_t i = 0; i < ls_store_count(store); i++) {
        int64_t have[COUNT_OF(kinds)];

        for (size_t k = 0; k < COUNT_OF(kinds); k++) have[k] = has_state(store, i, kinds[k]);
        LS_TRY(ranks_sum_int(&s->step.ranks, have, COUNT_OF(kinds)));
        LS_TRY(put_state(s, i, "parameter"));
        for (size_t k = 0; k < COUNT_OF(kinds); k++)
            if (have[k]) LS_TRY(put_state(s, i, kinds[k]));
    }
    return LS_OK;
}

static ls_status save(struct side *s)
{
    ls_train_state state = { .step = 1, .samples = s->step.global, .tokens = s->step.global * s->step.seq_len, .seed = s->step.seed };

    if (!s->run->save) return LS_OK;
    LS_TRY(put_states(s));
    ranks_be_patient(&s->step.ranks, true);
    ls_status st = ls_checkpoint_save_ranks(s->step.ranks.comm, s->run->save, s->step.store, s->step.image ? NULL : &s->step.model, &state, NULL);
    ranks_be_patient(&s->step.ranks, false);
    return st;
}

/* *next: the step that comes after it. */
static ls_status load(struct side *s, uint64_t *next)
{
    ls_train_state state;
    char *path;

    LS_TRY(ls_checkpoint_resolve(s->run->load, &path));
    ls_status st = ls_checkpoint_load(path, s->step.store, LS_LOAD_OPTIMIZER, &state);
    st = verify_advise(st, path, "--load ");
    ls_free(path);
    LS_TRY(st);
    if (state.samples != state.step * s->step.global || state.seed != s->step.seed)
        return ls_fail(LS_EINVAL, "%s: %" PRIu64 " steps of %" PRIu64 " samples in all, seed %" PRIu64 "; here a step has %zu samples, the seed is %" PRIu64,
                       s->run->load, state.step, state.samples, state.seed, s->step.global, s->step.seed);
    *next = state.step;
    return put_states(s);
}

/* ---- the run ---- */

static ls_status make(struct side *s)
{
    uint64_t first = 0;
    size_t most = 1;

    for (size_t i = 0; i < ls_store_count(s->step.store); i++)
        if (count_of(s->step.store, i) > most) most = count_of(s->step.store, i);
    s->host = mem_array(MEM_OTHER, most, sizeof *s->host);
    if (!s->host) return LS_ENOMEM;
    if (s->run->load) LS_TRY(load(s, &first));
    for (uint64_t i = first; i < s->run->steps; i++) {
        LS_TRY(take_step(s, i));
        if (i == 0) LS_TRY(save(s));
    }
    return LS_OK;
}

static ls_status open_side(struct side *s, const struct ranks *ranks)
{
    ls_image_model image;
    ls_model model;

    if (!config_image(s->config, &image)) LS_TRY(config_model(s->config, 0, &model));
    LS_TRY(step_open(s->config, &model, ranks, false, &s->step));
    return ranks->rank == 0 ? file_writer_open(s->run->path, &s->out) : LS_OK;
}

ls_status parity_write(const struct config *c, const struct ranks *ranks, const struct parity_run *run)
{
    struct side s = { .config = c, .run = run };
    ls_status st = open_side(&s, ranks);

    ranks_be_patient(ranks, false);
    if (st == LS_OK) st = make(&s);
    if (st == LS_OK && s.out) st = file_writer_publish(&s.out);
    file_writer_abandon(&s.out);
    mem_free(s.host);
    step_close(&s.step);
    return st;
}
