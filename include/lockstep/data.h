/* data.h - text into tokens, token files, and tokens into samples.
 *
 * A tokenizer turns UTF-8 text into ids 0 .. vocab-1 and back. Patterns split text into pre-tokens, then the bytes of each are merged pair
 * by pair (byte-level BPE). `bytes`, the embedded default, merges nothing:
 * id = byte, and 256 is the end-of-text token. Tokens are a sequence of ids from a file (mapped, never
 * copied) or from text. A sampler divides a range of them into windows and orders these; a loader prepares batches in a background thread.
 *   1. Text is valid UTF-8; anything else is LS_EFORMAT with byte offset and line. Decoding gives bytes, which may
 *      end inside a character.
 *   2. Files are not trusted: every size is checked, and each id that is handed out is checked against the vocabulary.
 *   3. Sample i is a pure function of (tokens, part, seq_len, seed, i). There is no other state to save: a run resumed at sample i
 *      continues exactly.
 *   4. The caller owns the object that _open, _train or _encode returns, and releases it with _close. Objects do not change afterwards
 *      (except by ls_tokens_mark) and may be shared by threads; a loader belongs to one thread.
 *
 *   LS_TRY(ls_tokenizer_open("bytes", &t));
 *   LS_TRY(ls_tokenizer_encode(t, text, bytes, NULL, &tokens));
 *   LS_TRY(ls_tokens_split(tokens, 0.05, seq_len, &train, &validation));
 *   LS_TRY(ls_sampler_init(&sampler, tokens, train, seq_len, ls_tokenizer_vocab(t), seed, 1));
 *   LS_TRY(ls_loader_open(&sampler, &(ls_batches){ .batch = 8, .first = 8 * steps_done }, &loader));
 *   LS_TRY(ls_loader_next(loader, &x, &y));     // x, y [8, seq_len]
 */
#ifndef LS_DATA_H
#define LS_DATA_H

#include <stddef.h>
#include <stdint.h>
#include "lockstep/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_tokenizer ls_tokenizer;
typedef struct ls_tokens ls_tokens;
typedef struct ls_loader ls_loader;

/* ---- tokenizers ---- */

/* Opens a tokenizer:
 *   "bytes"                    the embedded default: ids 0..255 are the bytes, 256 is <|endoftext|>
 *   PATH.json                  Hugging Face tokenizer.json: byte-level BPE; an unsupported part is rejected by name
 *   PATH.tiktoken[:PATTERN]    ranks, one "base64 rank" a line; PATTERN is gpt2, r50k, p50k, cl100k or o200k and
 *                              is inferred from the file's name if it is not given
 *   FOLDER                     tokenizer.json in it, or one of the names that ls_tokenizer_save writes
 */
ls_status ls_tokenizer_open(const char *spec, ls_tokenizer **out);
void ls_tokenizer_close(ls_tokenizer **t); /* sets *t to NULL; NULL and pointer to NULL are no-ops */

/* vocab: ids of the result, end-of-text included, at least 257. pattern: as above, gpt2 .. o200k. */
typedef struct ls_bpe_options {
    int32_t vocab;
    const char *pattern;
} ls_bpe_options;
#define LS_BPE_DEFAULTS \
    {                   \
        8192, "cl100k"  \
    }

/* Learns byte-level BPE from text[bytes]: ids 0..255 are single bytes in GPT-2's order, then one id a merge, most
 * frequent pair first (ties: the smaller pair of ids), and <|endoftext|> last. A text with fewer pairs than requested gives a smaller
 * vocabulary. The same text gives the same tokenizer. options NULL: the defaults. */
ls_status ls_tokenizer_train(const char *text, size_t bytes, const ls_bpe_options *options, ls_tokenizer **out);

/* Writes the tokenizer into an existing folder so that ls_tokenizer_open(folder) reopens it: tokenizer.json (as read, or written by
 * lockstep in the same format) or PATTERN.tiktoken. */
ls_status ls_tokenizer_save(const ls_tokenizer *t, const char *folder);

int32_t ls_tokenizer_vocab(const ls_tokenizer *t); /* vocabulary size: every id is smaller; some may be unused */
int32_t ls_tokenizer_end(const ls_tokenizer *t);   /* end-of-text; -1 if the tokenizer has none */
int32_t ls_tokenizer_begin(const ls_tokenizer *t); /* what a tokenizer.json puts before a text; -1: nothing */
int32_t ls_tokenizer_find(const ls_tokenizer *t, const char *token, size_t bytes); /* id of these bytes; -1: none */
/* Bytes of one token, borrowed; NULL when the id is unused or outside the vocabulary. */
const char *ls_tokenizer_token(const ls_tokenizer *t, int32_t id, size_t *bytes);

/* specials: special tokens spelled out in the text become their ids (0: they are text like any other).
 * end: the end-of-text token is appended. threads: the process's thread team shares the work. */
typedef struct ls_encode_options {
    int specials, end, threads;
} ls_encode_options;

/* options NULL: all 0. Empty text gives no tokens. */
ls_status ls_tokenizer_encode(const ls_tokenizer *t, const char *text, size_t bytes, const ls_encode_options *options, ls_tokens **out);
/* text[*bytes] = the bytes of ids[count]. Writes at most room bytes; *bytes is the full length, so a call with room 0 measures it. */
ls_status ls_tokenizer_decode(const ls_tokenizer *t, const int32_t *ids, size_t count, char *text, size_t room, size_t *bytes);

/* ---- tokens ---- */

/* The formats of token files: FORMAT(name in the code, name in options and messages). All are little-endian; each is specified in the file
 * that reads it:
 *   llmc          llm.c's GPT-2 tokens: 1024-byte header, u16
 *   llmc-llama3   llm.c's Llama 3 tokens: 1024-byte header, u32
 *   nanogpt       u16, no header
 *   megatron      PREFIX.idx and PREFIX.bin: u8, i8, i16, u16, i32 or i64, with documents */
#define LS_TOKEN_FORMAT_MAP(FORMAT)    \
    FORMAT(llmc, "llmc")               \
    FORMAT(llmc_llama3, "llmc-llama3") \
    FORMAT(nanogpt, "nanogpt")         \
    FORMAT(megatron, "megatron")

/* format NULL: llmc by the header, megatron if there is an .idx beside it, nanogpt for any other .bin. */
ls_status ls_tokens_open(const char *path, const char *format, ls_tokens **out);
/* Writes the file(s), which appear complete or not at all. LS_EINVAL when vocab does not fit the format's type. Megatron takes u16 below a
 * vocabulary of 65,500, else i32; documents are those of ls_tokens_document. */
ls_status ls_tokens_save(const ls_tokens *tokens, const char *path, const char *format, int32_t vocab);
void ls_tokens_close(ls_tokens **tokens);

size_t ls_tokens_count(const ls_tokens *tokens);
const char *ls_tokens_type(const ls_tokens *tokens);   /* "u16" */
const char *ls_tokens_format(const ls_tokens *tokens); /* as above; "text" for encoded text */
/* out[count] = tokens [first, first + count). LS_EFORMAT with file and position if one is not in 0 .. vocab-1. */
ls_status ls_tokens_read(const ls_tokens *tokens, size_t first, size_t count, int32_t vocab, int32_t *out);
ls_status ls_tokens_check(const ls_tokens *tokens, int32_t vocab); /* checks all tokens like this */

/* Documents follow one another without gaps. Megatron files list their documents; in other formats each document ends after an end token,
 * once ls_tokens_mark has looked for these; until then all tokens are one document. */
ls_status ls_tokens_mark(ls_tokens *tokens, int32_t end);
size_t ls_tokens_documents(const ls_tokens *tokens);

typedef struct ls_range {
    size_t begin, end;
} ls_range; /* tokens [begin, end) */

ls_range ls_tokens_document(const ls_tokens *tokens, size_t i); /* i < documents */
/* Validation is the last `fraction` of the tokens, at least one sample (seq_len + 1 tokens), 0 for fraction 0;
 * training is everything before it. The split is at the document boundary nearest to the requested position if that changes the size of the
 * validation part by at most half, else at a multiple of seq_len. LS_EINVAL with the numbers if a part holds no sample. */
ls_status ls_tokens_split(const ls_tokens *tokens, double fraction, size_t seq_len, ls_range *train, ls_range *validation);

/* ---- samples ---- */

/* Windows of seq_len + 1 tokens at multiples of seq_len: neighbors share one token, so that each token of the part except the first is a
 * target once per epoch; tokens left over at the end are not used. Sample i is window p(i mod n) of epoch i / n, where p is a permutation
 * keyed by (seed, epoch), or the identity without shuffle. A plain value that borrows the tokens. */
typedef struct ls_sampler {
    const ls_tokens *tokens;
    size_t begin;     /* first token of the part */
    size_t seq_len;   /* T */
    uint64_t samples; /* n: samples per epoch; >= 1 */
    uint64_t seed;
    int32_t vocab;
    int shuffle;
} ls_sampler;

ls_status ls_sampler_init(ls_sampler *s, const ls_tokens *tokens, ls_range part, size_t seq_len, int32_t vocab, uint64_t seed, int shuffle);
size_t ls_sampler_position(const ls_sampler *s, uint64_t index); /* first token of a sample */
/* x[T] = tokens [p, p + T), y[T] = tokens [p + 1, p + T + 1). */
ls_status ls_sampler_get(const ls_sampler *s, uint64_t index, int32_t *x, int32_t *y);

/* Batch k of a loader holds samples first + (k / per_step) * step + offset + (k % per_step) * batch, and the batch-1
 * that follow. A step has `step` samples over all ranks; each rank gives its own offset and `rows`, its number of these samples. Rows of
 * its batches beyond those are padding: targets -1, weight zero. Zeros mean: per_step 1, step per_step * batch, rows per_step * batch,
 * depth 4. */
typedef struct ls_batches {
    size_t batch;    /* B: rows per batch */
    uint64_t first;  /* global index of the first sample of the first step */
    size_t per_step; /* batches per step on this rank (accumulation) */
    uint64_t step;   /* samples per step over all ranks */
    uint64_t offset; /* index of this rank's first sample within a step */
    uint64_t rows;   /* samples per step on this rank */
    int none;        /* this rank has no samples: rows is 0 and does not mean the default */
    size_t depth;    /* batches kept ready */
} ls_batches;

/* Starts the thread. The sampler is copied; its tokens are borrowed until the loader is closed. */
ls_status ls_loader_open(const ls_sampler *s, const ls_batches *batches, ls_loader **out);
/* x and y [B,T], borrowed until the next call. A failure of the thread is returned at the batch that failed, and by every call after it. */
ls_status ls_loader_next(ls_loader *loader, const int32_t **x, const int32_t **y);
void ls_loader_close(ls_loader **loader);

/* ---- images ---- */

/* Synthetic images: shapes of up to ten classes at random places, in random colors, with noise. A plain value; picture n
 * is a pure function of (seed, n), so every rank draws the same. Sample i is picture first + p(i mod samples) of epoch
 * i / samples, where p is a permutation keyed by (seed, epoch), or the identity without shuffle. Two sets share no picture if they have the
 * same seed and their ranges [first, first + samples) are disjoint. */
enum { LS_IMAGE_CLASSES = 10 };
typedef struct ls_images {
    size_t channels, height, width, classes;
    double noise; /* standard deviation of the noise; shapes differ from the background by 0.5 to 1.5 */
    uint64_t seed;
    uint64_t first, samples; /* index of the first picture; pictures per epoch */
    int shuffle;
} ls_images;
#define LS_IMAGES_DEFAULTS                 \
    {                                      \
        3, 16, 16, 10, 0.2, 0, 0, 10000, 1 \
    }

ls_status ls_images_check(const ls_images *images);                  /* checks ranges; the functions below require images that passed */
uint64_t ls_images_picture(const ls_images *images, uint64_t index); /* number of the picture that is sample `index` */
/* image[channels*height*width], label 0 .. classes-1 */
void ls_images_get(const ls_images *images, uint64_t index, float *image, int32_t *label);
const char *ls_images_class(int32_t label); /* "disc"; NULL: none of them */

#ifdef __cplusplus
}
#endif
#endif
