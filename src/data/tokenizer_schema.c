/* tokenizer_schema.c - a table of fields per component, as the Rust implementation of tokenizers declares them: it reads nothing else. */
#include "data/tokenizer_schema.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"

enum {
    NUMBER = 1 << 8,
    ID = 1 << 9,
    OBJECT_OR_NULL = 1 << JSON_OBJECT | 1 << JSON_NULL
}; /* in addition to 1 << json_kind; ID: 0 .. 2^32 - 1 */
#define IS(kind) (1 << JSON_##kind)

/* kinds: allowed kinds of the value; required: it must be present. key NULL ends a table. */
struct field {
    const char *key;
    int kinds;
    bool required;
};

static const struct field root_fields[] = {
    { "version", IS(STRING), false },
    { "truncation", OBJECT_OR_NULL, false },
    { "padding", OBJECT_OR_NULL, false },
    { "added_tokens", IS(ARRAY), false },
    { "normalizer", OBJECT_OR_NULL, false },
    { "pre_tokenizer", OBJECT_OR_NULL, false },
    { "post_processor", OBJECT_OR_NULL, false },
    { "decoder", OBJECT_OR_NULL, false },
    { "model", IS(OBJECT), true },
    { 0 },
};
static const struct field added_fields[] = {
    { "id", ID, true },           { "content", IS(STRING), true },  { "single_word", IS(BOOL), true }, { "lstrip", IS(BOOL), true },
    { "rstrip", IS(BOOL), true }, { "normalized", IS(BOOL), true }, { "special", IS(BOOL), true },     { 0 },
};
static const struct field model_fields[] = {
    { "type", IS(STRING), false },
    { "dropout", NUMBER | IS(NULL), false },
    { "unk_token", IS(STRING) | IS(NULL), false },
    { "continuing_subword_prefix", IS(STRING) | IS(NULL), false },
    { "end_of_word_suffix", IS(STRING) | IS(NULL), false },
    { "fuse_unk", IS(BOOL), false },
    { "byte_fallback", IS(BOOL), false },
    { "ignore_merges", IS(BOOL) | IS(NULL), false },
    { "vocab", IS(OBJECT), true },
    { "merges", IS(ARRAY), true },
    { 0 },
};
static const struct field byte_level[] = {
    { "add_prefix_space", IS(BOOL), true },
    { "trim_offsets", IS(BOOL), true },
    { "use_regex", IS(BOOL), false },
    { 0 },
};
static const struct field digits[] = { { "individual_digits", IS(BOOL), true }, { 0 } };
static const struct field split[] = {
    { "pattern", IS(OBJECT), true },
    { "behavior", IS(STRING), true },
    { "invert", IS(BOOL), true },
    { 0 },
};
static const struct field template[] = {
    { "single", IS(ARRAY), true },
    { "pair", IS(ARRAY), true },
    { "special_tokens", IS(OBJECT), true },
    { 0 },
};
static const struct field tokenizer_schema_template_item[] = { { "id", IS(STRING), true }, { "type_id", ID, true }, { 0 } };
static const struct field special[] = { { "id", IS(STRING), true }, { "ids", IS(ARRAY), true }, { "tokens", IS(ARRAY), true }, { 0 } };

/* Components by their "type"; items: the member that holds those of a Sequence. The reader handles a type that is not listed. */
struct component {
    const char *type;
    const struct field *fields;
    const char *items;
};
static const struct component normalizers[] = { { "Sequence", NULL, "normalizers" }, { 0 } };
static const struct component pre_tokenizers[] = {
    { "ByteLevel", byte_level, NULL }, { "Digits", digits, NULL }, { "Split", split, NULL }, { "Sequence", NULL, "pretokenizers" }, { 0 },
};
static const struct component post_processors[] = {
    { "ByteLevel", byte_level, NULL },
    { "TemplateProcessing", template, NULL },
    { "Sequence", NULL, "processors" },
    { 0 },
};
static const struct component decoders[] = { { "ByteLevel", byte_level, NULL }, { 0 } };

static const char *const kind_names[] = { "missing", "null", "a bool", "an integer", "a real number", "a text", "an array", "an object" };

/* "a text or null" */
static const char *names_of(int kinds, char *out, size_t room)
{
    size_t n = 0;

    if (kinds & ID) return "an id (an integer from 0 to 4294967295)";
    if (kinds & NUMBER) n = (size_t)snprintf(out, room, "a number");
    for (int k = JSON_OBJECT; k >= JSON_NULL; k--)
        if (kinds & 1 << k) n += (size_t)snprintf(out + n, room - n, "%s%s", n ? " or " : "", kind_names[k]);
    return out;
}

static bool is_one_of(const json_node *n, int kinds)
{
    enum json_kind kind = json_kind_of(n);

    if (kinds & ID) return kind == JSON_INT && json_int(n, -1) >= 0 && json_int(n, -1) <= UINT32_MAX;
    return kinds & 1 << kind || (kinds & NUMBER && (kind == JSON_INT || kind == JSON_REAL));
}

static ls_status tokenizer_schema_expect(const json_node *n, int kinds, const char *where, const char *key)
{
    char names[100];

    if (is_one_of(n, kinds)) return LS_OK;
    return ls_fail(LS_EFORMAT, "%s.%.60s is %s; expected %s", where, key, kind_names[json_kind_of(n)],
                   names_of(kinds, names, sizeof names));
}

static ls_status expect_object(const json_node *n, const char *where)
{
    if (json_kind_of(n) == JSON_OBJECT) return LS_OK;
    return ls_fail(LS_EFORMAT, "%s is %s; expected an object", where, kind_names[json_kind_of(n)]);
}

static ls_status check_fields(const json_node *object, const struct field *f, const char *where)
{
    LS_TRY(expect_object(object, where));
    for (; f && f->key; f++) {
        const json_node *n = json_get(object, f->key);

        if (n || f->required) LS_TRY(tokenizer_schema_expect(n, f->kinds, where, f->key));
    }
    return LS_OK;
}

/* ---- a template ---- */

static ls_status check_template_items(const json_node *list, const char *where)
{
    const char *kind;

    for (size_t i = 0; i < json_size(list); i++) {
        const json_node *n = json_member(json_at(list, i), 0, &kind);

        if (json_size(json_at(list, i)) != 1 || !n || (strcmp(kind, "Sequence") != 0 && strcmp(kind, "SpecialToken") != 0))
            return ls_fail(LS_EFORMAT, "%s: item %zu is neither a Sequence nor a SpecialToken", where, i);
        LS_TRY(check_fields(n, tokenizer_schema_template_item, where));
        const char *id = json_string(json_get(n, "id"), "");
        if (strcmp(kind, "Sequence") == 0 && strcmp(id, "A") != 0 && strcmp(id, "B") != 0)
            return ls_fail(LS_EFORMAT, "%s: item %zu: sequence is '%.40s'; expected A or B", where, i, id);
    }
    return LS_OK;
}

static ls_status check_items(const json_node *list, int kinds, const char *where, const char *key)
{
    for (size_t i = 0; i < json_size(list); i++) LS_TRY(tokenizer_schema_expect(json_at(list, i), kinds, where, key));
    return LS_OK;
}

static ls_status check_template(const json_node *n)
{
    static const char *const where = "post_processor.special_tokens";
    const json_node *tokens = json_get(n, "special_tokens");
    const char *name;

    LS_TRY(check_template_items(json_get(n, "single"), "post_processor.single"));
    LS_TRY(check_template_items(json_get(n, "pair"), "post_processor.pair"));
    for (size_t i = 0; i < json_size(tokens); i++) {
        const json_node *token = json_member(tokens, i, &name);

        LS_TRY(check_fields(token, special, where));
        LS_TRY(check_items(json_get(token, "ids"), ID, where, "ids"));
        LS_TRY(check_items(json_get(token, "tokens"), IS(STRING), where, "tokens"));
    }
    return LS_OK;
}

/* ---- the parts of a file ---- */

static ls_status check_component(const json_node *n, const struct component *c, const char *where)
{
    const json_node *type = json_get(n, "type");
    const struct component *known = c;

    LS_TRY(expect_object(n, where));
    LS_TRY(tokenizer_schema_expect(type, IS(STRING), where, "type"));
    while (known->type && strcmp(known->type, json_string(type, "")) != 0) known++;
    if (!known->type) return LS_OK;
    LS_TRY(check_fields(n, known->fields, where));
    if (known->fields == template) return check_template(n);
    if (!known->items) return LS_OK;
    LS_TRY(tokenizer_schema_expect(json_get(n, known->items), IS(ARRAY), where, known->items));
    for (size_t i = 0; i < json_size(json_get(n, known->items)); i++)
        LS_TRY(check_component(json_at(json_get(n, known->items), i), c, where));
    return LS_OK;
}

static ls_status check_optional(const json_node *root, const char *key, const struct component *c)
{
    const json_node *n = json_get(root, key);

    return !n || json_kind_of(n) == JSON_NULL ? LS_OK : check_component(n, c, key);
}

/* All items must be of one kind: "a b", or ["a", "b"]. */
static ls_status check_merges(const json_node *merges)
{
    enum json_kind kind = json_kind_of(json_at(merges, 0));

    for (size_t i = 0; i < json_size(merges); i++) {
        const json_node *n = json_at(merges, i);
        bool pair =
            json_kind_of(n) == JSON_ARRAY && json_size(n) == 2 && json_string(json_at(n, 0), NULL) && json_string(json_at(n, 1), NULL);

        if (json_kind_of(n) != kind || (!pair && kind != JSON_STRING))
            return ls_fail(LS_EFORMAT, "model.merges: item %zu is neither \"a b\" nor [\"a\", \"b\"], or not of the kind of the first", i);
    }
    return LS_OK;
}

static ls_status check_model(const json_node *model)
{
    const json_node *vocab = json_get(model, "vocab");
    const char *token;

    if (strcmp(json_string(json_get(model, "type"), "BPE"), "BPE") != 0) return LS_OK;
    LS_TRY(check_fields(model, model_fields, "model"));
    for (size_t i = 0; i < json_size(vocab); i++) {
        const json_node *id = json_member(vocab, i, &token);

        if (!is_one_of(id, ID)) return ls_fail(LS_EFORMAT, "model.vocab: '%.40s' has no id: an integer from 0 to 4294967295", token);
    }
    return check_merges(json_get(model, "merges"));
}

static ls_status check_root_keys(const json_node *root)
{
    const struct field *f;
    const char *key;

    for (size_t i = 0; i < json_size(root); i++) {
        json_member(root, i, &key);
        for (f = root_fields; f->key && strcmp(f->key, key) != 0; f++) {
        }
        if (!f->key) return ls_fail(LS_EFORMAT, "'%.60s' is not a member of a tokenizer.json", key);
    }
    return LS_OK;
}

ls_status tokenizer_schema_check(const json_node *root)
{
    const json_node *added = json_get(root, "added_tokens");
    const char *version = json_string(json_get(root, "version"), "1.0");
    char where[40];

    if (json_kind_of(root) != JSON_OBJECT) return ls_fail(LS_EFORMAT, "not an object");
    LS_TRY(check_root_keys(root));
    LS_TRY(check_fields(root, root_fields, "tokenizer"));
    if (strcmp(version, "1.0") != 0) return ls_fail(LS_EUNSUPPORTED, "version '%.20s' is not supported; expected 1.0", version);
    for (size_t i = 0; i < json_size(added); i++) {
        snprintf(where, sizeof where, "added_tokens[%zu]", i);
        LS_TRY(check_fields(json_at(added, i), added_fields, where));
    }
    LS_TRY(check_optional(root, "normalizer", normalizers));
    LS_TRY(check_optional(root, "pre_tokenizer", pre_tokenizers));
    LS_TRY(check_optional(root, "post_processor", post_processors));
    LS_TRY(check_optional(root, "decoder", decoders));
    return check_model(json_get(root, "model"));
}
