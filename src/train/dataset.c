/* dataset.c - opening what a run trains on. */
#include "train/dataset.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

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
    static const char *const names[] = { "tokenizer.json", "gpt2.tiktoken", "r50k.tiktoken", "p50k.tiktoken",
                                         "cl100k.tiktoken", "o200k.tiktoken" };

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

static ls_status encode(const struct config *c, const struct file_map *text, const char *saved_tokenizer,
                        struct dataset *d)
{
    ls_encode_options o = { .end = 0, .threads = 1 };

    if (text->bytes == 0) return ls_fail(LS_EINVAL, "the text is empty");
    if (saved_tokenizer) LS_TRY(ls_tokenizer_open(saved_tokenizer, &d->tokenizer));
    else LS_TRY(dataset_tokenizer(c, (const char *)text->data, text->bytes, &d->tokenizer));
    return ls_tokenizer_encode(d->tokenizer, (const char *)text->data, text->bytes, &o, &d->tokens);
}

static ls_status open_text(const struct config *c, const char *saved_tokenizer, struct dataset *d)
{
    char hash[HASH_ROOM];
    struct file_map text;

    LS_TRY(file_map_open(c->data.text, &text));
    ls_status st = encode(c, &text, saved_tokenizer, d);
    size_t bytes = text.bytes;
    hash_of(text.data, bytes, hash);
    file_map_close(&text);
    if (st != LS_OK) return ls_fail_at(st, "%s", c->data.text);
    snprintf(d->what, sizeof d->what, "%.40s (%zu bytes, %.8s), %zu tokens", base_name(c->data.text), bytes, hash,
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

/* The order of samples hangs on these too. */
static void describe_order(const struct config *c, char *what, size_t room)
{
    size_t used = strlen(what);

    snprintf(what + used, room - used, ", seq_len %lld, val %g%s", (long long)c->data.seq_len, c->data.val_fraction,
             c->data.shuffle ? "" : ", in order");
}

ls_status dataset_open(const struct config *c, const char *saved_tokenizer, struct dataset *out)
{
    struct dataset d = { 0 };
    ls_status st = c->data.text[0] ? open_text(c, saved_tokenizer, &d) : open_tokens(c, &d);

    if (st == LS_OK) {
        if (d.tokenizer) d.vocab = (size_t)ls_tokenizer_vocab(d.tokenizer);
        describe_order(c, d.what, sizeof d.what);
        st = ls_tokens_split(d.tokens, c->data.val_fraction, (size_t)c->data.seq_len, &d.train, &d.validation);
        if (st != LS_OK && c->data.text[0]) st = ls_fail_at(st, "%s", c->data.text);
    }
    if (st == LS_OK) *out = d;
    else dataset_close(&d);
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
    return ls_sampler_init(out, d->tokens, d->train, (size_t)c->data.seq_len, (int32_t)vocab, (uint64_t)c->train.seed,
                           c->data.shuffle);
}

ls_status dataset_validation_sampler(const struct dataset *d, const struct config *c, size_t vocab, ls_sampler *out)
{
    return ls_sampler_init(out, d->tokens, d->validation, (size_t)c->data.seq_len, (int32_t)vocab, 0, 0);
}
