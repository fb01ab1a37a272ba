/* tokenizer_json.c - reads Hugging Face's tokenizer.json of the byte-level BPE kind.
 *
 * Supported, by top-level key; anything else is LS_EUNSUPPORTED by name:
 *   added_tokens    id, content, special, normalized; lstrip, rstrip and single_word are false
 *   normalizer      null, NFC, or a Sequence of them
 *   pre_tokenizer   ByteLevel {add_prefix_space, use_regex}, or a Sequence that ends in it, before it
 *                   Split {pattern.Regex, Isolated, not inverted} and Digits {individual_digits}
 *   post_processor  null, ByteLevel, TemplateProcessing, or a Sequence of these. lockstep puts no tokens around a text;
 *                   the first that a template puts before one is ls_tokenizer_begin()
 *   decoder         null or ByteLevel
 *   truncation, padding   null
 *   model           BPE: vocab {token: id}, merges ["a b"] or [["a","b"]], ignore_merges; no dropout, prefix, suffix or
 *                   byte_fallback. Tokens are written in the byte alphabet
 * Types are checked first, by tokenizer_schema.c.
 * An added token of the vocabulary that is not in the byte alphabet represents its own UTF-8 bytes.
 */
#include "base/json.h"
#include "data/byte_alphabet.h"
#include "data/tokenizer.h"
#include "data/tokenizer_schema.h"
#include "data/pattern.h"

/* Rust's char::is_numeric, which Digits uses, follows Unicode 17.0: 13 more code points than \p{N}. */
#define NUMERIC "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]"

static const char *tokenizer_json_type_of(const json_node *n) { return json_string(json_get(n, "type"), "(no type)"); }
static bool is_type(const json_node *n, const char *type) { return strcmp(tokenizer_json_type_of(n), type) == 0; }
static bool is_null(const json_node *n) { return json_kind_of(n) == JSON_NONE || json_kind_of(n) == JSON_NULL; }

static ls_status tokenizer_json_refuse(const char *section, const char *component)
{
    return ls_fail(LS_EUNSUPPORTED, "%s %.60s is not supported", section, component);
}

/* LS_EUNSUPPORTED if the object's member exists and is neither null nor (for a bool) false nor "". */
static ls_status expect_unset(const json_node *object, const char *key, const char *section)
{
    const json_node *n = json_get(object, key);

    if (is_null(n) || json_bool(n, 1) == 0 || json_string(n, "x")[0] == '\0' || json_real(n, 1) == 0) return LS_OK;
    return tokenizer_json_refuse(section, key);
}

/* ---- model ---- */

static ls_status read_token(struct bpe *b, const char *text, const json_node *id, unsigned char *scratch)
{
    ptrdiff_t bytes = byte_alphabet_read(text, strlen(text), scratch);

    if (json_kind_of(id) != JSON_INT) return ls_fail(LS_EFORMAT, "model.vocab: '%.40s' has no integer id", text);
    ls_status st = bytes >= 0 ? vocab_put(&b->vocab, json_int(id, -1), scratch, (size_t)bytes, true)
                              : vocab_put(&b->vocab, json_int(id, -1), text, strlen(text), false);
    return st == LS_OK ? st : ls_fail_at(st, "model.vocab: '%.40s'", text);
}

static ls_status read_vocab(struct bpe *b, const json_node *vocab)
{
    size_t longest = 1;
    const char *text;
    ls_status st = LS_OK;

    if (json_kind_of(vocab) != JSON_OBJECT) return ls_fail(LS_EFORMAT, "model.vocab is not an object");
    for (size_t i = 0; i < json_size(vocab); i++) {
        json_member(vocab, i, &text);
        longest = MAX(longest, strlen(text));
    }
    unsigned char *scratch = mem_alloc(MEM_OTHER, longest);
    if (!scratch) return LS_ENOMEM;
    for (size_t i = 0; i < json_size(vocab) && st == LS_OK; i++) {
        const json_node *id = json_member(vocab, i, &text);
        st = read_token(b, text, id, scratch);
    }
    mem_free(scratch);
    return st;
}

/* Decodes one side of a merge, text[length], to *at, and moves *at past its bytes. */
static int32_t read_side(const struct bpe *b, const char *text, size_t length, unsigned char **at)
{
    ptrdiff_t bytes = byte_alphabet_read(text, length, *at);
    int32_t id = bytes > 0 ? vocab_find(&b->vocab, *at, (size_t)bytes) : -1;

    if (bytes > 0) *at += bytes;
    return id;
}

struct sides {
    const char *left, *right;
    size_t left_bytes, right_bytes;
};

/* A pair of strings, or one string with a space between (some writers append a newline). */
static bool find_sides(const json_node *n, struct sides *s)
{
    const char *text = json_string(n, NULL), *space = text ? strchr(text, ' ') : NULL;

    if (json_kind_of(n) == JSON_ARRAY && json_size(n) == 2) {
        s->left = json_string(json_at(n, 0), "");
        s->right = json_string(json_at(n, 1), "");
        s->left_bytes = strlen(s->left);
        s->right_bytes = strlen(s->right);
        return true;
    }
    if (!space) return false;
    *s = (struct sides){ text, space + 1, (size_t)(space - text), strcspn(space + 1, "\r\n") };
    return !strchr(space + 1, ' ');
}

static ls_status read_merge(struct bpe *b, const json_node *n, size_t rank, unsigned char **scratch, size_t *room)
{
    struct sides s;
    void *p = *scratch;

    if (!find_sides(n, &s)) return ls_fail(LS_EFORMAT, "model.merges: item %zu is neither \"a b\" nor [\"a\", \"b\"]", rank);
    LS_TRY(array_grow(&p, room, s.left_bytes + s.right_bytes + 1, 1));
    *scratch = p;
    unsigned char *end = *scratch;
    int32_t left = read_side(b, s.left, s.left_bytes, &end), right = read_side(b, s.right, s.right_bytes, &end);
    int32_t both = vocab_find(&b->vocab, *scratch, (size_t)(end - *scratch));
    if (left < 0 || right < 0 || both < 0)
        return ls_fail(LS_EFORMAT, "model.merges: item %zu ('%.*s' and '%.*s'): %s is not in the vocabulary", rank,
                       (int)MIN(s.left_bytes, 40), s.left, (int)MIN(s.right_bytes, 40), s.right,
                       left < 0    ? "the first"
                       : right < 0 ? "the second"
                                   : "their result");
    return bpe_put_merge(b, left, right, (uint32_t)rank, both);
}

static ls_status read_merges(struct bpe *b, const json_node *merges)
{
    unsigned char *scratch = NULL;
    size_t room = 0;
    ls_status st = LS_OK;

    if (json_kind_of(merges) != JSON_ARRAY) return ls_fail(LS_EFORMAT, "model.merges is not an array");
    for (size_t i = 0; i < json_size(merges) && st == LS_OK; i++)
        if (strncmp(json_string(json_at(merges, i), ""), "#version", 8) != 0) st = read_merge(b, json_at(merges, i), i, &scratch, &room);
    mem_free(scratch);
    return st;
}

static ls_status read_model(ls_tokenizer *t, const json_node *model)
{
    static const char *const unset[] = { "dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback" };

    if (json_kind_of(model) != JSON_OBJECT) return ls_fail(LS_EFORMAT, "model is missing");
    if (!is_type(model, "BPE") && json_get(model, "type")) return tokenizer_json_refuse("model", tokenizer_json_type_of(model));
    for (size_t i = 0; i < COUNT_OF(unset); i++) LS_TRY(expect_unset(model, unset[i], "model BPE with"));
    t->bpe.ignore_merges = json_bool(json_get(model, "ignore_merges"), 0);
    LS_TRY(read_vocab(&t->bpe, json_get(model, "vocab")));
    return read_merges(&t->bpe, json_get(model, "merges"));
}

/* ---- before the model: normalizer and pre_tokenizer ---- */

static ls_status read_normalizer(ls_tokenizer *t, const json_node *n)
{
    const json_node *items = json_get(n, "normalizers");

    if (is_null(n)) return LS_OK;
    if (is_type(n, "NFC")) {
        t->nfc = true;
        return LS_OK;
    }
    if (!is_type(n, "Sequence")) return tokenizer_json_refuse("normalizer", tokenizer_json_type_of(n));
    for (size_t i = 0; i < json_size(items); i++) {
        if (!is_type(json_at(items, i), "NFC")) return tokenizer_json_refuse("normalizer", tokenizer_json_type_of(json_at(items, i)));
        t->nfc = true;
    }
    return LS_OK;
}

static ls_status read_byte_level(ls_tokenizer *t, const json_node *n)
{
    if (json_bool(json_get(n, "add_prefix_space"), 1)) LS_TRY(tokenizer_add_stage(t, NULL));
    return json_bool(json_get(n, "use_regex"), 1) ? tokenizer_add_stage(t, pattern_find("gpt2")->regex) : LS_OK;
}

static ls_status read_split(ls_tokenizer *t, const json_node *n)
{
    const char *regex = json_string(json_get(json_get(n, "pattern"), "Regex"), NULL);
    const char *behavior = json_string(json_get(n, "behavior"), "(none)");

    if (!regex) return tokenizer_json_refuse("pre_tokenizer Split", "with a pattern that is not a Regex");
    if (strcmp(behavior, "Isolated") != 0) return tokenizer_json_refuse("pre_tokenizer Split with behavior", behavior);
    LS_TRY(expect_unset(n, "invert", "pre_tokenizer Split with"));
    return tokenizer_add_stage(t, regex);
}

static ls_status read_pre_tokenizer(ls_tokenizer *t, const json_node *n, bool last)
{
    if (is_type(n, "ByteLevel") != last)
        return last ? tokenizer_json_refuse("pre_tokenizer without a ByteLevel at its end:", tokenizer_json_type_of(n))
                    : tokenizer_json_refuse("pre_tokenizer", "ByteLevel before another");
    if (last) return read_byte_level(t, n);
    if (is_type(n, "Split")) return read_split(t, n);
    if (!is_type(n, "Digits")) return tokenizer_json_refuse("pre_tokenizer", tokenizer_json_type_of(n));
    return tokenizer_add_stage(t, json_bool(json_get(n, "individual_digits"), 0) ? NUMERIC : NUMERIC "+");
}

static ls_status read_pre_tokenizers(ls_tokenizer *t, const json_node *n)
{
    const json_node *items = json_get(n, "pretokenizers");
    size_t count = json_size(items);

    if (is_null(n)) return tokenizer_json_refuse("pre_tokenizer", "null");
    if (!is_type(n, "Sequence")) return read_pre_tokenizer(t, n, true);
    if (count == 0) return tokenizer_json_refuse("pre_tokenizer", "Sequence of nothing");
    for (size_t i = 0; i < count; i++) LS_TRY(read_pre_tokenizer(t, json_at(items, i), i + 1 == count));
    return LS_OK;
}

/* ---- added tokens and post_processor ---- */

static ls_status read_added(ls_tokenizer *t, const json_node *added)
{
    static const char *const unset[] = { "lstrip", "rstrip", "single_word" };

    for (size_t i = 0; i < json_size(added); i++) {
        const json_node *n = json_at(added, i);
        const char *content = json_string(json_get(n, "content"), NULL);

        if (!content || json_kind_of(json_get(n, "id")) != JSON_INT)
            return ls_fail(LS_EFORMAT, "added_tokens: item %zu has no id or no content", i);
        for (size_t k = 0; k < COUNT_OF(unset); k++) LS_TRY(expect_unset(n, unset[k], "added_tokens with"));
        LS_TRY(tokenizer_add_token(t, json_int(json_get(n, "id"), -1), content, json_bool(json_get(n, "special"), 0),
                                   json_bool(json_get(n, "normalized"), 0)));
    }
    return LS_OK;
}

static ls_status read_template(ls_tokenizer *t, const json_node *n)
{
    const json_node *first = json_get(json_at(json_get(n, "single"), 0), "SpecialToken");
    const char *name = json_string(json_get(first, "id"), NULL);

    if (!first) return LS_OK;
    if (name) t->begin = ls_tokenizer_find(t, name, strlen(name));
    if (t->begin >= 0) return LS_OK;
    return ls_fail(LS_EFORMAT, "post_processor TemplateProcessing starts with an unknown token");
}

static ls_status read_post_processor(ls_tokenizer *t, const json_node *n)
{
    if (is_null(n) || is_type(n, "ByteLevel")) return LS_OK;
    if (is_type(n, "TemplateProcessing")) return read_template(t, n);
    return tokenizer_json_refuse("post_processor", tokenizer_json_type_of(n));
}

static ls_status read_post_processors(ls_tokenizer *t, const json_node *n)
{
    const json_node *items = json_get(n, "processors");

    if (!is_type(n, "Sequence")) return read_post_processor(t, n);
    for (size_t i = 0; i < json_size(items); i++) LS_TRY(read_post_processor(t, json_at(items, i)));
    return LS_OK;
}

static ls_status read_root(ls_tokenizer *t, const json_node *root)
{
    const json_node *decoder = json_get(root, "decoder");

    LS_TRY(tokenizer_schema_check(root));
    LS_TRY(expect_unset(root, "truncation", "key"));
    LS_TRY(expect_unset(root, "padding", "key"));
    LS_TRY(read_normalizer(t, json_get(root, "normalizer")));
    LS_TRY(read_model(t, json_get(root, "model")));
    LS_TRY(read_added(t, json_get(root, "added_tokens")));
    LS_TRY(read_pre_tokenizers(t, json_get(root, "pre_tokenizer")));
    if (!is_null(decoder) && !is_type(decoder, "ByteLevel")) return tokenizer_json_refuse("decoder", tokenizer_json_type_of(decoder));
    return read_post_processors(t, json_get(root, "post_processor"));
}

ls_status tokenizer_read_json(const char *text, size_t bytes, const char *what, ls_tokenizer **out)
{
    json_node *root;
    ls_tokenizer *t;

    LS_TRY(json_parse(text, bytes, what, &root));
    ls_status st = tokenizer_new(&t);
    if (st != LS_OK) goto close_root;
    st = read_root(t, root);
    if (st == LS_OK) st = tokenizer_finish(t, text, bytes, TOKENIZER_JSON);
    if (st == LS_OK)
        *out = t;
    else
        ls_tokenizer_close(&t);
    if (st != LS_OK) ls_fail_at(st, "%s", what);
close_root:
    json_close(&root);
    return st;
}
