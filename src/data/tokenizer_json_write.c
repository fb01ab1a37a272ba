/* tokenizer_json_write.c - tokenizer.json of a tokenizer that lockstep made: `bytes`, or trained here.
 *
 * Writes what tokenizer_json.c reads and the tokenizers package loads: added tokens, a Split by the stage's pattern if there is one,
 * ByteLevel, the vocabulary by id, merges as "a b" in order of rank.
 */
#include <math.h>
#include "base/json.h"
#include "data/byte_alphabet.h"
#include "data/tokenizer.h"

static void put_null(struct json_out *j, const char *key) { json_put_real(j, key, NAN); }

static void put_byte_level(struct json_out *j, const char *key)
{
    json_begin_object(j, key);
    json_put_string(j, "type", "ByteLevel");
    json_put_bool(j, "add_prefix_space", 0);
    json_put_bool(j, "trim_offsets", 1);
    json_put_bool(j, "use_regex", 0);
    json_end_object(j);
}

static void put_added(struct json_out *j, const ls_tokenizer *t)
{
    json_begin_array(j, "added_tokens");
    for (size_t i = 0; i < t->raw.count; i++) {
        json_begin_object(j, NULL);
        json_put_int(j, "id", t->raw.token[i].id);
        json_put_string(j, "content", END_OF_TEXT);
        json_put_bool(j, "single_word", 0);
        json_put_bool(j, "lstrip", 0);
        json_put_bool(j, "rstrip", 0);
        json_put_bool(j, "normalized", 0);
        json_put_bool(j, "special", 1);
        json_end_object(j);
    }
    json_end_array(j);
}

static void put_pre_tokenizer(struct json_out *j, const ls_tokenizer *t)
{
    if (t->stages == 0) {
        put_byte_level(j, "pre_tokenizer");
        return;
    }
    json_begin_object(j, "pre_tokenizer");
    json_put_string(j, "type", "Sequence");
    json_begin_array(j, "pretokenizers");
    json_begin_object(j, NULL);
    json_put_string(j, "type", "Split");
    json_begin_object(j, "pattern");
    json_put_string(j, "Regex", t->stage[0].regex);
    json_end_object(j);
    json_put_string(j, "behavior", "Isolated");
    json_put_bool(j, "invert", 0);
    json_end_object(j);
    put_byte_level(j, NULL);
    json_end_array(j);
    json_end_object(j);
}

/* text = the token in the byte alphabet; returns its length. text must hold 2 bytes for each of the token's, plus one. */
static size_t write_token(const ls_tokenizer *t, int64_t id, char *text)
{
    size_t bytes = 0;
    const unsigned char *token = vocab_bytes(&t->bpe.vocab, id, &bytes);
    size_t n = byte_alphabet_write(token, bytes, text);

    text[n] = '\0';
    return n;
}

static void put_model(struct json_out *j, const ls_tokenizer *t, const struct merge_pair *merges, size_t n, char *text)
{
    static const char *const nulls[] = { "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix" };
    static const char *const falses[] = { "fuse_unk", "byte_fallback", "ignore_merges" };

    json_begin_object(j, "model");
    json_put_string(j, "type", "BPE");
    for (size_t i = 0; i < COUNT_OF(nulls); i++) put_null(j, nulls[i]);
    for (size_t i = 0; i < COUNT_OF(falses); i++) json_put_bool(j, falses[i], 0);
    json_begin_object(j, "vocab");
    for (size_t id = 0; id < t->bpe.vocab.count; id++) {
        write_token(t, (int64_t)id, text);
        json_put_int(j, text, (int64_t)id);
    }
    json_end_object(j);
    json_begin_array(j, "merges");
    for (size_t i = 0; i < n; i++) {
        size_t at = write_token(t, merges[i].left, text);

        text[at++] = ' ';
        write_token(t, merges[i].right, text + at);
        json_put_string(j, NULL, text);
    }
    json_end_array(j);
    json_end_object(j);
}

static size_t longest_token(const ls_tokenizer *t)
{
    size_t longest = 1;

    for (size_t i = 0; i < t->bpe.vocab.count; i++) longest = MAX(longest, t->bpe.vocab.token[i].bytes);
    return longest;
}

ls_status tokenizer_write_json(ls_tokenizer *t, const struct merge_pair *merges, size_t n)
{
    static const char *const nulls[] = { "truncation", "padding", "normalizer", "post_processor" };
    struct json_out j = { 0 };
    char *text = mem_array(MEM_OTHER, longest_token(t) + 1, 4);

    ASSERT(t->stages <= 1 && t->normalized.count == 0 && !t->bpe.ignore_merges);
    if (!text) return LS_ENOMEM;
    json_begin_object(&j, NULL);
    json_put_string(&j, "version", "1.0");
    for (size_t i = 0; i < COUNT_OF(nulls); i++) put_null(&j, nulls[i]);
    put_added(&j, t);
    put_pre_tokenizer(&j, t);
    put_byte_level(&j, "decoder");
    put_model(&j, t, merges, n, text);
    json_end_object(&j);
    mem_free(text);
    ls_status st = json_out_status(&j);
    if (st == LS_OK) st = tokenizer_finish(t, j.text, j.bytes, TOKENIZER_JSON);
    json_out_free(&j);
    return st;
}
