/* tokenizer_tiktoken.c - reads a .tiktoken file.
 *
 * One line per token: base64 of its bytes, a space, its rank in decimal, a newline (CR LF too); empty lines are skipped. The rank is the
 * token's id and its priority: two neighbors may merge if their bytes together are a token, and the lowest rank merges first. So the
 * merges are all splits of each token into two tokens, and a pre-token that is a token stays one token. Special tokens are not in the file:
 * the pattern defines their ids.
 */
#include <stdio.h>
#include "data/pattern.h"
#include "data/tokenizer.h"

enum { TOKEN_MOST = 4096 }; /* bytes of a token; the longest in use has 128 */

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* The bytes of text[length], padded with '=' to a multiple of four; -1 if it is not base64. */
static ptrdiff_t base64_read(const char *text, size_t length, unsigned char *out)
{
    size_t pad = length > 0 && text[length - 1] == '=' ? 1 + (length > 1 && text[length - 2] == '=') : 0;
    ptrdiff_t n = 0;
    uint32_t bits = 0;

    if (length == 0 || length % 4 != 0) return -1;
    for (size_t i = 0; i < length; i++) {
        int v = i < length - pad ? base64_value(text[i]) : 0;

        if (v < 0) return -1;
        bits = bits << 6 | (uint32_t)v;
        if (i % 4 != 3) continue;
        for (int shift = 16; shift >= 0; shift -= 8) out[n++] = (unsigned char)(bits >> shift);
        bits = 0;
    }
    return n - (ptrdiff_t)pad;
}

/* Digits only, at most VOCAB_MOST - 1; -1 otherwise. */
static int64_t rank_read(const char *text, size_t length)
{
    int64_t rank = 0;

    if (length == 0) return -1;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        rank = rank * 10 + (text[i] - '0');
        if (rank >= VOCAB_MOST) return -1;
    }
    return rank;
}

static ls_status read_line(ls_tokenizer *t, const char *line, size_t length, size_t number)
{
    unsigned char token[TOKEN_MOST];
    const char *space = memchr(line, ' ', length);
    size_t code = space ? (size_t)(space - line) : length;

    if (!space) return ls_fail(LS_EFORMAT, "line %zu: expected a token in base64, a space and a rank", number);
    if (code / 4 * 3 > sizeof token) return ls_fail(LS_EFORMAT, "line %zu: the token is too long: at most %d bytes", number, TOKEN_MOST);
    ptrdiff_t bytes = base64_read(line, code, token);
    if (bytes < 1) return ls_fail(LS_EFORMAT, "line %zu: '%.*s' is not base64", number, (int)MIN(code, 40), line);
    int64_t rank = rank_read(space + 1, length - code - 1);
    if (rank < 0)
        return ls_fail(LS_EFORMAT, "line %zu: '%.*s' is not a rank from 0 to %d", number, (int)MIN(length - code - 1, 40), space + 1,
                       VOCAB_MOST - 1);
    ls_status st = vocab_put(&t->bpe.vocab, rank, token, (size_t)bytes, true);
    return st == LS_OK ? st : ls_fail_at(st, "line %zu", number);
}

static ls_status read_lines(ls_tokenizer *t, const char *text, size_t bytes)
{
    size_t number = 1;

    for (size_t at = 0; at < bytes; number++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end ? (size_t)(end - text) - at : bytes - at, trimmed = length;

        if (trimmed > 0 && text[at + trimmed - 1] == '\r') trimmed--;
        if (trimmed > 0) LS_TRY(read_line(t, text + at, trimmed, number));
        at += length + 1;
    }
    return LS_OK;
}

/* Adds every split of every token into two tokens as a merge. */
static ls_status find_merges(struct bpe *b)
{
    for (size_t id = 0; id < b->vocab.count; id++) {
        size_t bytes = 0;
        const unsigned char *token = vocab_bytes(&b->vocab, (int64_t)id, &bytes);

        if (!token) continue;
        for (size_t cut = 1; cut < bytes; cut++) {
            int32_t left = vocab_find(&b->vocab, token, cut);
            int32_t right = left < 0 ? -1 : vocab_find(&b->vocab, token + cut, bytes - cut);

            if (right >= 0) LS_TRY(bpe_put_merge(b, left, right, (uint32_t)id, (int32_t)id));
        }
    }
    return LS_OK;
}

static ls_status check_bytes(const struct bpe *b)
{
    for (int i = 0; i < 256; i++)
        if (vocab_find(&b->vocab, &(unsigned char){ (unsigned char)i }, 1) < 0)
            return ls_fail(LS_EFORMAT, "no token for the single byte 0x%02x", i);
    return LS_OK;
}

static ls_status tokenizer_tiktoken_build(ls_tokenizer *t, const char *text, size_t bytes, const struct pattern_named *p)
{
    char name[32];

    LS_TRY(read_lines(t, text, bytes));
    LS_TRY(check_bytes(&t->bpe));
    LS_TRY(find_merges(&t->bpe));
    t->bpe.ignore_merges = true;
    LS_TRY(tokenizer_add_stage(t, p->regex));
    for (size_t i = 0; i < COUNT_OF(p->special) && p->special[i].text; i++)
        LS_TRY(tokenizer_add_token(t, p->special[i].id, p->special[i].text, true, false));
    snprintf(name, sizeof name, "%s.tiktoken", p->name);
    return tokenizer_finish(t, text, bytes, name);
}

ls_status tokenizer_read_tiktoken(const char *text, size_t bytes, const char *what, const char *pattern, ls_tokenizer **out)
{
    const struct pattern_named *p = pattern_find(pattern);
    ls_tokenizer *t;

    if (!p) return ls_fail(LS_EINVAL, "%s: unknown pattern '%.40s'; use gpt2, r50k, p50k, cl100k or o200k", what, pattern);
    LS_TRY(tokenizer_new(&t));
    ls_status st = tokenizer_tiktoken_build(t, text, bytes, p);
    if (st != LS_OK) {
        ls_tokenizer_close(&t);
        return ls_fail_at(st, "%s", what);
    }
    *out = t;
    return LS_OK;
}
