/* generate.c - generates text with a trained model. */
#include "train/run/generate.h"

#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/verify.h"
#include "lockstep/checkpoint.h"
#include "train/run/dataset.h"

/* ---- reading a model ---- */

static bool has_file(const char *folder, const char *name)
{
    char *path = file_path("%s/%s", folder, name);
    bool found = path && file_exists(path);

    mem_free(path);
    return found;
}

/* Declares the model's parameters in the store by appending its forward pass to a program that is never run. */
static ls_status declare_parameters(struct trained *t)
{
    ls_program *p;

    LS_TRY(ls_program_new(t->store, &p));
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ 1, 1 });
    ls_output(p, "logits", ls_model_logits(p, &t->model, tokens));
    ls_status st = ls_program_status(p);
    ls_program_release(&p);
    return st;
}

static ls_status new_store(const char *device, ls_dtype type, struct trained *t)
{
    ls_store_options o = LS_STORE_DEFAULTS;

    o.device = device;
    o.type = type;
    o.master = 0;
    t->model.dropout = t->model.attention_dropout = 0;
    LS_TRY(ls_store_new(&o, &t->store));
    return declare_parameters(t);
}

static ls_status read_hf(const char *folder, const char *device, ls_dtype type, struct trained *t)
{
    LS_TRY(ls_model_read_hf(folder, &t->model));
    LS_TRY(new_store(device, type, t));
    t->path = mem_strdup(folder);
    return t->path ? ls_hf_import(folder, &t->model, t->store) : LS_ENOMEM;
}

static ls_status read_model(const char *path, ls_model *out)
{
    ls_checkpoint_info *info;
    ls_status st = LS_OK;

    LS_TRY(verify_advise(ls_checkpoint_inspect(path, &info), path, "lockstep generate "));
    if (info->has_model)
        *out = info->model;
    else
        st = ls_fail(LS_EFORMAT, "%s: the checkpoint does not say what model its parameters belong to", path);
    ls_checkpoint_info_release(&info);
    return st;
}

static ls_status read_checkpoint(const char *where, const char *device, ls_dtype type, struct trained *t)
{
    char *path;

    LS_TRY(ls_checkpoint_resolve(where, &path));
    t->path = mem_strdup(path);
    ls_free(path);
    if (!t->path) return LS_ENOMEM;
    LS_TRY(read_model(t->path, &t->model));
    LS_TRY(new_store(device, type, t));
    return verify_advise(ls_checkpoint_load(t->path, t->store, 0, NULL), t->path, "lockstep generate ");
}

static ls_status read_tokenizer(const char *given, struct trained *t)
{
    char *saved;

    LS_TRY(dataset_saved_tokenizer(t->path, &saved));
    bool none = !given && !saved;
    mem_free(saved);
    if (none) return LS_OK;
    LS_TRY(ls_tokenizer_open(given ? given : t->path, &t->tokenizer));
    size_t vocab = (size_t)ls_tokenizer_vocab(t->tokenizer);
    if (vocab > t->model.vocab)
        return ls_fail(LS_EINVAL, "%s: the tokenizer has %zu tokens, but the model only %zu", t->path, vocab, t->model.vocab);
    return LS_OK;
}

ls_status trained_open(const char *where, const char *device, ls_dtype type, const char *tokenizer, struct trained *out)
{
    struct trained t = { 0 };
    bool hf = has_file(where, "config.json") && !has_file(where, "manifest.json");
    ls_status st = hf ? read_hf(where, device, type, &t) : read_checkpoint(where, device, type, &t);

    if (st == LS_OK) st = read_tokenizer(tokenizer, &t);
    if (st == LS_OK)
        *out = t;
    else
        trained_close(&t);
    return st;
}

void trained_close(struct trained *t)
{
    ls_store_release(&t->store);
    ls_tokenizer_close(&t->tokenizer);
    mem_free(t->path);
    *t = (struct trained){ 0 };
}

/* ---- generating ---- */

ls_status generate_room(const struct trained *t, size_t n, size_t *room)
{
    size_t positions = t->model.max_positions;

    if (n >= positions)
        return ls_fail(LS_EINVAL, "the prompt has %zu tokens and leaves no position for another: the model has %zu; shorten the prompt", n,
                       positions);
    *room = positions - n;
    return LS_OK;
}

ls_status generate_check(const struct trained *t, size_t n, size_t count)
{
    size_t room = 0;

    if (count > 0 || n > t->model.max_positions) LS_TRY(generate_room(t, n, &room));
    if (count > room)
        return ls_fail(LS_EINVAL, "the prompt's %zu tokens and %zu more do not fit into the model's %zu positions; generate at most %zu", n,
                       count, t->model.max_positions, room);
    return LS_OK;
}

struct only_text {
    generate_token_fn *fn;
    void *ctx;
};

static ls_status only_token(void *ctx, size_t prompt, int32_t id)
{
    const struct only_text *only = ctx;

    (void)prompt;
    return only->fn(only->ctx, id);
}

ls_status generate(const struct trained *t, const int32_t *prompt, size_t n, size_t count, const struct sampling *s, generate_token_fn *fn,
                   void *ctx)
{
    struct generate_prompt p = { prompt, n, count, s->prompt };
    struct only_text only = { fn, ctx };

    return generate_batch(t, 1, &p, s, only_token, &only);
}

ls_status generate_logits(const struct trained *t, const int32_t *ids, size_t n, float *logits)
{
    ls_program *p;

    LS_TRY(ls_program_new(t->store, &p));
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ 1, n });
    ls_output(p, "logits", ls_model_logits(p, &t->model, tokens));
    ls_status st = ls_program_compile(p, NULL);
    if (st == LS_OK) st = ls_program_write(p, "tokens", ids, LS_I32, n);
    if (st == LS_OK) st = ls_program_run(p, LS_FORWARD);
    if (st == LS_OK) st = ls_program_read(p, "logits", logits, LS_F32, n * t->model.vocab);
    ls_program_release(&p);
    return st;
}
