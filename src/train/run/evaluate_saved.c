/* evaluate_saved.c - the loss of a model that is on disk. The training step is only planned, because it defines the layout: gradients and
 * optimizer state are not allocated. */
#include "train/run/evaluate_saved.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/verify.h"
#include "lockstep/checkpoint.h"
#include "train/run/evaluate.h"

static bool has_file(const char *folder, const char *name)
{
    char *path = file_path("%s/%s", folder, name);
    bool found = path && file_exists(path);

    mem_free(path);
    return found;
}

bool evaluate_is_hf(const char *path) { return has_file(path, "config.json") && !has_file(path, "manifest.json"); }

ls_status evaluate_model(const struct config *c, const char *path, struct task_model *out)
{
    const struct task *task = task_of(c);
    ls_checkpoint_info *info;
    ls_model described;

    if (evaluate_is_hf(path)) {
        LS_TRY(ls_model_read_hf(path, &described));
        return task->saved_model(c, path, &described, out);
    }
    LS_TRY(ls_checkpoint_inspect(path, &info));
    ls_status st = task->saved_model(c, path, info->has_model ? &info->model : NULL, out);
    ls_checkpoint_info_release(&info);
    return st;
}

struct evaluating {
    const struct config *c;
    const char *path;
    char chosen[4096]; /* rank 0's path; on all ranks, `path` points to it */
    struct ranks ranks;
    struct task_saved data;
    struct step step;
    struct evaluation evaluation;
    struct evaluate_watch watch;
};

static ls_status evaluate_saved_load(const struct evaluating *e)
{
    if (evaluate_is_hf(e->path)) return ls_hf_import(e->path, &e->step.model.transformer, e->step.store);
    return verify_advise(ls_checkpoint_load(e->path, e->step.store, 0, NULL), e->path, "lockstep eval ");
}

/* All ranks use rank 0's path: if a run saves while the ranks start, they might find different newest checkpoints. */
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

static ls_status open_and_run(struct evaluating *e, struct evaluated *out)
{
    const struct config *c = e->c;
    struct task_model model;

    LS_TRY(ranks_open(c, &e->ranks));
    LS_TRY(agree_on_path(e));
    LS_TRY(evaluate_model(c, e->path, &model));
    LS_TRY(model.task->open_saved(c, e->path, &model, &e->data));
    LS_TRY(step_open_config(c, &model, &e->ranks, STEP_PLANNED, &e->step));
    LS_TRY(evaluation_open(&e->step, &e->data.samples, (size_t)c->train.eval_batches, &e->evaluation));
    e->evaluation.watch = e->watch;
    LS_TRY(evaluate_saved_load(e));
    LS_TRY(evaluation_run(&e->evaluation, &out->loss));
    out->task = model.task;
    out->samples = e->evaluation.samples;
    return model.task->evaluated(&e->data, &e->evaluation, out);
}

ls_status evaluate_saved(const struct config *c, const char *path, struct evaluate_watch watch, struct evaluated *out)
{
    struct evaluating e = { .c = c, .path = path, .ranks = RANKS_ALONE, .watch = watch };
    struct evaluated found = { 0 };
    ls_status st = open_and_run(&e, &found);

    if (st == LS_OK) *out = found;
    evaluation_close(&e.evaluation);
    step_close(&e.step);
    dataset_close(&e.data.data);
    ls_tokenizer_close(&e.data.tokenizer);
    ranks_close(&e.ranks);
    return st;
}
