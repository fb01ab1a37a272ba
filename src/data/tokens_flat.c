/* tokens_flat.c - the formats without an index: llm.c's two, and nanoGPT's. All little-endian.
 *
 * llm.c: a header of 256 i32: [0] magic, [1] version, [2] number of tokens n < 2^31, the rest 0; then n tokens to the
 * end of the file, exactly.
 *   GPT-2    magic 20240520, version 1, u16
 *   Llama 3  magic 20240801, version 7, u32
 * Read as nanoGPT's tokens, either magic would begin with an id (55688, 55969) that GPT-2 does not have: so the header can be distinguished
 * from them.
 * nanoGPT: u16 tokens and nothing else.
 */
#include "data/tokens.h"

enum { HEADER_INTS = 256, HEADER_BYTES = 4 * HEADER_INTS };

struct llmc {
    int32_t magic, version;
    enum token_type type;
};
static const struct llmc gpt2 = { 20240520, 1, TOKEN_U16 }, llama3 = { 20240801, 7, TOKEN_U32 };

/* Other files of llm.c, by magic, so that the message can name them. */
static const struct {
    int32_t magic;
    const char *what;
} others[] = {
    { 20240522, "evaluation examples" }, { 20240326, "GPT-2 weights" },    { 20240327, "debug state" },
    { 20240328, "a tokenizer" },         { 20240527, "a training state" }, { 20240803, "Llama 3 weights" },
};

bool token_format_has_llmc_magic(const unsigned char *data, size_t bytes)
{
    int32_t magic;

    if (bytes < HEADER_BYTES) return false;
    memcpy(&magic, data, sizeof magic);
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (magic == others[i].magic) return true;
    return magic == gpt2.magic || magic == llama3.magic;
}

static ls_status check_header(const struct llmc *f, const int32_t *header, size_t bytes)
{
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (header[0] == others[i].magic) return ls_fail(LS_EFORMAT, "llm.c's %s, not tokens", others[i].what);
    if (header[0] != f->magic) return ls_fail(LS_EFORMAT, "magic %d, expected %d", header[0], f->magic);
    if (header[1] != f->version) return ls_fail(LS_EFORMAT, "version %d, expected %d", header[1], f->version);
    if (header[2] < 0 || bytes != HEADER_BYTES + (uint64_t)header[2] * token_type_bytes(f->type))
        return ls_fail(LS_EFORMAT, "%zu bytes, but the header says %d tokens of %zu bytes after %d", bytes, header[2],
                       token_type_bytes(f->type), HEADER_BYTES);
    return LS_OK;
}

static ls_status read_llmc(ls_tokens *t, const struct llmc *f)
{
    int32_t header[HEADER_INTS];

    if (t->map.bytes < HEADER_BYTES) return ls_fail(LS_EFORMAT, "%zu bytes, shorter than llm.c's header of %d", t->map.bytes, HEADER_BYTES);
    memcpy(header, t->map.data, sizeof header);
    LS_TRY(check_header(f, header, t->map.bytes));
    t->data = t->map.data + HEADER_BYTES;
    t->type = f->type;
    t->count = (size_t)header[2];
    return LS_OK;
}

static ls_status read_gpt2(ls_tokens *t) { return read_llmc(t, &gpt2); }
static ls_status read_llama3(ls_tokens *t) { return read_llmc(t, &llama3); }

static ls_status read_nanogpt(ls_tokens *t)
{
    if (t->map.bytes % 2) return ls_fail(LS_EFORMAT, "%zu bytes: u16 tokens need an even number", t->map.bytes);
    t->data = t->map.data;
    t->type = TOKEN_U16;
    t->count = t->map.bytes / 2;
    return LS_OK;
}

static ls_status write_flat(const ls_tokens *t, const char *path, const void *header, size_t header_bytes, enum token_type type,
                            int32_t vocab)
{
    file_writer *w;

    LS_TRY(file_writer_open(path, &w));
    ls_status st = file_writer_put(w, header, header_bytes);
    if (st == LS_OK) st = tokens_put(t, type, vocab, w);
    if (st == LS_OK) return file_writer_publish(&w);
    file_writer_abandon(&w);
    return st;
}

static ls_status write_llmc(const ls_tokens *t, const char *path, const struct token_format *format, const struct llmc *f, int32_t vocab)
{
    int32_t header[HEADER_INTS] = { f->magic, f->version, (int32_t)t->count };

    LS_TRY(tokens_fit(path, format, f->type, vocab));
    if (t->count > INT32_MAX) return ls_fail(LS_EINVAL, "%s: %zu tokens: llm.c's header holds at most %d", path, t->count, INT32_MAX);
    return write_flat(t, path, header, sizeof header, f->type, vocab);
}

static ls_status write_gpt2(const ls_tokens *t, const char *path, int32_t vocab)
{
    return write_llmc(t, path, &token_format_llmc, &gpt2, vocab);
}

static ls_status write_llama3(const ls_tokens *t, const char *path, int32_t vocab)
{
    return write_llmc(t, path, &token_format_llmc_llama3, &llama3, vocab);
}

static ls_status write_nanogpt(const ls_tokens *t, const char *path, int32_t vocab)
{
    LS_TRY(tokens_fit(path, &token_format_nanogpt, TOKEN_U16, vocab));
    return write_flat(t, path, NULL, 0, TOKEN_U16, vocab);
}

const struct token_format token_format_llmc = { read_gpt2, write_gpt2 };
const struct token_format token_format_llmc_llama3 = { read_llama3, write_llama3 };
const struct token_format token_format_nanogpt = { read_nanogpt, write_nanogpt };
