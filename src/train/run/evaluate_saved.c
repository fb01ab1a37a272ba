/* evaluate_saved.c - the loss of a model that is on disk. The training step is planned only, for the layout's sake: no gradient and no
 * optimizer state takes memory. */
#include "train/run/evaluate_saved.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/verify.h"
#include "lockstep/checkpoint.h"
#include "train/run/dataset.h"
#include "train/run/evaluate.h"

static bool has_file(const char *folder, const char *name)
{
    char *path = file_path("%s/%s", folder, name);
    bool found = path && file_exists(path);

    mem_free(path);
    return found;
}

bool evaluate_is_hf(const char *path) { return has_file(path, "config.json") && !has_file(path, "manifest.json"); }

ls_status evaluate_model(const char *path, ls_model *out, bool *image)
{
    ls_checkpoint_info *info;

    *image = false;
    if (evaluate_is_hf(path)) return ls_model_read_hf(path, out);
    LS_TRY(ls_checkpoint_inspect(path, &info));
    *image = !info->has_model;
    if (info->has_model) *out = info->model;
    ls_checkpoint_info_release(&info);
    return LS_OK;
}

struct evaluating {
    const struct config *c;
    const char *path;
    char chosen[4096]; /* path, on several ranks: rank 0's */
    struct ranks ranks;
    struct dataset data;
    ls_tokenizer *tokenizer; /* the one beside the weights; NULL: none */
    struct step step;
    struct evaluation evaluation;
    struct evaluate_watch watch;
};

static ls_status open_tokenizer(struct evaluating *e)
{
    char *saved;

    LS_TRY(dataset_saved_tokenizer(e->path, &saved));
    bool found = saved != NULL;
    mem_free(saved);
    if (found) return ls_tokenizer_open(e->path, &e->tokenizer);
    if (!e->c->data.text[0]) return LS_OK;
    return ls_fail(LS_EFORMAT, "%s: no tokenizer is beside the weights, so a text cannot be read; give --data.tokens=FILE", e->path);
}

static ls_status open_samples(struct evaluating *e, const ls_model *model, ls_sampler *out)
{
    const struct config *c = e->c;

    LS_TRY(open_tokenizer(e));
    LS_TRY(dataset_open(c, c->data.text[0] ? e->path : NULL, &e->data));
    if (e->data.vocab > model->vocab)
        return ls_fail(LS_EFORMAT, "%s: the tokenizer has %zu tokens, the model only %zu", e->path, e->data.vocab, model->vocab);
    if (c->data.val_fraction == 0) e->data.validation = e->data.train;
    return dataset_validation_sampler(&e->data, c, model->vocab, out);
}

static ls_status evaluate_saved_load(const struct evaluating *e)
{
    if (evaluate_is_hf(e->path)) return ls_hf_import(e->path, &e->step.model, e->step.store);
    return verify_advise(ls_checkpoint_load(e->path, e->step.store, 0, NULL), e->path, "lockstep eval ");
}

/* Ranks that start while a run saves would find different newest checkpoints: all take rank 0's. */
static ls_status agree_on_path(struct evaluating *e)
{
    bool fits = strlen(e->path) < sizeof e->chosen;

    LS_TRY(
        ranks_agree(&e->ranks, fits ? LS_OK : ls_fail(LS_EINVAL, "%s: the path is longer than %zu bytes", e->path, sizeof e->chosen - 1)));
    snprintf(e->chosen, sizeof e->chosen, "%s", fits ? e->path : "");
    if (e->ranks.comm) LS_TRY(ls_broadcast(e->ranks.comm, e->chosen, sizeof e->chosen, LS_U8, 0, NULL));
    e->path = e->chosen;
    return LS_OK;
}

/* Bytes of text that the predicted tokens stand for; end-of-text stands for none. */
static ls_status count_bytes(const struct evaluating *e, size_t *out)
{
    const struct evaluation *v = &e->evaluation;
    int32_t end = ls_tokenizer_end(e->tokenizer);
    size_t total = 0, bytes;

    for (size_t i = 0; i < v->samples; i++) {
        LS_TRY(ls_sampler_get(&v->sampler, i, v->tokens, v->targets));
        for (size_t k = 0; k < v->seq_len; k++)
            if (v->targets[k] >= 0 && v->targets[k] != end && ls_tokenizer_token(e->tokenizer, v->targets[k], &bytes)) total += bytes;
    }
    *out = total;
    return LS_OK;
}

static ls_status evaluate_saved_describe(const struct evaluating *e, struct evaluated *out)
{
    const struct evaluation *v = &e->evaluation;
    size_t part = e->data.validation.end - e->data.validation.begin;

    out->image = e->step.image;
    out->samples = v->samples;
    if (out->image) {
        snprintf(out->data, sizeof out->data, "%zu drawn pictures", v->samples);
        return LS_OK;
    }
    out->tokens = v->samples * v->seq_len;
    out->left_over = v->samples == v->sampler.samples && part > out->tokens + 1 ? part - out->tokens - 1 : 0;
    snprintf(out->data, sizeof out->data, "%s", e->data.what);
    return e->tokenizer ? count_bytes(e, &out->bytes) : LS_OK;
}

static ls_status open_and_run(struct evaluating *e, struct evaluated *out)
{
    const struct config *c = e->c;
    ls_sampler sampler = { 0 };
    ls_model model;
    bool image;

    LS_TRY(ranks_open(c, &e->ranks));
    LS_TRY(agree_on_path(e));
    LS_TRY(evaluate_model(e->path, &model, &image));
    if (!image) LS_TRY(open_samples(e, &model, &sampler));
    LS_TRY(step_open(c, image ? NULL : &model, &e->ranks, true, &e->step));
    LS_TRY(evaluation_open(c, &e->step, &sampler, (size_t)c->train.eval_batches, &e->evaluation));
    e->evaluation.watch = e->watch;
    LS_TRY(evaluate_saved_load(e));
    LS_TRY(evaluation_run(&e->evaluation, &out->loss));
    return evaluate_saved_describe(e, out);
}

ls_status evaluate_saved(const struct config *c, const char *path, struct evaluate_watch watch, struct evaluated *out)
{
    struct evaluating e = { .c = c, .path = path, .ranks = RANKS_ALONE, .watch = watch };
    struct evaluated found = { 0 };
    ls_status st = open_and_run(&e, &found);

    if (st == LS_OK) *out = found;
    evaluation_close(&e.evaluation);
    step_close(&e.step);
    dataset_close(&e.data);
    ls_tokenizer_close(&e.tokenizer);
    ranks_close(&e.ranks);
    return st;
}
