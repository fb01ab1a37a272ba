/* test_data_malformed.c - malformed and unsupported tokenizer files: each is refused in one line that names the wrong part; and if the Nth
 * allocation fails, for any N, nothing is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "data/pattern.h"
#include "data/tokenizer.h"
#include "helper_checkpoint.h"
#include "train/faults/fault_points.h"

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true}"
#define TOKEN(id, content, special) \
    "{\"id\":" id ",\"content\":" content ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false," \
    "\"normalized\":false,\"special\":" special "}"

/* A tokenizer.json in parts, each of which a case may replace. */
struct parts { const char *top, *added, *normalizer, *pre, *post, *decoder, *model; };

static const struct parts good = {
    .top = "\"truncation\":null,\"padding\":null",
    .added = "[" TOKEN("6", "\"</s>\"", "true") "]",
    .normalizer = "{\"type\":\"NFC\"}",
    .pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}",
    .post = BYTE_LEVEL,
    .decoder = BYTE_LEVEL,
    .model = "{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\",\"byte_fallback\":false,"
             "\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"\\u0120\":4,\"abc\":5},\"merges\":[[\"a\",\"b\"],[\"ab\",\"c\"]]}",
};

static ls_status read_parts(const struct parts *p, ls_tokenizer **t)
{
    char json[4096];
    int n = snprintf(json, sizeof json,
                     "{%s,\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,"
                     "\"decoder\":%s,\"model\":%s}", p->top ? p->top : good.top, p->added ? p->added : good.added,
                     p->normalizer ? p->normalizer : good.normalizer, p->pre ? p->pre : good.pre, p->post ? p->post : good.post,
                     p->decoder ? p->decoder : good.decoder, p->model ? p->model : good.model);

    return tokenizer_read_json(json, (size_t)n, "t.json", t);
}

#define BPE(rest) "{\"type\":\"BPE\"," rest "}"
#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define SEQUENCE(items) "{\"type\":\"Sequence\",\"pretokenizers\":[" items "]}"
#define TEMPLATE(single, tokens) "{\"type\":\"TemplateProcessing\",\"single\":" single ",\"pair\":[],\"special_tokens\":" tokens "}"
#define SPLIT(pattern, behavior) \
    "{\"type\":\"Split\",\"pattern\":" pattern ",\"behavior\":\"" behavior "\",\"invert\":false}"

static const struct { struct parts parts; ls_status status; const char *message; } refused[] = {
    { { .top = "\"truncation\":{\"max_length\":4}" }, LS_EUNSUPPORTED, "key truncation is not supported" },
    { { .top = "\"padding\":{}" }, LS_EUNSUPPORTED, "key padding" },
    { { .added = "[{\"id\":6,\"content\":\"<m>\",\"single_word\":false,\"lstrip\":true,\"rstrip\":false,"
                 "\"normalized\":false,\"special\":true}]" }, LS_EUNSUPPORTED, "added_tokens with lstrip" },
    { { .added = "[{\"id\":6,\"content\":\"<m>\",\"single_word\":true,\"lstrip\":false,\"rstrip\":false,"
                 "\"normalized\":false,\"special\":true}]" }, LS_EUNSUPPORTED, "added_tokens with single_word" },
    { { .added = "[" TOKEN("\"6\"", "\"<m>\"", "true") "]" }, LS_EFORMAT, "added_tokens[0].id is a text; expected an id" },
    { { .added = "[" TOKEN("6", "\"\"", "false") "]" }, LS_EFORMAT, "added token 6 is empty" },
    { { .added = "[" TOKEN("6", "\"x\"", "false") "," TOKEN("7", "\"x\"", "false") "]" }, LS_EFORMAT, "added token 'x' is given twice" },
    { { .added = "[" TOKEN("1", "\"x\"", "false") "]" }, LS_EFORMAT, "'x' has id 1, which is another token" },
    { { .added = "[" TOKEN("1", "\"a\"", "false") "]" }, LS_EFORMAT, "'a' has id 1, but 0 in the vocabulary" },
    { { .added = "[" TOKEN("99999999", "\"x\"", "false") "]" }, LS_EFORMAT, "token id 99999999: ids are 0 .. 16777215" },
    { { .normalizer = "{\"type\":\"NFKC\"}" }, LS_EUNSUPPORTED, "normalizer NFKC is not supported" },
    { { .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}" }, LS_EUNSUPPORTED,
      "normalizer Lowercase" },
    { { .normalizer = "7" }, LS_EFORMAT, "tokenizer.normalizer is an integer; expected an object or null" },
    { { .pre = "null" }, LS_EUNSUPPORTED, "pre_tokenizer null" },
    { { .pre = "{\"type\":\"Metaspace\"}" }, LS_EUNSUPPORTED, "without a ByteLevel at its end: Metaspace" },
    { { .pre = SEQUENCE("") }, LS_EUNSUPPORTED, "pre_tokenizer Sequence of nothing" },
    { { .pre = SEQUENCE("{\"type\":\"Whitespace\"}," BYTE_LEVEL) }, LS_EUNSUPPORTED, "pre_tokenizer Whitespace" },
    { { .pre = SEQUENCE(BYTE_LEVEL "," BYTE_LEVEL) }, LS_EUNSUPPORTED, "ByteLevel before another" },
    { { .pre = SEQUENCE(SPLIT("{\"String\":\"x\"}", "Isolated") "," BYTE_LEVEL) }, LS_EUNSUPPORTED,
      "Split with a pattern that is not a Regex" },
    { { .pre = SEQUENCE(SPLIT("{\"Regex\":\"x\"}", "Removed") "," BYTE_LEVEL) }, LS_EUNSUPPORTED, "Split with behavior Removed" },
    { { .pre = SEQUENCE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x\"},\"behavior\":\"Isolated\",\"invert\":true}," BYTE_LEVEL) },
      LS_EUNSUPPORTED, "Split with invert" },
    { { .pre = SEQUENCE(SPLIT("{\"Regex\":\"(x\"}", "Isolated") "," BYTE_LEVEL) }, LS_EFORMAT,
      "pattern '(x': the pattern cannot be compiled" },
    { { .post = "{\"type\":\"BertProcessing\"}" }, LS_EUNSUPPORTED, "post_processor BertProcessing" },
    { { .post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<x>\",\"type_id\":0}}],\"pair\":[],"
                "\"special_tokens\":{}}" }, LS_EFORMAT, "starts with an unknown token" },
    { { .decoder = "{\"type\":\"WordPiece\"}" }, LS_EUNSUPPORTED, "decoder WordPiece" },
    { { .model = "null" }, LS_EFORMAT, "tokenizer.model is null; expected an object" },
    { { .model = "{\"type\":\"Unigram\"}" }, LS_EUNSUPPORTED, "model Unigram" },
    { { .model = BPE("\"dropout\":0.1," VOCAB ",\"merges\":[]") }, LS_EUNSUPPORTED, "model BPE with dropout" },
    { { .model = BPE("\"byte_fallback\":true," VOCAB ",\"merges\":[]") }, LS_EUNSUPPORTED, "model BPE with byte_fallback" },
    { { .model = BPE("\"end_of_word_suffix\":\"</w>\"," VOCAB ",\"merges\":[]") }, LS_EUNSUPPORTED, "with end_of_word_suffix" },
    { { .model = BPE("\"vocab\":[],\"merges\":[]") }, LS_EFORMAT, "model.vocab is an array; expected an object" },
    { { .model = BPE("\"vocab\":{\"a\":\"0\"},\"merges\":[]") }, LS_EFORMAT, "'a' has no id" },
    { { .model = BPE("\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]") }, LS_EFORMAT, "token id 0 is given twice" },
    { { .model = BPE("\"vocab\":{\"a\":-1},\"merges\":[]") }, LS_EFORMAT, "'a' has no id" },
    { { .model = BPE(VOCAB) }, LS_EFORMAT, "model.merges is missing; expected an array" },
    { { .model = BPE(VOCAB ",\"merges\":[\"ab\"]") }, LS_EFORMAT, "item 0 is neither" },
    { { .model = BPE(VOCAB ",\"merges\":[\"a b c\"]") }, LS_EFORMAT, "item 0 is neither" },
    { { .model = BPE(VOCAB ",\"merges\":[[\"a\"]]") }, LS_EFORMAT, "item 0 is neither" },
    { { .model = BPE(VOCAB ",\"merges\":[\"a b\",\"b a\"]") }, LS_EFORMAT,
      "item 1 ('b' and 'a'): their result is not in the vocabulary" },
    { { .model = BPE(VOCAB ",\"merges\":[\"a x\"]") }, LS_EFORMAT, "the second is not in the vocabulary" },
    { { .model = BPE(VOCAB ",\"merges\":[[1,2]]") }, LS_EFORMAT, "item 0 is neither" },
    { { .model = BPE(VOCAB ",\"merges\":[\"a b\",[\"a\",\"b\"]]") }, LS_EFORMAT, "item 1 is neither" },
    { { .model = BPE(VOCAB ",\"merges\":null") }, LS_EFORMAT, "model.merges is null; expected an array" },
    { { .model = BPE(VOCAB ",\"merges\":[],\"dropout\":\"x\"") }, LS_EFORMAT, "model.dropout is a text; expected a number or null" },
    { { .model = BPE(VOCAB ",\"merges\":[],\"unk_token\":56") }, LS_EFORMAT, "model.unk_token is an integer; expected a text or null" },
    { { .model = BPE(VOCAB ",\"merges\":[],\"fuse_unk\":null") }, LS_EFORMAT, "model.fuse_unk is null; expected a bool" },
    { { .model = BPE(VOCAB ",\"merges\":[],\"byte_fallback\":0") }, LS_EFORMAT, "model.byte_fallback is an integer" },
    { { .model = BPE(VOCAB ",\"merges\":[],\"ignore_merges\":\"true\"") }, LS_EFORMAT, "model.ignore_merges is a text" },
    { { .model = BPE(VOCAB ",\"merges\":[],\"end_of_word_suffix\":[]") }, LS_EFORMAT, "model.end_of_word_suffix is an array" },
    { { .model = BPE(VOCAB ",\"merges\":[],\"continuing_subword_prefix\":0") }, LS_EFORMAT,
      "model.continuing_subword_prefix is an integer" },
    { { .model = "{\"type\":56," VOCAB ",\"merges\":[]}" }, LS_EFORMAT, "model.type is an integer; expected a text" },
    { { .model = BPE("\"vocab\":{\"a\":1.5},\"merges\":[]") }, LS_EFORMAT, "'a' has no id" },
    { { .model = "[]" }, LS_EFORMAT, "tokenizer.model is an array; expected an object" },
    { { .added = "56" }, LS_EFORMAT, "tokenizer.added_tokens is an integer; expected an array" },
    { { .added = "null" }, LS_EFORMAT, "tokenizer.added_tokens is null; expected an array" },
    { { .added = "{}" }, LS_EFORMAT, "tokenizer.added_tokens is an object; expected an array" },
    { { .added = "[null]" }, LS_EFORMAT, "added_tokens[0] is null; expected an object" },
    { { .added = "[{\"id\":6,\"content\":\"<m>\"}]" }, LS_EFORMAT, "added_tokens[0].single_word is missing; expected a bool" },
    { { .added = "[" TOKEN("6", "[]", "true") "]" }, LS_EFORMAT, "added_tokens[0].content is an array; expected a text" },
    { { .added = "[" TOKEN("6", "\"x\"", "1") "]" }, LS_EFORMAT, "added_tokens[0].special is an integer; expected a bool" },
    { { .added = "[" TOKEN("6.5", "\"x\"", "true") "]" }, LS_EFORMAT, "added_tokens[0].id is a real number; expected an id" },
    { { .top = "\"truncation\":56" }, LS_EFORMAT, "tokenizer.truncation is an integer; expected an object or null" },
    { { .top = "\"padding\":false" }, LS_EFORMAT, "tokenizer.padding is a bool; expected an object or null" },
    { { .top = "\"version\":1" }, LS_EFORMAT, "tokenizer.version is an integer; expected a text" },
    { { .top = "\"version\":\"2.0\"" }, LS_EUNSUPPORTED, "version '2.0' is not supported" },
    { { .top = "\"more\":1" }, LS_EFORMAT, "'more' is not a member of a tokenizer.json" },
    { { .normalizer = "{\"type\":[]}" }, LS_EFORMAT, "normalizer.type is an array; expected a text" },
    { { .normalizer = "{\"type\":\"Sequence\"}" }, LS_EFORMAT, "normalizer.normalizers is missing; expected an array" },
    { { .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[\"NFC\"]}" }, LS_EFORMAT, "normalizer is a text; expected an object" },
    { { .pre = "true" }, LS_EFORMAT, "tokenizer.pre_tokenizer is a bool; expected an object or null" },
    { { .pre = "{\"type\":\"ByteLevel\"}" }, LS_EFORMAT, "pre_tokenizer.add_prefix_space is missing; expected a bool" },
    { { .pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":0,\"trim_offsets\":true}" }, LS_EFORMAT,
      "pre_tokenizer.add_prefix_space is an integer" },
    { { .pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":null}" }, LS_EFORMAT,
      "use_regex is null; expected a bool" },
    { { .pre = "{\"type\":\"Sequence\",\"pretokenizers\":{}}" }, LS_EFORMAT,
      "pre_tokenizer.pretokenizers is an object; expected an array" },
    { { .pre = SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":1}," BYTE_LEVEL) }, LS_EFORMAT,
      "individual_digits is an integer; expected a bool" },
    { { .pre = SEQUENCE("{\"type\":\"Split\",\"pattern\":\"x\",\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL) }, LS_EFORMAT,
      "pattern is a text" },
    { { .pre = SEQUENCE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x\"},\"behavior\":\"Isolated\"}," BYTE_LEVEL) }, LS_EFORMAT,
      "invert is missing; expected a bool" },
    { { .post = "\"x\"" }, LS_EFORMAT, "tokenizer.post_processor is a text; expected an object or null" },
    { { .post = "{\"type\":\"Sequence\",\"processors\":7}" }, LS_EFORMAT, "post_processor.processors is an integer; expected an array" },
    { { .post = TEMPLATE("7", "{}") }, LS_EFORMAT, "post_processor.single is an integer; expected an array" },
    { { .post = TEMPLATE("[{\"Other\":{}}]", "{}") }, LS_EFORMAT, "item 0 is neither a Sequence nor a SpecialToken" },
    { { .post = TEMPLATE("[{\"Sequence\":{\"id\":\"C\",\"type_id\":0}}]", "{}") }, LS_EFORMAT, "sequence is 'C'; expected A or B" },
    { { .post = TEMPLATE("[{\"Sequence\":{\"id\":\"A\"}}]", "{}") }, LS_EFORMAT, "type_id is missing; expected an id" },
    { { .post = TEMPLATE("[]", "{\"<s>\":{\"id\":\"<s>\",\"ids\":[\"1\"],\"tokens\":[]}}") }, LS_EFORMAT,
      "special_tokens.ids is a text; expected an id" },
    { { .post = TEMPLATE("[]", "{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],\"tokens\":[1]}}") }, LS_EFORMAT,
      "special_tokens.tokens is an integer; expected a text" },
    { { .decoder = "[]" }, LS_EFORMAT, "tokenizer.decoder is an array; expected an object or null" },
    { { .decoder = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":\"x\"}" }, LS_EFORMAT,
      "decoder.trim_offsets is a text; expected a bool" },
};

static void malformed_tokenizer_json_is_refused(void **state)
{
    ls_tokenizer *t;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        REFUSED(refused[i].status, refused[i].message, read_parts(&refused[i].parts, &t));
        assert_memory_equal(ls_errmsg(), "t.json: ", 8);
    }
    REFUSED(LS_EFORMAT, "t.json: not an object", tokenizer_read_json("[]", 2, "t.json", &t));
    REFUSED(LS_EFORMAT, "t.json: not JSON", tokenizer_read_json("{", 1, "t.json", &t));
}

static void unusual_tokenizer_json_is_read(void **state)
{
    static const int32_t wanted[] = { 5, 4, 3, 6, 3 };
    const struct parts none = { 0 };
    const ls_encode_options specials = { .specials = 1 };
    struct ids ids = { 0 };
    ls_tokenizer *t;

    (void)state;
    OK(read_parts(&none, &t));
    OK(tokenizer_encode_ids(t, "abc ab</s>ab", 12, &specials, SIZE_MAX, &ids));
    assert_int_equal(ids.count, 5);
    assert_memory_equal(ids.at, wanted, sizeof wanted);
    assert_int_equal(ls_tokenizer_end(t), 6);
    REFUSED(LS_EFORMAT, "byte 0x78 has no token in this vocabulary",
            tokenizer_encode_ids(t, "abx", 3, &specials, SIZE_MAX, &ids));
    mem_free(ids.at);
    ls_tokenizer_close(&t);
}

/* The 256 single bytes, then the case's lines. */
static ls_status read_ranks(const char *more, ls_tokenizer **t)
{
    static const char code[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char text[8192];
    size_t n = 0;

    for (unsigned b = 0; b < 256; b++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%c%c== %u\n", code[b >> 2], code[(b & 3) << 4], b);
    n += (size_t)snprintf(text + n, sizeof text - n, "%s", more);
    return tokenizer_read_tiktoken(text, n, "r.tiktoken", "gpt2", t);
}

static void malformed_tiktoken_ranks_are_refused(void **state)
{
    static const struct { const char *more, *message; } cases[] = {
        { "YWI=\n", "line 257: expected a token in base64, a space and a rank" },
        { "YWI 256\n", "line 257: 'YWI' is not base64" },
        { "YW=I 256\n", "is not base64" },
        { "====\t 256\n", "is not base64" },
        { " 256\n", "is not base64" },
        { "YWI= \n", "'' is not a rank" },
        { "YWI= -1\n", "'-1' is not a rank" },
        { "YWI= 256 \n", "is not a rank" },
        { "YWI= 99999999999999999999\n", "is not a rank from 0 to 16777215" },
        { "\n\nYWI= 255\n", "line 259: token id 255 is given twice" },
        { "YWI= 256\r\nYWI= 257\n", "line 258: tokens 256 and 257 have the same 2 bytes" },
        { "YWI= 50256\n", "added token '<|endoftext|>' has id 50256, which is another token" },
    };
    ls_tokenizer *t;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) REFUSED(LS_EFORMAT, cases[i].message, read_ranks(cases[i].more, &t));
    REFUSED(LS_EFORMAT, "no token for the single byte 0x00", tokenizer_read_tiktoken("YQ== 0", 6, "r", "gpt2", &t));
    REFUSED(LS_EFORMAT, "no token for the single byte 0x00", tokenizer_read_tiktoken("", 0, "r", "gpt2", &t));
    OK(read_ranks("YWI= 256\r\n\nYWJj 300", &t));  /* ab, abc: no newline at the end */
    assert_int_equal(ls_tokenizer_find(t, "abc", 3), 300);
    ls_tokenizer_close(&t);
}

static void unsupported_patterns_are_refused(void **state)
{
    static const struct { const char *regex, *message; } cases[] = {
        { "^a", "'^' at offset 0 is not supported: engines interpret it differently" },
        { "a$", "'$' at offset 1" },
        { "a{1,3}+", "'{1,3}+' at offset 1" },
        { "a{2}?", "'{2}?'" },
        { "a{,2}", "not an interval" },
        { "[a[b]]", "a class inside a class" },
        { "[a&&b]", "an intersection" },
        { "[]a]", "an empty class" },
        { "[^]a]", "an empty class" },
        { "(*ACCEPT)", "a verb" },
        { "(?P<x>a)", "known are (?:" },
        { "(?m:a)", "known are (?:" },
        { "\\w+", "'\\w' at offset 0" },
        { "\\b", "unknown here" },
        { "\\", "nothing follows" },
        { "\\p{Han}", "'\\p{Han}'" },
        { "\\p{Mn}", "except those of M" },
        { "\\pL", "expected {category}" },
        { "[\\P{L}]", "\\P inside a class" },
        { "(?i:\\p{Lu})", "case under (?i:" },
        { "\\xff", "not a code point" },
        { "\\x{110000}", "not a code point" },
        { "\\u12", "expected hexadecimal digits" },
        { "", "the pattern is empty" },
    };
    char *out;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        REFUSED(LS_EUNSUPPORTED, cases[i].message, pattern_translate(cases[i].regex, &out));
}

/* The matches of a pattern in a text, joined by '|'. */
static void check_matches(const char *regex, const char *s, const char *wanted)
{
    struct split *split;
    struct split_work *work;
    char got[256];
    size_t n = 0, begin = 0, end;

    OK(split_compile(regex, &split));
    OK(split_work_new(&work));
    for (size_t at = 0; at < strlen(s); at = end) {
        OK(split_next(split, work, (const unsigned char *)s, strlen(s), at, &begin, &end));
        n += (size_t)snprintf(got + n, sizeof got - n, "%.*s|", (int)(end - begin), s + begin);
    }
    assert_string_equal(got, wanted);
    split_work_free(&work);
    split_free(&split);
}

static void test_patterns(void **state)
{
    (void)state;
    check_matches("\\d{1,3}", "x12345y6", "123|45|6|");
    check_matches("\\p{Lu}|(?i:b)", "aBAb", "B|A|b|");
    check_matches("\\u0061+|\\x{62}|\\x63", "aabcd", "aa|b|c||");
    check_matches("[^\\S]+", "a \t b", " \t ||");
    check_matches("x*", "axxb", "xx||");  /* never an empty match */
    check_matches("\\s", "\xe1\xa0\x8e\xe2\x80\x83.", "\xe2\x80\x83||");  /* U+180E is not white space */
    check_matches("\\p{L}+", "\xf0\x96\xb5\x80.", "\xf0\x96\xb5\x80||");  /* U+16D40, a letter since Unicode 16 */
}

typedef ls_status make_fn(ls_tokenizer **t);

static ls_status make_json(ls_tokenizer **t)
{
    const struct parts p = { .pre = SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":false}," 
                                             SPLIT("{\"Regex\":\"[ab]+\"}", "Isolated") "," BYTE_LEVEL),
                             .added = "[{\"id\":6,\"content\":\"e\\u0301\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                                      "\"normalized\":true,\"special\":false}," TOKEN("7", "\"!\"", "false") "]" };
    return read_parts(&p, t);
}

static ls_status make_ranks(ls_tokenizer **t) { return read_ranks("YWI= 256\n", t); }
static ls_status make_bytes(ls_tokenizer **t) { return ls_tokenizer_open("bytes", t); }

static ls_status make_trained(ls_tokenizer **t)
{
    return ls_tokenizer_train("the cat sat on the mat", 22, &(ls_bpe_options){ 265, "cl100k" }, t);
}

static ls_status make_and_use(make_fn *make)
{
    ls_tokenizer *t;
    ls_tokens *tokens;

    LS_TRY(make(&t));
    ls_status st = ls_tokenizer_encode(t, "ab\xcc\x81 aba", 8, &(ls_encode_options){ .specials = 1 }, &tokens);
    if (st == LS_OK) {
        st = ls_tokens_mark(tokens, 0);
        ls_tokens_close(&tokens);
    }
    ls_tokenizer_close(&t);
    return st;
}

static void tokenizer_fails_cleanly_without_memory(void **state)
{
    make_fn *const makes[] = { make_bytes, make_trained, make_ranks };
    struct mem_stats before, after;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(makes); i++) {
        ls_status st = LS_ENOMEM;

        OK(make_and_use(makes[i]));
        for (int n = 1; st != LS_OK; n++) {
            mem_read(&before);
            mem_fail_at(n);
            st = make_and_use(makes[i]);
            mem_fail_at(0);
            mem_read(&after);
            if (st != LS_OK && st != LS_ENOMEM)
                fail_msg("maker %zu, allocation %d: %d, %s", i, n, (int)st, ls_errmsg());
            if (after.total_now != before.total_now)
                fail_msg("maker %zu, allocation %d: %zu bytes stay", i, n, after.total_now - before.total_now);
            assert_true(n < 10000);
        }
    }
}

/* The same for a file whose text has no token for its bytes: it may fail for that, and leave nothing. */
static void tokenizer_json_fails_cleanly_without_memory(void **state)
{
    struct mem_stats before, after;
    ls_tokenizer *t;
    ls_status st = LS_ENOMEM;

    (void)state;
    for (int n = 1; st != LS_OK; n++) {
        mem_read(&before);
        mem_fail_at(n);
        st = make_json(&t);
        mem_fail_at(0);
        if (st == LS_OK) ls_tokenizer_close(&t);
        mem_read(&after);
        assert_true(st == LS_OK || st == LS_ENOMEM);
        assert_int_equal(after.total_now, before.total_now);
        assert_true(n < 10000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_tokenizer_json_is_refused),
        cmocka_unit_test(unusual_tokenizer_json_is_read),
        cmocka_unit_test(malformed_tiktoken_ranks_are_refused),
        cmocka_unit_test(unsupported_patterns_are_refused),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(tokenizer_fails_cleanly_without_memory),
        cmocka_unit_test(tokenizer_json_fails_cleanly_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
