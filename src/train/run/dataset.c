/* dataset.c - opens the data of a run. */
#include "train/run/dataset.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "data/array.h"
#include "data/tokenizer.h"
#include "data/tokens.h"

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

ls_status dataset_tokenizer(const struct config *c, const char *text, size_t bytes, ls_tokenizer **out)
{
    ls_bpe_options bpe = LS_BPE_DEFAULTS;

    if (strcmp(c->data.tokenizer, "bpe") == 0) {
        bpe.vocab = (int32_t)c->data.vocab_size;
        return ls_tokenizer_train(text, bytes, &bpe, out);
    }
    if (c->data.tokens[0] && strcmp(c->data.tokenizer, "bytes") == 0) {
        *out = NULL;
        return LS_OK;
    }
    ls_status st = ls_tokenizer_open(c->data.tokenizer, out);
    if (st == LS_EINVAL && c->data.text[0]) st = ls_fail_at(st, "data.tokenizer (bpe learns one from the text)");
    return st;
}

ls_status dataset_saved_tokenizer(const char *folder, char **out)
{
    static const char *const names[] = { "tokenizer.json", "gpt2.tiktoken",   "r50k.tiktoken",
                                         "p50k.tiktoken",  "cl100k.tiktoken", "o200k.tiktoken" };

    *out = NULL;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char *path = file_path("%s/%s", folder, names[i]);

        if (!path) return LS_ENOMEM;
        if (file_exists(path)) {
            *out = path;
            return LS_OK;
        }
        mem_free(path);
    }
    return LS_OK;
}

/* ---- text into tokens ---- */

struct collected {
    char *text;
    size_t bytes, room;
    bool parse;
};

static ls_status collect_part(struct collected *all, const char *text, size_t bytes)
{
    void *p = all->text;

    LS_TRY(array_grow(&p, &all->room, all->bytes + bytes + 1, 1));
    all->text = p;
    memcpy(all->text + all->bytes, text, bytes);
    all->text[all->bytes + bytes] = '\n';
    all->bytes += bytes + 1;
    return LS_OK;
}

/* Collects the text that BPE is learned from: all documents, each followed by a line feed. If special tokens are parsed, an end-of-text
 * token ends a document and is left out, so that BPE learns no merges in it. */
static ls_status dataset_collect(void *ctx, const char *text, size_t bytes)
{
    struct collected *all = ctx;
    size_t at = 0, length = strlen(END_OF_TEXT);
    const char *end;

    while (all->parse && (end = memmem(text + at, bytes - at, END_OF_TEXT, length)) != NULL) {
        LS_TRY(collect_part(all, text + at, (size_t)(end - text) - at));
        at = (size_t)(end - text) + length;
    }
    return collect_part(all, text + at, bytes - at);
}

static bool parses_specials(const struct config *c)
{
    bool lines = documents_are_lines(c->data.text);

    return c->data.special_tokens == SPECIAL_PARSE || (c->data.special_tokens == SPECIAL_AUTO && !lines);
}

static ls_status learn_tokenizer(const struct config *c, ls_tokenizer **out)
{
    struct collected all = { .parse = parses_specials(c) };
    struct documents found;
    ls_status st = documents_each(c->data.text, c->data.field, dataset_collect, &all, &found);

    if (st == LS_OK) {
        st = dataset_tokenizer(c, all.text, all.bytes - 1, out);
        if (st != LS_OK) ls_fail_at(st, "%s", c->data.text);
    }
    mem_free(all.text);
    return st;
}

struct encoding {
    const ls_tokenizer *tokenizer;
    struct token_buffer tokens;
    bool parse, end;
};

static ls_status take_ids(void *ctx, const int32_t *ids, size_t count) { return token_buffer_add(ctx, ids, count); }

static ls_status encode_document(void *ctx, const char *text, size_t bytes)
{
    struct encoding *e = ctx;
    const ls_encode_options o = { .specials = e->parse, .end = e->end, .threads = bytes > ENCODE_CHUNK };

    return tokenizer_encode_each(e->tokenizer, text, bytes, &o, ENCODE_CHUNK, take_ids, &e->tokens);
}

static ls_status open_tokenizer(const struct config *c, const char *saved_tokenizer, bool lines, ls_tokenizer **out)
{
    if (saved_tokenizer)
        LS_TRY(ls_tokenizer_open(saved_tokenizer, out));
    else if (strcmp(c->data.tokenizer, "bpe") == 0)
        LS_TRY(learn_tokenizer(c, out));
    else
        LS_TRY(dataset_tokenizer(c, NULL, 0, out));
    if (!lines || ls_tokenizer_end(*out) >= 0) return LS_OK;
    return ls_fail(LS_EINVAL, "%s: each document must be followed by an end-of-text token, which this tokenizer does not have",
                   c->data.text);
}

ls_status dataset_encode(const struct config *c, const char *saved_tokenizer, bool end, struct dataset *d, struct documents *found)
{
    bool lines = documents_are_lines(c->data.text);
    struct encoding e = { .parse = parses_specials(c), .end = lines || end };

    LS_TRY(open_tokenizer(c, saved_tokenizer, lines, &d->tokenizer));
    e.tokenizer = d->tokenizer;
    token_buffer_open(&e.tokens, ls_tokenizer_vocab(d->tokenizer));
    ls_status st = documents_each(c->data.text, c->data.field, encode_document, &e, found);
    if (st == LS_OK) st = token_buffer_take(&e.tokens, &d->tokens);
    if (st == LS_OK && ls_tokenizer_end(d->tokenizer) >= 0) st = ls_tokens_mark(d->tokens, ls_tokenizer_end(d->tokenizer));
    token_buffer_close(&e.tokens);
    return st;
}

static ls_status open_text(const struct config *c, const char *saved_tokenizer, struct dataset *d)
{
    struct documents found;

    LS_TRY(dataset_encode(c, saved_tokenizer, false, d, &found));
    snprintf(d->what, sizeof d->what, "%.40s (%zu bytes, %.8s), %zu tokens", base_name(c->data.text), found.bytes, found.hash,
             ls_tokens_count(d->tokens));
    return LS_OK;
}

static ls_status open_tokens(const struct config *c, struct dataset *d)
{
    LS_TRY(ls_tokens_open(c->data.tokens, config_format(c), &d->tokens));
    LS_TRY(dataset_tokenizer(c, NULL, 0, &d->tokenizer));
    snprintf(d->what, sizeof d->what, "%.40s, %zu tokens", base_name(c->data.tokens), ls_tokens_count(d->tokens));
    return LS_OK;
}

/* Appends the options that the order of samples depends on. */
static void describe_order(const struct config *c, char *what, size_t room)
{
    size_t used = strlen(what);

    snprintf(what + used, room - used, ", seq_len %lld, val %g%s", (long long)c->data.seq_len, c->data.val_fraction,
             c->data.shuffle ? "" : ", in order");
}

ls_status dataset_open(const struct config *c, const char *saved_tokenizer, struct dataset *out)
{
    struct dataset d = { 0 };
    struct mem_stats before, after;

    mem_reset_peak();
    mem_read(&before);
    ls_status st = c->data.text[0] ? open_text(c, saved_tokenizer, &d) : open_tokens(c, &d);

    if (st == LS_OK) {
        if (d.tokenizer) d.vocab = (size_t)ls_tokenizer_vocab(d.tokenizer);
        describe_order(c, d.what, sizeof d.what);
        st = ls_tokens_split(d.tokens, c->data.val_fraction, (size_t)c->data.seq_len, &d.train, &d.validation);
        if (st == LS_EINVAL) st = LS_EFORMAT; /* the options were checked before, so the data are too short */
        if (st != LS_OK && c->data.text[0]) st = ls_fail_at(st, "%s", c->data.text);
    }
    mem_read(&after);
    d.held = after.total_now - before.total_now;
    d.peak = after.total_peak - before.total_now;
    if (st == LS_OK)
        *out = d;
    else
        dataset_close(&d);
    return st;
}

void dataset_close(struct dataset *d)
{
    ls_tokens_close(&d->tokens);
    ls_tokenizer_close(&d->tokenizer);
    *d = (struct dataset){ 0 };
}

ls_status dataset_train_sampler(const struct dataset *d, const struct config *c, size_t vocab, ls_sampler *out)
{
    return ls_sampler_init(out, d->tokens, d->train, (size_t)c->data.seq_len, (int32_t)vocab, (uint64_t)c->train.seed, c->data.shuffle);
}

ls_status dataset_validation_sampler(const struct dataset *d, const struct config *c, size_t vocab, ls_sampler *out)
{
    return ls_sampler_init(out, d->tokens, d->validation, (size_t)c->data.seq_len, (int32_t)vocab, 0, 0);
}
