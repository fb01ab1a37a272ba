/* cmd_eval.c - `lockstep eval`: loss, perplexity and bits per byte of a trained model, on its run's validation data or on a given text. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/launching.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "lockstep/checkpoint.h"
#include "train/run/evaluate_saved.h"

enum { USUAL_SEQ_LEN = 256 }; /* if neither the run nor the command line sets one */

static bool eval_json;
static int64_t given_step = -1;

static const struct flag eval_flags[] = {
    { "checkpoint", FLAG_INT, &given_step, 0, 1e15, "STEP", "evaluate the run's checkpoint of this step [the newest]" },
    { "json", FLAG_SWITCH, &eval_json, 0, 0, NULL, "print the figures as JSON" },
    { 0 },
};

/* Options that are taken from the run's config.yaml unless the command line sets them. Layout options are not, because any layout works. */
static const char *const inherited[] = {
    "data.text",         "data.field", "data.special_tokens", "data.tokens",        "data.format",        "data.seq_len",
    "data.val_fraction", "train.seed", "train.micro_batch",   "train.eval_batches", "train.global_batch", "precision.compute",
    "model.preset",      NULL,
};

/* ---- the model and the data ---- */

static char *found_path; /* path of the weights; kept until the process ends */

static ls_status find_step(const char *run, char **out)
{
    char *inside = file_path("%s/checkpoints/step_%08" PRId64, run, given_step), *beside = file_path("%s/step_%08" PRId64, run, given_step);
    ls_status st = inside && beside ? LS_OK : LS_ENOMEM;

    if (st == LS_OK && !file_is_folder(inside) && !file_is_folder(beside))
        st = ls_fail(LS_EINVAL, "%s has no checkpoint of step %" PRId64 "; lockstep ckpt list %s lists them", run, given_step, run);
    bool first = st == LS_OK && file_is_folder(inside);
    if (st == LS_OK) *out = first ? inside : beside;
    if (st != LS_OK || !first) mem_free(inside);
    if (st != LS_OK || first) mem_free(beside);
    return st;
}

static ls_status find_weights(const char *where, char **out)
{
    char *path = NULL;

    if (file_exists(where) && !file_is_folder(where))
        return ls_fail(LS_EIO, "%s is a file, not a model; the model's folder comes first: lockstep eval MODEL %s", where, where);
    if (given_step >= 0) return find_step(where, out);
    if (!evaluate_is_hf(where)) {
        ls_status st = ls_checkpoint_resolve(where, &path);
        if (st != LS_OK) return st == LS_EINVAL ? LS_EIO : st; /* a missing model is not a usage error */
    }
    *out = mem_strdup(path ? path : where);
    ls_free(path);
    return *out ? LS_OK : LS_ENOMEM;
}

static bool eval_given(const struct invocation *in, const char *name) { return strcmp(options_origin(&in->options, name), "default") != 0; }

/* Takes options from the run's config. Data other than the run's are evaluated completely, unless a part is requested. */
static ls_status inherit(struct invocation *in, const struct options *run)
{
    static const char *const of_data[] = { "data.text",   "data.field",        "data.tokens",
                                           "data.format", "data.val_fraction", "train.eval_batches" };
    bool other = eval_given(in, "data.text") || eval_given(in, "data.tokens"), tokens = eval_given(in, "data.tokens");

    for (int i = 0; inherited[i]; i++) {
        bool skip = tokens && strcmp(inherited[i], "data.special_tokens") == 0;

        /* with eval_batches, global_batch decides how much is evaluated; otherwise it belongs to the run's layout */
        skip = skip || (in->config.train.eval_batches <= 0 && strcmp(inherited[i], "train.global_batch") == 0);
        for (size_t k = 0; k < COUNT_OF(of_data); k++) skip = skip || (other && strcmp(inherited[i], of_data[k]) == 0);
        if (!skip) LS_TRY(options_inherit(&in->options, run, inherited[i]));
    }
    return LS_OK;
}

static ls_status inherit_file(struct invocation *in, const char *path)
{
    struct options run = { 0 };
    struct config was;

    LS_TRY(options_open(config_table(), &was, 0, &run));
    ls_status st = options_load_yaml(&run, path);
    if (st == LS_OK) st = inherit(in, &run);
    options_close(&run);
    return st;
}

/* Sets options by the run's config.yaml and the model, before they are checked. */
static ls_status complete(struct invocation *in)
{
    struct config *c = &in->config;
    struct task_model model;

    LS_TRY(find_weights(in->arguments[0], &found_path));
    char *path = file_path("%s/config.yaml", found_path);
    if (!path) return LS_ENOMEM;
    bool other = eval_given(in, "data.text") || eval_given(in, "data.tokens"), part = eval_given(in, "data.val_fraction"),
         has = file_exists(path);
    ls_status st = has ? inherit_file(in, path) : LS_OK;
    mem_free(path);
    LS_TRY(st);
    if ((other || !has) && !part) c->data.val_fraction = 0;
    LS_TRY(evaluate_model(c, found_path, &model));
    if (model.task->sequences && c->data.seq_len < 0)
        c->data.seq_len = (int64_t)MIN(model.transformer.max_positions, (size_t)USUAL_SEQ_LEN);
    return LS_OK;
}

static ls_status cmd_eval_check(const struct invocation *in)
{
    const struct config *c = &in->config;
    struct task_model model;

    LS_TRY(evaluate_model(c, found_path, &model));
    const struct task *task = model.task;
    LS_TRY(config_check_layout(c, &model));
    if (c->parallel.zero == 1 || c->parallel.zero == 2)
        return ls_fail(LS_EINVAL,
                       "parallel.zero=%" PRId64 " does nothing here: an evaluation has no gradients and no optimizer state; use 3, which "
                       "shards parameters, or 0",
                       c->parallel.zero);
    if (c->data.tokens[0] && c->data.text[0]) return ls_fail(LS_EINVAL, "data.text and data.tokens are both given; leave one out");
    if (task->drawn && (c->data.tokens[0] || c->data.text[0]))
        return ls_fail(LS_EINVAL, "model.preset=%s is evaluated on drawn %s, not on data.text or data.tokens", c->model.preset,
                       task->units);
    if (task->drawn || c->data.tokens[0] || c->data.text[0]) return LS_OK;
    return ls_fail(LS_EINVAL, "%s does not say what data to evaluate on; give --data.text=FILE or --data.tokens=FILE", in->arguments[0]);
}

/* ---- the result ---- */

static double bits_per_byte(const struct evaluated *e) { return e->bytes ? e->loss * (double)e->tokens / (double)e->bytes / log(2) : NAN; }

static ls_status cmd_eval_put_json(const struct config *c, const struct evaluated *e)
{
    struct json_out j = { 0 };

    json_begin_object(&j, NULL);
    json_put_string(&j, "path", found_path);
    json_put_string(&j, "data", e->data);
    json_put_int(&j, "samples", (int64_t)e->samples);
    json_put_real(&j, "loss", e->loss);
    if (e->task->sequences) json_put_int(&j, "tokens", (int64_t)e->tokens);
    if (e->task->sequences) json_put_int(&j, "tokens_left_over", (int64_t)e->left_over);
    if (e->task->perplexity) json_put_real(&j, "perplexity", exp(e->loss));
    if (e->bytes) json_put_int(&j, "bytes", (int64_t)e->bytes);
    if (e->bytes) json_put_real(&j, "bits_per_byte", bits_per_byte(e));
    json_put_int(&j, "ranks", MAX(c->launch.ranks, 1));
    json_put_string(&j, "compute", ls_dtype_name(config_type(c)));
    json_end_object(&j);
    return terminal_put_json(&j);
}

static void cmd_eval_put_table(const struct config *c, const struct evaluated *e)
{
    char count[32], text[LS_LAYOUT_TEXT];
    ls_layout layout;

    printf("checkpoint  %s\n", found_path);
    printf("data        %s\n", e->data);
    if (e->task->sequences)
        printf("evaluated   %s tokens in %zu samples", text_count(count, (int64_t)e->tokens), e->samples);
    else
        printf("evaluated   %zu %s", e->samples, e->task->units);
    printf(", %s", ls_dtype_name(config_type(c)));
    if (c->launch.ranks > 1 && config_layout(c, &layout) == LS_OK)
        printf(", %" PRId64 " ranks: %s", c->launch.ranks, ls_layout_text(&layout, text, sizeof text));
    printf("\n");
    if (e->left_over) printf("            (the last %zu tokens do not fill a sample and are left out)\n", e->left_over);
    printf("loss        %.4f nats per %s\n", e->loss, e->task->unit);
    if (e->task->perplexity) printf("perplexity  %.4g\n", exp(e->loss));
    if (e->bytes) printf("bits/byte   %.4f\n", bits_per_byte(e));
}

/* ---- the command ---- */

static ls_status cmd_eval_run(struct invocation *in)
{
    struct evaluated e;
    struct progress progress;

    progress_begin(&progress, in->quiet || in->world.rank > 0);
    ls_status st = evaluate_saved(&in->config, found_path, (struct evaluate_watch){ progress_evaluating, &progress }, &e);
    progress_clear(&progress);
    LS_TRY(st);
    if (in->world.rank > 0) return LS_OK;
    if (eval_json) return cmd_eval_put_json(&in->config, &e);
    cmd_eval_put_table(&in->config, &e);
    return LS_OK;
}

static ls_status launch(struct invocation *in) { return launching_run(in, NULL, NULL, NULL); }

const struct command command_eval = {
    .name = "eval",
    .arguments = "MODEL [TEXT]",
    .least = 1,
    .most = 2,
    .plain = "data.text",
    .summary = "print the loss and perplexity of a trained model: a run, a checkpoint, or a Hugging Face folder",
    .verb = VERB_EVAL,
    .flags = eval_flags,
    .complete = complete,
    .check = cmd_eval_check,
    .run = cmd_eval_run,
    .launch = launch,
    .examples = "  lockstep eval runs/book                                          newest checkpoint, the run's validation data\n"
                "  lockstep eval runs/book other.txt                                another text, the same as --data.text=other.txt\n"
                "  lockstep eval runs/book --checkpoint 500 --json\n"
                "  lockstep eval runs/book -n 4 --parallel.tp=2\n"
                "  lockstep eval hf/gpt2 --data.text=book.txt --data.seq_len=1024\n",
};
