/* tokens_megatron.c - Megatron-LM's indexed dataset: PREFIX.bin holds the tokens, PREFIX.idx their positions.
 *
 * .idx, little-endian, unaligned from byte 17 on:
 *    0  "MMIDIDX\0\0"             26  u64 D, documents + 1
 *    9  u64 version, 1            34  S x i32 lengths, in tokens
 *   17  u8 type                       S x i64 offsets into .bin, in bytes: the running sum of the lengths
 *   18  u64 S, sequences              D x i64 first sequence of each document; first 0, last S and nothing after it (S x i8 modes would be
 * multimodal data: rejected). Types: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16; the floating ones are not tokens. The sequences
 * fill .bin exactly. All of this is checked. Files are written with one sequence per document, as Megatron's own preprocessing does; u16
 * below a vocabulary of 65,500, else i32.
 */
#include "data/tokens.h"

enum { INDEX_HEADER = 34, U16_VOCAB = 65500 };
static const unsigned char magic[9] = "MMIDIDX\0";

static uint64_t u64_at(const unsigned char *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static ls_status type_of_code(unsigned code, enum token_type *out)
{
    static const int types[] = { -1, TOKEN_U8, TOKEN_I8, TOKEN_I16, TOKEN_I32, TOKEN_I64, -1, -1, TOKEN_U16 };

    if (code >= COUNT_OF(types) || types[code] < 0)
        return ls_fail(LS_EFORMAT, "index: type %u is not an integer type (1, 2, 3, 4, 5, 8)", code);
    *out = (enum token_type)types[code];
    return LS_OK;
}

struct index {
    uint64_t sequences, borders;
    const unsigned char *length, *offset, *border;
};

static ls_status read_header(const ls_tokens *t, enum token_type *type, struct index *x)
{
    const unsigned char *p = t->index.data;
    size_t bytes = t->index.bytes, twelve, eight, need;

    if (bytes < INDEX_HEADER || memcmp(p, magic, sizeof magic) != 0)
        return ls_fail(LS_EFORMAT, "index: not Megatron's: it does not start with MMIDIDX (%zu bytes)", bytes);
    if (u64_at(p + 9) != 1) return ls_fail(LS_EFORMAT, "index: version %llu, expected 1", (unsigned long long)u64_at(p + 9));
    LS_TRY(type_of_code(p[17], type));
    x->sequences = u64_at(p + 18);
    x->borders = u64_at(p + 26);
    if (x->borders < 1) return ls_fail(LS_EFORMAT, "index: no document boundary; expected at least the first");
    if (!size_mul(x->sequences, 12, &twelve) || !size_mul(x->borders, 8, &eight) || !size_add(twelve, eight, &need) ||
        !size_add(need, INDEX_HEADER, &need) || need != bytes)
        return ls_fail(LS_EFORMAT, "index: %zu bytes do not hold exactly %llu sequences and %llu document boundaries", bytes,
                       (unsigned long long)x->sequences, (unsigned long long)x->borders);
    x->length = p + INDEX_HEADER;
    x->offset = x->length + 4 * x->sequences;
    x->border = x->offset + 8 * x->sequences;
    return LS_OK;
}

/* Derives documents from sequences in one walk over the lengths and the boundaries. */
static ls_status read_sequences(ls_tokens *t, const struct index *x)
{
    size_t width = token_type_bytes(t->type), capacity = t->map.bytes / width, tokens = 0;
    uint64_t border = 0;

    for (uint64_t i = 0; i <= x->sequences; i++) {
        int32_t length = 0;

        for (; border < x->borders && u64_at(x->border + 8 * border) == i; border++) t->document[border] = tokens;
        if (border < x->borders && u64_at(x->border + 8 * border) < i)
            return ls_fail(LS_EFORMAT, "index: document boundary %llu is below the one before", (unsigned long long)border);
        if (border == 0)
            return ls_fail(LS_EFORMAT, "index: the first document starts at sequence %llu, not 0", (unsigned long long)u64_at(x->border));
        if (i == x->sequences) break;
        memcpy(&length, x->length + 4 * i, sizeof length);
        if (length < 0 || (size_t)length > capacity - tokens)
            return ls_fail(LS_EFORMAT, "index: sequence %llu has %d tokens, but the .bin has only %zu left", (unsigned long long)i, length,
                           capacity - tokens);
        if (u64_at(x->offset + 8 * i) != (uint64_t)tokens * width)
            return ls_fail(LS_EFORMAT, "index: sequence %llu starts at byte %llu; expected %zu", (unsigned long long)i,
                           (unsigned long long)u64_at(x->offset + 8 * i), tokens * width);
        tokens += (size_t)length;
    }
    if (border != x->borders || u64_at(x->border + 8 * (x->borders - 1)) != x->sequences)
        return ls_fail(LS_EFORMAT, "index: the last document boundary is not %llu, the number of sequences",
                       (unsigned long long)x->sequences);
    if (tokens * width != t->map.bytes)
        return ls_fail(LS_EFORMAT, "index: its sequences have %zu tokens of %zu bytes, the .bin %zu bytes", tokens, width, t->map.bytes);
    t->count = tokens;
    return LS_OK;
}

static ls_status read_megatron(ls_tokens *t)
{
    struct index x = { 0 };

    LS_TRY(read_header(t, &t->type, &x));
    t->document = mem_array(MEM_OTHER, x.borders, sizeof *t->document);
    if (!t->document) return LS_ENOMEM;
    t->documents = x.borders - 1;
    t->data = t->map.data;
    return read_sequences(t, &x);
}

static ls_status put_index(const ls_tokens *t, enum token_type type, file_writer *w)
{
    uint64_t documents = ls_tokens_documents(t), version = 1, borders = documents + 1;
    unsigned char code = type == TOKEN_U16 ? 8 : 4;

    LS_TRY(file_writer_put(w, magic, sizeof magic));
    LS_TRY(file_writer_put(w, &version, sizeof version));
    LS_TRY(file_writer_put(w, &code, sizeof code));
    LS_TRY(file_writer_put(w, &documents, sizeof documents));
    LS_TRY(file_writer_put(w, &borders, sizeof borders));
    for (size_t i = 0; i < documents; i++) {
        ls_range r = ls_tokens_document(t, i);
        int32_t length = (int32_t)(r.end - r.begin);

        if (r.end - r.begin > INT32_MAX)
            return ls_fail(LS_EINVAL, "document %zu has %zu tokens: Megatron's index holds at most %d", i, r.end - r.begin, INT32_MAX);
        LS_TRY(file_writer_put(w, &length, sizeof length));
    }
    for (size_t i = 0; i < documents; i++) {
        uint64_t offset = (uint64_t)ls_tokens_document(t, i).begin * token_type_bytes(type);

        LS_TRY(file_writer_put(w, &offset, sizeof offset));
    }
    for (uint64_t i = 0; i < borders; i++) LS_TRY(file_writer_put(w, &i, sizeof i));
    return LS_OK;
}

/* The .bin is published first: a new .idx never describes an old .bin. If the second fails, a reader detects that the sizes do not
 * match. */
static ls_status write_both(const ls_tokens *t, const char *bin, const char *idx, enum token_type type, int32_t vocab)
{
    file_writer *data, *index = NULL;

    LS_TRY(file_writer_open(bin, &data));
    ls_status st = file_writer_open(idx, &index);
    if (st == LS_OK) st = tokens_put(t, type, vocab, data);
    if (st == LS_OK) st = put_index(t, type, index);
    if (st == LS_OK) st = file_writer_publish(&data);
    if (st == LS_OK) st = file_writer_publish(&index);
    file_writer_abandon(&data);
    file_writer_abandon(&index);
    return st;
}

static ls_status write_megatron(const ls_tokens *t, const char *path, int32_t vocab)
{
    enum token_type type = vocab < U16_VOCAB ? TOKEN_U16 : TOKEN_I32;
    char *bin = megatron_path(path, ".bin"), *idx = megatron_path(path, ".idx");
    ls_status st = bin && idx ? tokens_fit(bin, &token_format_megatron, type, vocab) : LS_ENOMEM;

    if (st == LS_OK) st = write_both(t, bin, idx, type, vocab);
    mem_free(bin);
    mem_free(idx);
    return st;
}

const struct token_format token_format_megatron = { read_megatron, write_megatron };
