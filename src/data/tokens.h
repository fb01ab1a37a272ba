/* tokens.h - the contents of an ls_tokens, and the table of file formats. */
#ifndef LS_DATA_TOKENS_H
#define LS_DATA_TOKENS_H

#include <stdbool.h>
#include "base/file.h"
#include "data/array.h"
#include "lockstep/data.h"

/* id, name, bytes, smallest id it can hold is < 0 */
#define TOKEN_TYPE_MAP(X) \
    X(U8, "u8", 1)        \
    X(I8, "i8", 1)        \
    X(U16, "u16", 2)      \
    X(I16, "i16", 2)      \
    X(I32, "i32", 4)      \
    X(U32, "u32", 4)      \
    X(I64, "i64", 8)

enum token_type {
#define TOKEN_TYPE_ENUM(id, name, bytes) TOKEN_##id,
    TOKEN_TYPE_MAP(TOKEN_TYPE_ENUM)
#undef TOKEN_TYPE_ENUM
        TOKEN_TYPES
};

struct ls_tokens {
    const unsigned char *data; /* count tokens of `type`, little-endian, aligned to their size */
    enum token_type type;
    size_t count;
    size_t *document; /* first token of each, [documents], then count; NULL: one document of all */
    size_t documents;
    const char *format;
    char *name;                 /* the file, for messages */
    struct file_map map, index; /* the mapped file that holds data; Megatron's .idx while it is read */
    void *owned;                /* or these pages hold data */
    size_t owned_bytes;
};

/* The functions that read and write a file format. */
struct token_format {
    /* t->map is the file, t->index Megatron's .idx; fills in data, type, count, documents. */
    ls_status (*read)(ls_tokens *t);
    ls_status (*write)(const ls_tokens *t, const char *path, int32_t vocab);
};

#define TOKEN_FORMAT_DECLARE(id, name) extern const struct token_format token_format_##id;
LS_TOKEN_FORMAT_MAP(TOKEN_FORMAT_DECLARE)
#undef TOKEN_FORMAT_DECLARE
const char *token_format_name(const struct token_format *format);
bool token_format_has_llmc_magic(const unsigned char *data, size_t bytes); /* any of llm.c's files */

const char *token_type_name(enum token_type type);
size_t token_type_bytes(enum token_type type);

/* Tokens appended one after another, in the smallest type that holds a vocabulary. */
struct token_buffer {
    enum token_type type;
    void *at;
    size_t count, bytes;
};
void token_buffer_open(struct token_buffer *b, int32_t vocab);
ls_status token_buffer_add(struct token_buffer *b, const int32_t *ids, size_t count); /* ids below vocab */
ls_status token_buffer_take(struct token_buffer *b, ls_tokens **out);                 /* empties b */
void token_buffer_close(struct token_buffer *b);                                      /* a no-op if empty */

/* Takes ownership of ids, which must be below vocab. */
ls_status tokens_from_ids(struct ids *ids, int32_t vocab, ls_tokens **out);
/* Reads a file from memory: bytes of the .bin and, for Megatron, of the .idx. The caller keeps them. */
ls_status tokens_from_memory(const struct token_format *format, struct file_map bin, struct file_map idx, const char *name,
                             ls_tokens **out);

/* Writes all tokens as u16, u32 or i32, checked against vocab. */
ls_status tokens_put(const ls_tokens *t, enum token_type type, int32_t vocab, file_writer *w);
/* LS_EINVAL unless every id below vocab fits the type. */
ls_status tokens_fit(const char *path, const struct token_format *format, enum token_type type, int32_t vocab);

/* "DIR/x.bin", "DIR/x.idx" and "DIR/x" all name the prefix "DIR/x". Returns a new string, or NULL when out of memory. */
char *megatron_path(const char *path, const char *extension);

#endif
