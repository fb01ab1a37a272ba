/* tokenizer.h - the contents of an ls_tokenizer, and the functions that build one.
 *
 * Encoding a text: find added tokens in the raw text; apply form C; find added tokens in the normalized text; run the stages, each of which
 * splits the pre-tokens of the one before; apply BPE to each pre-token.
 */
#ifndef LS_DATA_TOKENIZER_H
#define LS_DATA_TOKENIZER_H

#include "data/added.h"
#include "data/bpe.h"
#include "data/split.h"
#include "lockstep/data.h"

enum { STAGES_MOST = 8 };
#define END_OF_TEXT    "<|endoftext|>"
#define TOKENIZER_JSON "tokenizer.json"

/* Splits at the matches of a pattern; without a pattern, puts a space before a pre-token that does not start with one. */
struct stage {
    char *regex;
    struct split *split;
};

struct ls_tokenizer {
    struct bpe bpe;
    bool nfc;
    struct stage stage[STAGES_MOST];
    int stages;
    struct added raw, normalized;
    int32_t end, begin; /* -1: none */
    char *source;       /* the source file's text, [source_bytes] */
    size_t source_bytes;
    char source_name[32]; /* the source file's name */
};

ls_status tokenizer_new(ls_tokenizer **out);
/* regex NULL: the stage that prepends a space. */
ls_status tokenizer_add_stage(ls_tokenizer *t, const char *regex);
/* Adds an added token, which may already be in the vocabulary. */
ls_status tokenizer_add_token(ls_tokenizer *t, int64_t id, const char *text, bool special, bool normalized);
/* Call once everything is added: builds the derived tables and copies the source. */
ls_status tokenizer_finish(ls_tokenizer *t, const char *source, size_t bytes, const char *source_name);

/* Readers of a file's text; `what` names it in messages. */
ls_status tokenizer_read_json(const char *text, size_t bytes, const char *what, ls_tokenizer **out);
ls_status tokenizer_read_tiktoken(const char *text, size_t bytes, const char *what, const char *pattern, ls_tokenizer **out);

/* tokenizer.json of a tokenizer that lockstep made: merges[n] in order of rank. Finishes t. */
struct merge_pair {
    int32_t left, right;
};
ls_status tokenizer_write_json(ls_tokenizer *t, const struct merge_pair *merges, size_t n);

enum { ENCODE_CHUNK = 64 << 10 };
/* Receives the next ids of a text. Any status except LS_OK ends the encoding with that status. */
typedef ls_status ids_fn(void *ctx, const int32_t *ids, size_t count);
/* ls_tokenizer_encode with tasks of about chunk_bytes; passes the ids to fn task by task, in order. */
ls_status tokenizer_encode_each(const ls_tokenizer *t, const char *text, size_t bytes, const ls_encode_options *options, size_t chunk_bytes,
                                ids_fn *fn, void *ctx);
/* The same, appending to ids. */
ls_status tokenizer_encode_ids(const ls_tokenizer *t, const char *text, size_t bytes, const ls_encode_options *options, size_t chunk_bytes,
                               struct ids *out);

#endif
