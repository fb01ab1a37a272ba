/* train.c - learning byte-level BPE from text (Sennrich et al., 2016; on bytes, as GPT-2 does). */
#include "data/train.h"

#include "data/byte_alphabet.h"
#include "data/pattern.h"
#include "data/utf8.h"

enum { LEAST_VOCAB = 257 };

static ls_status add_bytes(ls_tokenizer *t)
{
    for (int i = 0; i < 256; i++) LS_TRY(vocab_put(&t->bpe.vocab, i, &(unsigned char){ byte_alphabet_at(i) }, 1, true));
    bpe_set_bytes(&t->bpe);
    return LS_OK;
}

static ls_status train(ls_tokenizer *t, const unsigned char *text, size_t bytes, const ls_bpe_options *o)
{
    struct words words = { 0 };
    struct merge_pair *merges = NULL;
    size_t count = 0;

    LS_TRY(tokenizer_add_stage(t, pattern_find(o->pattern)->regex));
    LS_TRY(add_bytes(t));
    ls_status st = words_count(&words, t, text, bytes);
    if (st == LS_OK) st = merges_learn(&words, t, (size_t)o->vocab - 1, &merges, &count);
    if (st == LS_OK) st = tokenizer_add_token(t, (int64_t)t->bpe.vocab.count, END_OF_TEXT, true, false);
    if (st == LS_OK) st = tokenizer_write_json(t, merges, count);
    mem_free(merges);
    words_free(&words);
    return st;
}

ls_status ls_tokenizer_train(const char *text, size_t bytes, const ls_bpe_options *options, ls_tokenizer **out)
{
    const ls_bpe_options defaults = LS_BPE_DEFAULTS, *o = options ? options : &defaults;
    ls_tokenizer *t;

    if (o->vocab < LEAST_VOCAB || o->vocab > VOCAB_MOST)
        return ls_fail(LS_EINVAL, "the vocabulary size is %d; must be %d (bytes and end-of-text) to %d", o->vocab, LEAST_VOCAB, VOCAB_MOST);
    if (!pattern_find(o->pattern)) return ls_fail(LS_EINVAL, "unknown pattern '%.40s'; use gpt2, r50k, p50k, cl100k or o200k", o->pattern);
    if (bytes == 0) return ls_fail(LS_EINVAL, "the text to learn from is empty");
    LS_TRY(utf8_check((const unsigned char *)text, bytes, "text"));
    LS_TRY(tokenizer_new(&t));
    ls_status st = train(t, (const unsigned char *)text, bytes, o);
    if (st == LS_OK)
        *out = t;
    else
        ls_tokenizer_close(&t);
    return st;
}
