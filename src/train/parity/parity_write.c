/* parity_write.c - runs one side of a comparison and writes the results of its steps. */
#include "train/parity/parity.h"

#include <inttypes.h>
#include "base/base.h"
#include "base/mem.h"
#include "checkpoint/verify.h"
#include "lockstep/checkpoint.h"
#include "train/parity/parity_gates.h"
#include "train/parity/parity_routes.h"
#include "train/run/random_tokens.h"

static const double IGNORED = 0.1; /* fraction of the targets that are ignored, so that ranks have different numbers of valid targets */

struct side {
    const struct config *config;
    const struct parity_run *run;
    struct step step;
    file_writer *out; /* on rank 0; else NULL */
    struct parity_writer writer;
    struct parity_file follow;
    struct parity_gates *gates;
    struct parity_routes *routes;
};

static ls_status take_step(struct side *s, uint64_t index)
{
    double loss, norm;
    size_t valid;

    random_tokens(&s->step, index, IGNORED);
    LS_TRY(parity_gates_begin(s->gates, index));
    LS_TRY(parity_routes_begin(s->routes, index));
    LS_TRY(step_gradients(&s->step, index, &loss, &valid));
    LS_TRY(parity_gates_end(s->gates, &s->writer));
    LS_TRY(parity_routes_end(s->routes, index));
    LS_TRY(step_set(&s->step, s->config->optim.lr, index + 1));
    LS_TRY(step_update(&s->step, index + 1, &norm));
    LS_TRY(parity_put(&s->writer, RECORD_LOSS, index, 0, &loss, 1));
    LS_TRY(parity_put(&s->writer, RECORD_NORM, index, 0, &norm, 1));
    LS_TRY(parity_put_gradients(&s->writer, index));
    return parity_put_state(&s->writer, index + 1);
}

/* ---- a checkpoint ---- */

static ls_status save(struct side *s)
{
    ls_train_state state = { .step = 1, .samples = s->step.global, .tokens = s->step.global * s->step.seq_len, .seed = s->step.seed };

    state.grad_norm = s->step.norm;
    if (!s->run->save) return LS_OK;
    ls_status st =
        ls_checkpoint_save_ranks(s->step.ranks.comm, s->run->save, s->step.store, task_transformer(&s->step.model), &state, NULL);
    return st;
}

/* Loads the checkpoint. *next: the first step after it. */
static ls_status parity_write_load(struct side *s, uint64_t *next)
{
    ls_train_state state;
    char *path;

    LS_TRY(ls_checkpoint_resolve(s->run->load, &path));
    ls_status st = ls_checkpoint_load(path, s->step.store, LS_LOAD_OPTIMIZER, &state);
    st = verify_advise(st, path, "--load ");
    ls_free(path);
    LS_TRY(st);
    if (state.samples != state.step * s->step.global || state.seed != s->step.seed)
        return ls_fail(LS_EINVAL,
                       "%s: a checkpoint of a different run: %" PRIu64 " steps with %" PRIu64 " samples in total, seed %" PRIu64
                       "; expected %zu samples per step, seed %" PRIu64,
                       s->run->load, state.step, state.samples, state.seed, s->step.global, s->step.seed);
    LS_TRY(fault_restored(&s->step.injection, s->step.store));
    *next = state.step;
    s->step.norm = state.grad_norm;
    if (state.step > 0) LS_TRY(parity_put(&s->writer, RECORD_NORM, state.step - 1, 0, &state.grad_norm, 1));
    return LS_OK;
}

/* ---- the run ---- */

/* The first step starts from the state that this side initialized or loaded itself, which is compared, too. */
static ls_status parity_write_make(struct side *s)
{
    uint64_t first = 0;

    if (s->run->load) LS_TRY(parity_write_load(s, &first));
    LS_TRY(parity_put_state(&s->writer, first));
    for (uint64_t i = first; i < s->run->steps; i++) {
        if (s->run->follow && i > first) LS_TRY(parity_take_state(&s->follow, i, s->step.store));
        LS_TRY(take_step(s, i));
        if (i == 0) LS_TRY(save(s));
    }
    return LS_OK;
}

static ls_status open_side(struct side *s, const struct ranks *ranks)
{
    struct parity_bounds bounds;
    struct task_model model;

    LS_TRY(task_model_of(s->config, 0, &model));
    LS_TRY(step_open_config(s->config, &model, ranks, s->run->load ? STEP_LOADED : STEP_INITIALIZED, &s->step));
    if (s->run->follow) LS_TRY(parity_file_open(s->run->follow, &s->follow));
    if (ranks->rank == 0) LS_TRY(file_writer_open(s->run->path, &s->out));
    LS_TRY(parity_bounds_of(s->config, NULL, &bounds));
    LS_TRY(parity_gates_open(&s->step, bounds.most, s->run->follow ? &s->follow : NULL, &s->gates));
    LS_TRY(parity_routes_open(&s->step, bounds.most, s->run->path, s->run->follow, &s->routes));
    return parity_writer_open(&s->step, s->out, &s->writer);
}

ls_status parity_write(const struct config *c, const struct ranks *ranks, const struct parity_run *run)
{
    struct side s = { .config = c, .run = run };
    ls_status st = open_side(&s, ranks);

    if (st == LS_OK) st = parity_write_make(&s);
    if (st == LS_OK && s.out) st = file_writer_publish(&s.out);
    file_writer_abandon(&s.out);
    parity_gates_close(&s.gates);
    parity_routes_close(&s.routes);
    parity_writer_close(&s.writer);
    parity_file_close(&s.follow);
    step_close(&s.step);
    return st;
}
