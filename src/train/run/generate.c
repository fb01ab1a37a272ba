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

struct generation {
    const struct trained *trained;
    ls_cache *cache;
    ls_program *prompt, *next; /* for all prompt tokens at once; for one token */
    float *logits;             /* [V] */
    struct candidate *scratch; /* [V] */
    int32_t *positions;        /* [prompt tokens] */
};

static ls_status open_program(struct generation *g, size_t t, ls_program **out)
{
    ls_program *p;

    LS_TRY(ls_program_new(g->trained->store, &p));
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ 1, t });
    ls_value positions = ls_input(p, "positions", LS_I32, 1, (size_t[]){ t });
    ls_value position = ls_input(p, "position", LS_I32, 1, (size_t[]){ 1 });
    ls_value length = ls_input(p, "length", LS_I32, 1, (size_t[]){ 1 });
    ls_value last = ls_input(p, "last", LS_I32, 1, (size_t[]){ 1 });
    ls_output(p, "logits", ls_model_decode(p, &g->trained->model, g->cache, tokens, positions, position, length, last));
    ls_status st = ls_program_compile(p, NULL);
    if (st == LS_OK)
        *out = p;
    else
        ls_program_release(&p);
    return st;
}

static ls_status open_generation(struct generation *g, size_t n, size_t count)
{
    size_t vocab = g->trained->model.vocab;

    g->logits = mem_array(MEM_OTHER, vocab, sizeof *g->logits);
    g->scratch = mem_array(MEM_OTHER, vocab, sizeof *g->scratch);
    g->positions = mem_array(MEM_OTHER, n, sizeof *g->positions);
    if (!g->logits || !g->scratch || !g->positions) return LS_ENOMEM;
    ls_store_options o = ls_store_settings(g->trained->store);
    LS_TRY(ls_cache_new(o.device, &g->trained->model, o.type, 1, n + count, &g->cache));
    LS_TRY(open_program(g, n, &g->prompt));
    return open_program(g, 1, &g->next);
}

static void close_generation(struct generation *g)
{
    ls_program_release(&g->prompt);
    ls_program_release(&g->next);
    ls_cache_release(&g->cache);
    mem_free(g->logits);
    mem_free(g->scratch);
    mem_free(g->positions);
}

/* Computes the logits after tokens[t], whose positions are first .. first + t - 1. */
static ls_status generate_forward(struct generation *g, ls_program *p, const int32_t *tokens, size_t t, size_t first)
{
    int32_t position = (int32_t)first, length = (int32_t)(first + t), last = (int32_t)t - 1;

    for (size_t i = 0; i < t; i++) g->positions[i] = (int32_t)(first + i);
    LS_TRY(ls_program_write(p, "tokens", tokens, LS_I32, t));
    LS_TRY(ls_program_write(p, "positions", g->positions, LS_I32, t));
    LS_TRY(ls_program_write(p, "position", &position, LS_I32, 1));
    LS_TRY(ls_program_write(p, "length", &length, LS_I32, 1));
    LS_TRY(ls_program_write(p, "last", &last, LS_I32, 1));
    LS_TRY(ls_program_run(p, LS_FORWARD));
    return ls_program_read(p, "logits", g->logits, LS_F32, g->trained->model.vocab);
}

/* Ids that the tokenizer does not have are never sampled, even if the model has rows for them. */
static size_t sampled_vocab(const struct trained *t) { return t->tokenizer ? (size_t)ls_tokenizer_vocab(t->tokenizer) : t->model.vocab; }

static ls_status generate_run(struct generation *g, const int32_t *prompt, size_t n, size_t count, const struct sampling *s,
                              generate_token_fn *fn, void *ctx)
{
    int32_t end = g->trained->tokenizer ? ls_tokenizer_end(g->trained->tokenizer) : -1;

    if (count == 0) return LS_OK;
    LS_TRY(generate_forward(g, g->prompt, prompt, n, 0));
    for (size_t i = 0;; i++) {
        int32_t id = sample_next(g->logits, sampled_vocab(g->trained), s, i, g->scratch);

        if (id == end) return LS_OK;
        LS_TRY(fn(ctx, id));
        if (i + 1 == count) return LS_OK;
        LS_TRY(generate_forward(g, g->next, &id, 1, n + i));
    }
}

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

ls_status generate(const struct trained *t, const int32_t *prompt, size_t n, size_t count, const struct sampling *s, generate_token_fn *fn,
                   void *ctx)
{
    struct generation g = { .trained = t };

    LS_TRY(generate_check(t, n, count));
    ls_status st = open_generation(&g, n, count);
    if (st == LS_OK) st = generate_run(&g, prompt, n, count, s, fn, ctx);
    close_generation(&g);
    return st;
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
