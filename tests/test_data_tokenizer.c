/* test_data_tokenizer.c - tokenizers compared with the ids of `tokenizers` and `tiktoken` (tests/data/tokenizers), and round trips. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "base/file.h"
#include "base/threads.h"
#include "data/tokenizer.h"
#include "helper_checkpoint.h"
#include "helper_mixed.h"
#include "train/faults/fault_points.h"

#define FOLDER TEST_DIR "/data/tokenizers"
enum { WHOLE = 1 << 30 };

static json_node *data_tokenizer_expected;
static char text[64 * MIXED_LINE_MOST];

static int open_expected(void **state)
{
    (void)state;
    return json_read(FOLDER "/expected.json", &data_tokenizer_expected);
}

static int close_expected(void **state)
{
    (void)state;
    json_close(&data_tokenizer_expected);
    return 0;
}

static struct ids encode(const ls_tokenizer *t, const char *s, size_t bytes, ls_encode_options o, size_t chunk)
{
    struct ids ids = { 0 };

    OK(tokenizer_encode_ids(t, s, bytes, &o, chunk, &ids));
    return ids;
}

/* Decoding gives the text back, unless the tokenizer changes it. */
static void check_decodes(const ls_tokenizer *t, const struct ids *ids, const char *s, size_t bytes)
{
    static char back[sizeof text];
    size_t n;

    if (t->nfc) return;
    OK(ls_tokenizer_decode(t, ids->at, ids->count, back, sizeof back, &n));
    assert_int_equal(n, bytes);
    assert_memory_equal(back, s, n);
}

static void add_to_hash(const ls_tokenizer *t, bool specials, const char *s, size_t bytes, struct mixed_hash *h)
{
    struct ids ids = encode(t, s, bytes, (ls_encode_options){ .specials = specials }, WHOLE);

    check_decodes(t, &ids, s, bytes);
    mixed_hash_ids(h, ids.at, ids.count);
    mem_free(ids.at);
}

static void check_hash(const char *name, const char *what, size_t i, const json_node *list, const struct mixed_hash *h)
{
    char got[17];

    mixed_hash_text(h, got);
    if (strcmp(got, json_string(json_at(list, i), "none")) != 0)
        fail_msg("%s: %s block %zu differs: %s, expected %s", name, what, i, got,
                 json_string(json_at(list, i), "none"));
}

static void check_lines(const ls_tokenizer *t, const json_node *n)
{
    size_t each = (size_t)json_int(json_get(data_tokenizer_expected, "lines_a_block"), 0), blocks = json_size(json_get(n, "lines"));

    assert_true(each > 0 && blocks > 0);
    for (size_t b = 0; b < blocks; b++) {
        struct mixed_hash h;

        mixed_hash_start(&h);
        for (size_t i = 0; i < each; i++) {
            size_t bytes = mixed_line(json_get(data_tokenizer_expected, "fragments"), b * each + i, text);
            add_to_hash(t, json_bool(json_get(n, "specials"), 0), text, bytes, &h);
        }
        check_hash(json_string(json_get(n, "name"), ""), "lines", b, json_get(n, "lines"), &h);
    }
}

/* Texts of the chosen blocks of code points, 32 of them to a hash. */
static void check_points(const ls_tokenizer *t, const json_node *n)
{
    const char *name = json_string(json_get(n, "name"), "");
    size_t texts = 0, groups = 0;
    struct mixed_hash h;

    for (uint32_t block = 0; block < 0x1100; block++) {
        size_t bytes = mixed_points(block, text);

        if (bytes == 0) continue;
        if (texts++ % 32 == 0) mixed_hash_start(&h);
        add_to_hash(t, json_bool(json_get(n, "specials"), 0), text, bytes, &h);
        if (texts % 32 == 0) check_hash(name, "code points", groups++, json_get(n, "points"), &h);
    }
    if (texts % 32) check_hash(name, "code points", groups++, json_get(n, "points"), &h);
    assert_int_equal(groups, json_size(json_get(n, "points")));
}

static ls_tokenizer *open_named(const json_node *n)
{
    char spec[512];
    ls_tokenizer *t;

    snprintf(spec, sizeof spec, FOLDER "/%s", json_string(json_get(n, "file"), ""));
    OK(ls_tokenizer_open(spec, &t));
    return t;
}

static void ids_equal_reference_packages(void **state)
{
    const json_node *all = json_get(data_tokenizer_expected, "tokenizers");

    (void)state;
    assert_int_equal(json_size(all), 9);
    for (size_t i = 0; i < json_size(all); i++) {
        ls_tokenizer *t = open_named(json_at(all, i));

        check_lines(t, json_at(all, i));
        check_points(t, json_at(all, i));
        ls_tokenizer_close(&t);
    }
}

/* Small chunks, a team of threads, one by one: the same ids. */
static void ids_do_not_depend_on_chunks_or_threads(void **state)
{
    static const char *const specs[] = { "bytes", FOLDER "/gpt2.json", FOLDER "/nfc_digits.json",
                                        FOLDER "/mixed.tiktoken:o200k" };
    size_t bytes = 0;

    (void)state;
    for (uint64_t n = 0; n < 300 && bytes < sizeof text - MIXED_LINE_MOST; n++)
        bytes += mixed_line(json_get(data_tokenizer_expected, "fragments"), n, text + bytes);
    threads_set(3);
    for (size_t i = 0; i < COUNT_OF(specs); i++) {
        ls_tokenizer *t;

        OK(ls_tokenizer_open(specs[i], &t));
        struct ids whole = encode(t, text, bytes, (ls_encode_options){ .specials = 1 }, WHOLE);
        for (int threads = 0; threads < 2; threads++) {
            for (size_t chunk = 1; chunk < 5000; chunk = chunk * 3 + 1) {
                struct ids ids = encode(t, text, bytes, (ls_encode_options){ .specials = 1, .threads = threads },
                                        chunk);

                assert_int_equal(ids.count, whole.count);
                assert_memory_equal(ids.at, whole.at, ids.count * sizeof *ids.at);
                mem_free(ids.at);
            }
        }
        mem_free(whole.at);
        ls_tokenizer_close(&t);
    }
    threads_set(0);
}

static void test_bytes(void **state)
{
    static const char s[] = "A\xc3\xa9<|endoftext|>";
    int32_t ids[32];
    ls_tokenizer *t;
    ls_tokens *tokens;

    (void)state;
    OK(ls_tokenizer_open("bytes", &t));
    assert_int_equal(ls_tokenizer_vocab(t), 257);
    assert_int_equal(ls_tokenizer_end(t), 256);
    assert_int_equal(ls_tokenizer_begin(t), -1);
    OK(ls_tokenizer_encode(t, s, strlen(s), NULL, &tokens));
    assert_int_equal(ls_tokens_count(tokens), strlen(s));
    OK(ls_tokens_read(tokens, 0, strlen(s), 257, ids));
    for (size_t i = 0; i < strlen(s); i++) assert_int_equal(ids[i], (unsigned char)s[i]);
    ls_tokens_close(&tokens);
    OK(ls_tokenizer_encode(t, s, strlen(s), &(ls_encode_options){ .specials = 1, .end = 1 }, &tokens));
    assert_int_equal(ls_tokens_count(tokens), 5);
    OK(ls_tokens_read(tokens, 0, 5, 257, ids));
    assert_memory_equal(ids, ((int32_t[]){ 'A', 0xc3, 0xa9, 256, 256 }), 20);
    ls_tokens_close(&tokens);
    OK(ls_tokenizer_encode(t, "", 0, NULL, &tokens));
    assert_int_equal(ls_tokens_count(tokens), 0);
    ls_tokens_close(&tokens);
    REFUSED(LS_EFORMAT, "byte 0xff at offset 2, line 1", ls_tokenizer_encode(t, "ab\xff", 3, NULL, &tokens));
    ls_tokenizer_close(&t);
    ls_tokenizer_close(&t);
    ls_tokenizer_close(NULL);
}

static void test_token_queries(void **state)
{
    ls_tokenizer *t;
    size_t bytes;
    char small[3];
    int32_t ids[] = { 256, 'h', 'i' };

    (void)state;
    OK(ls_tokenizer_open("bytes", &t));
    OK(ls_tokenizer_decode(t, ids, 3, small, sizeof small, &bytes));
    assert_int_equal(bytes, 15);
    assert_memory_equal(small, "<|e", 3);
    ids[1] = 257;
    REFUSED(LS_EINVAL, "token 257 at position 1 is not in the vocabulary of 257",
            ls_tokenizer_decode(t, ids, 3, NULL, 0, &bytes));
    ids[1] = -1;
    REFUSED(LS_EINVAL, "token -1", ls_tokenizer_decode(t, ids, 3, NULL, 0, &bytes));
    assert_null(ls_tokenizer_token(t, 300, &bytes));
    assert_int_equal(ls_tokenizer_find(t, "<|endoftext|>", 13), 256);
    assert_int_equal(ls_tokenizer_find(t, "zz", 2), -1);
    ls_tokenizer_close(&t);

    OK(ls_tokenizer_open(FOLDER "/llama3.json", &t));
    assert_int_equal(ls_tokenizer_begin(t), 0);
    assert_int_equal(ls_tokenizer_end(t), 0);
    ls_tokenizer_close(&t);
    OK(ls_tokenizer_open(FOLDER "/mixed.tiktoken:cl100k", &t));
    assert_int_equal(ls_tokenizer_vocab(t), 100277);
    assert_int_equal(ls_tokenizer_end(t), 100257);
    assert_null(ls_tokenizer_token(t, 100256, &bytes));
    assert_int_equal(ls_tokenizer_find(t, "<|fim_suffix|>", 14), 100260);
    ls_tokenizer_close(&t);
}

static void test_save_and_open(void **state)
{
    static const char *const specs[] = { "bytes", FOLDER "/llama3.json", FOLDER "/mixed.tiktoken:r50k" };
    size_t bytes = mixed_line(json_get(data_tokenizer_expected, "fragments"), 4711, text);

    (void)state;
    for (size_t i = 0; i < COUNT_OF(specs); i++) {
        ls_tokenizer *a, *b;
        const char *folder = scratch(i == 0 ? "a" : i == 1 ? "b" : "c");

        OK(file_make_folders(folder));
        OK(ls_tokenizer_open(specs[i], &a));
        OK(ls_tokenizer_save(a, folder));
        OK(ls_tokenizer_open(folder, &b));
        struct ids x = encode(a, text, bytes, (ls_encode_options){ 0 }, WHOLE);
        struct ids y = encode(b, text, bytes, (ls_encode_options){ 0 }, WHOLE);
        assert_int_equal(x.count, y.count);
        assert_memory_equal(x.at, y.at, x.count * sizeof *x.at);
        assert_int_equal(ls_tokenizer_vocab(a), ls_tokenizer_vocab(b));
        assert_int_equal(ls_tokenizer_end(a), ls_tokenizer_end(b));
        mem_free(x.at);
        mem_free(y.at);
        ls_tokenizer_close(&a);
        ls_tokenizer_close(&b);
    }
}

static void missing_tokenizer_is_refused(void **state)
{
    ls_tokenizer *t;

    (void)state;
    REFUSED(LS_EINVAL, "tokenizer 'byte' not found: expected bytes,", ls_tokenizer_open("byte", &t));
    REFUSED(LS_EIO, "no/such.json", ls_tokenizer_open("no/such.json", &t));
    REFUSED(LS_EINVAL, "the name contains no pattern", ls_tokenizer_open(FOLDER "/mixed.tiktoken", &t));
    REFUSED(LS_EINVAL, "pattern 'gpt9'", ls_tokenizer_open(FOLDER "/mixed.tiktoken:gpt9", &t));
    REFUSED(LS_EIO, "no tokenizer.json and no PATTERN.tiktoken", ls_tokenizer_open(TEST_DIR, &t));
}

static ls_status tokenizer_train(const char *s, int32_t vocab, const char *pattern, ls_tokenizer **t)
{
    return ls_tokenizer_train(s, strlen(s), &(ls_bpe_options){ vocab, pattern }, t);
}

/* Pairs of "low lower lowest": l o and o w come three times, and l o is the smaller; then lo w; twice come _ low and
 * low e, of which _ low is the smaller, then _low e; of those that come once, s t is the smallest. */
static void test_train_by_hand(void **state)
{
    static const char *const learned[] = { "lo", "low", " low", " lowe", "st" };
    ls_tokenizer *t;
    size_t bytes;

    (void)state;
    OK(tokenizer_train("low lower lowest", 262, "gpt2", &t));
    assert_int_equal(ls_tokenizer_vocab(t), 262);
    assert_int_equal(ls_tokenizer_end(t), 261);
    for (int i = 0; i < 5; i++) {
        const char *token = ls_tokenizer_token(t, 256 + i, &bytes);
        assert_int_equal(bytes, strlen(learned[i]));
        assert_memory_equal(token, learned[i], bytes);
    }
    assert_int_equal(*ls_tokenizer_token(t, 0, &bytes), '!');
    ls_tokenizer_close(&t);
    OK(tokenizer_train("ab", 9000, "cl100k", &t));  /* one pair, then none */
    assert_int_equal(ls_tokenizer_vocab(t), 258);
    ls_tokenizer_close(&t);
    REFUSED(LS_EINVAL, "is empty", tokenizer_train("", 300, "gpt2", &t));
    REFUSED(LS_EINVAL, "the vocabulary size is 256", tokenizer_train("ab", 256, "gpt2", &t));
    REFUSED(LS_EINVAL, "pattern 'x'", tokenizer_train("ab", 300, "x", &t));
    REFUSED(LS_EFORMAT, "text: not UTF-8: byte 0xfe at offset 3, line 2", tokenizer_train("ab\n\xfe", 300, "gpt2", &t));
}

/* The tokenizers package's ids of single bytes are ours: its trainer sorts the same alphabet. */
static void training_equals_reference_package(void **state)
{
    const json_node *all = json_get(data_tokenizer_expected, "trained");
    size_t bytes = 0;

    (void)state;
    for (uint64_t n = 2000000; n < 2003000; n++) bytes += mixed_line(json_get(data_tokenizer_expected, "fragments"), n, text + bytes);
    assert_int_equal(json_size(all), 3);
    for (size_t i = 0; i < json_size(all); i++) {
        const json_node *n = json_at(all, i);
        ls_bpe_options o = { (int32_t)json_int(json_get(n, "vocab"), 0), json_string(json_get(n, "pattern"), "") };
        ls_tokenizer *t;
        struct mixed_hash h;
        char got[17];

        OK(ls_tokenizer_train(text, bytes, &o, &t));
        mixed_hash_start(&h);
        assert_int_equal(t->bpe.merges, json_int(json_get(n, "merges"), -1));
        for (uint32_t rank = 0; rank < t->bpe.merges; rank++) {
            for (size_t s = 0; s < t->bpe.cells; s++) {
                const struct merge *m = &t->bpe.merge[s];

                if (m->id < 0 || m->rank != rank) continue;
                mixed_hash_ids(&h, (int32_t[]){ (int32_t)(m->pair >> 32), (int32_t)(uint32_t)m->pair }, 2);
            }
        }
        mixed_hash_text(&h, got);
        assert_string_equal(got, json_string(json_get(n, "hash"), ""));
        ls_tokenizer_close(&t);
    }
}

static void trained_tokenizer_round_trips(void **state)
{
    size_t bytes = mixed_line(json_get(data_tokenizer_expected, "fragments"), 99, text);
    ls_tokenizer *a, *b;

    (void)state;
    for (uint64_t n = 100; n < 200; n++) bytes += mixed_line(json_get(data_tokenizer_expected, "fragments"), n, text + bytes);
    OK(ls_tokenizer_train(text, bytes, &(ls_bpe_options){ 700, "o200k" }, &a));
    OK(ls_tokenizer_save(a, scratch(".")));
    OK(ls_tokenizer_open(scratch("tokenizer.json"), &b));
    struct ids x = encode(a, text, bytes, (ls_encode_options){ 0 }, 1000);
    struct ids y = encode(b, text, bytes, (ls_encode_options){ 0 }, WHOLE);
    assert_int_equal(x.count, y.count);
    assert_memory_equal(x.at, y.at, x.count * sizeof *x.at);
    check_decodes(b, &x, text, bytes);
    mem_free(x.at);
    mem_free(y.at);
    file_fail_at(1);
    REFUSED(LS_EIO, "tokenizer.json.tmp", ls_tokenizer_save(a, scratch(".")));
    ls_tokenizer_close(&a);
    ls_tokenizer_close(&b);
}

/* Long pre-tokens are merged with a heap, short ones by search: both give the result of the literal rule. */
static void test_long_pretokens(void **state)
{
    ls_tokenizer *t;

    (void)state;
    OK(ls_tokenizer_open(FOLDER "/gpt2.json", &t));
    for (size_t n = 1; n < 400; n += 1 + n / 7) {
        for (size_t i = 0; i < n; i++) text[i] = "aaabthe"[(i * i / 3 + i) % 7];
        struct ids got = encode(t, text, n, (ls_encode_options){ 0 }, WHOLE), slow = { 0 };

        for (size_t i = 0; i < n; i++) assert_int_equal(ids_push(&slow, t->bpe.byte_id[(unsigned char)text[i]]), LS_OK);
        for (;;) {
            const struct merge *best = NULL;
            size_t at = 0;

            for (size_t i = 0; i + 1 < slow.count; i++) {
                const struct merge *m = bpe_find_merge(&t->bpe, slow.at[i], slow.at[i + 1]);

                if (m && (!best || m->rank < best->rank)) best = m, at = i;
            }
            if (!best) break;
            slow.at[at] = best->id;
            memmove(slow.at + at + 1, slow.at + at + 2, (slow.count - at - 2) * sizeof *slow.at);
            slow.count--;
        }
        assert_int_equal(got.count, slow.count);
        assert_memory_equal(got.at, slow.at, got.count * sizeof *got.at);
        mem_free(got.at);
        mem_free(slow.at);
    }
    ls_tokenizer_close(&t);
}

/* The memory used while a text is encoded, beyond its tokens, is at most a quarter of the text plus some windows. */
static void encoding_needs_little_memory_beside_tokens(void **state)
{
    enum { MOST = 4 << 20 };
    ls_tokenizer *t;
    size_t beyond[2];
    char *s = mem_alloc(MEM_OTHER, MOST);

    (void)state;
    assert_non_null(s);
    for (size_t i = 0; i < MOST; i++) s[i] = i % 7 == 6 ? ' ' : (char)('a' + i * 31 % 26);
    OK(ls_tokenizer_open("bytes", &t));
    for (int k = 0; k < 2; k++) {
        struct mem_stats before, after;
        ls_tokens *tokens;
        size_t bytes = k ? MOST : MOST / 4;

        mem_reset_peak();
        mem_read(&before);
        OK(ls_tokenizer_encode(t, s, bytes, NULL, &tokens));
        mem_read(&after);
        assert_int_equal(ls_tokens_count(tokens), bytes);
        beyond[k] = after.total_peak - before.total_now - 2 * bytes - 2 * bytes / 8;
        ls_tokens_close(&tokens);
    }
    assert_in_range(beyond[1], 0, beyond[0] + MOST / 4);
    assert_in_range(beyond[0], 0, MOST / 4);
    mem_free(s);
    ls_tokenizer_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_reference_packages),
        cmocka_unit_test(ids_do_not_depend_on_chunks_or_threads),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_token_queries),
        cmocka_unit_test_setup_teardown(test_save_and_open, scratch_set_up, scratch_tear_down),
        cmocka_unit_test(missing_tokenizer_is_refused),
        cmocka_unit_test(test_train_by_hand),
        cmocka_unit_test(training_equals_reference_package),
        cmocka_unit_test_setup_teardown(trained_tokenizer_round_trips, scratch_set_up, scratch_tear_down),
        cmocka_unit_test(test_long_pretokens),
        cmocka_unit_test(encoding_needs_little_memory_beside_tokens),
    };

    return cmocka_run_group_tests(tests, open_expected, close_expected);
}
