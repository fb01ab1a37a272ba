/* test_data_tokens.c - token files: bytes as specified, written and read again; every kind of damage is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "data/tokens.h"
#include "helper_checkpoint.h"
#include "train/faults/fault_points.h"

/* Tokens first, first + step, ... modulo vocab. */
static ls_tokens *tokens_make(size_t count, int32_t first, int32_t step, int32_t vocab)
{
    struct ids ids = { 0 };
    ls_tokens *t;

    for (size_t i = 0; i < count; i++) OK(ids_push(&ids, (int32_t)((first + (int64_t)i * step) % vocab)));
    OK(tokens_from_ids(&ids, vocab, &t));
    mem_free(ids.at);
    return t;
}

static void check_same(const ls_tokens *a, const ls_tokens *b, int32_t vocab)
{
    int32_t x[64], y[64];

    assert_int_equal(ls_tokens_count(a), ls_tokens_count(b));
    for (size_t at = 0; at < ls_tokens_count(a); at += 64) {
        size_t n = MIN((size_t)64, ls_tokens_count(a) - at);

        OK(ls_tokens_read(a, at, n, vocab, x));
        OK(ls_tokens_read(b, at, n, vocab, y));
        assert_memory_equal(x, y, n * sizeof *x);
    }
}

static void check_file(const char *path, const void *wanted, size_t bytes)
{
    char *got;
    size_t n;

    OK(file_read(path, &got, &n));
    assert_int_equal(n, bytes);
    assert_memory_equal(got, wanted, bytes);
    mem_free(got);
}

static void test_write_and_read(void **state)
{
    static const struct { const char *format, *file, *type; int32_t vocab; } cases[] = {
        { "llmc", "a.bin", "u16", 50257 },         { "llmc", "a.bin", "u16", 65536 },
        { "llmc-llama3", "b.bin", "u32", 128256 }, { "nanogpt", "c.bin", "u16", 300 },
        { "megatron", "d.bin", "u16", 65499 },     { "megatron", "e", "i32", 65500 },
        { "megatron", "f.idx", "i32", 200000 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (size_t count = 0; count < 9000; count = count * 5 + 1) {
            ls_tokens *t = tokens_make(count, 7, 4099, cases[i].vocab), *back, *named;

            if (count > 100) OK(ls_tokens_mark(t, 7));
            OK(ls_tokens_save(t, scratch(cases[i].file), cases[i].format, cases[i].vocab));
            OK(ls_tokens_open(scratch(cases[i].file), NULL, &back));
            OK(ls_tokens_open(scratch(cases[i].file), cases[i].format, &named));
            assert_string_equal(ls_tokens_format(back), cases[i].format);
            assert_string_equal(ls_tokens_type(back), cases[i].type);
            check_same(t, back, cases[i].vocab);
            check_same(t, named, cases[i].vocab);
            if (strcmp(cases[i].format, "megatron") == 0) {
                assert_int_equal(ls_tokens_documents(back), ls_tokens_documents(t));
                for (size_t d = 0; d < ls_tokens_documents(t); d++) {
                    ls_range x = ls_tokens_document(t, d), y = ls_tokens_document(back, d);
                    assert_true(x.begin == y.begin && x.end == y.end);
                }
            }
            ls_tokens_close(&t);
            ls_tokens_close(&back);
            ls_tokens_close(&named);
        }
    }
}

static const unsigned char index_of_two[] = {  /* 3 and 1 tokens of u16, two documents */
    'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0,
    3, 0, 0, 0, 1, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
};

static void test_bytes_of_files(void **state)
{
    static const unsigned char four[] = { 5, 0, 1, 1, 9, 0, 5, 0 };  /* 5 257 9 5 */
    unsigned char header[1032] = { 0 };
    struct ids ids = { 0 };
    ls_tokens *t;

    (void)state;
    for (int i = 0; i < 4; i++) OK(ids_push(&ids, ((int[]){ 5, 257, 9, 5 })[i]));
    OK(tokens_from_ids(&ids, 300, &t));
    mem_free(ids.at);
    OK(ls_tokens_save(t, scratch("n.bin"), "nanogpt", 300));
    check_file(scratch("n.bin"), four, sizeof four);
    memcpy(header, (int32_t[]){ 20240520, 1, 4 }, 12);
    memcpy(header + 1024, four, 8);
    OK(ls_tokens_save(t, scratch("l.bin"), "llmc", 300));
    check_file(scratch("l.bin"), header, sizeof header);
    OK(ls_tokens_mark(t, 9));
    OK(ls_tokens_save(t, scratch("m.bin"), "megatron", 300));
    check_file(scratch("m.bin"), four, sizeof four);
    check_file(scratch("m.idx"), index_of_two, sizeof index_of_two);
    ls_tokens_close(&t);
}

static void test_vocabulary(void **state)
{
    ls_tokens *t = tokens_make(100, 0, 1, 1000), *back;
    int32_t ids[100];

    (void)state;
    REFUSED(LS_EINVAL, "a vocabulary of 65537 does not fit the u16 of format llmc (at most 65536)",
            ls_tokens_save(t, scratch("a.bin"), "llmc", 65537));
    REFUSED(LS_EINVAL, "does not fit the u16 of format nanogpt",
            ls_tokens_save(t, scratch("a.bin"), "nanogpt", 100000));
    REFUSED(LS_EINVAL, "a vocabulary of 0", ls_tokens_save(t, scratch("a.bin"), "megatron", 0));
    REFUSED(LS_EFORMAT, "text: token 50 at position 50 is not in the vocabulary of 50",
            ls_tokens_save(t, scratch("a.bin"), "nanogpt", 50));
    assert_false(file_exists(scratch("a.bin")) || file_exists(scratch("a.bin.tmp")));
    REFUSED(LS_EFORMAT, "token 99 at position 99", ls_tokens_check(t, 99));
    OK(ls_tokens_check(t, 100));
    OK(ls_tokens_save(t, scratch("a.bin"), "nanogpt", 100));
    OK(ls_tokens_open(scratch("a.bin"), NULL, &back));
    REFUSED(LS_EFORMAT, "a.bin: token 10 at position 10 is not in the vocabulary of 10",
            ls_tokens_read(back, 5, 20, 10, ids));
    REFUSED(LS_EINVAL, "tokens 90 .. 101 are requested, but there are only 100", ls_tokens_read(back, 90, 11, 100, ids));
    REFUSED(LS_EINVAL, "are requested", ls_tokens_read(back, SIZE_MAX, 2, 100, ids));
    REFUSED(LS_EINVAL, "unknown token format 'npy'; use", ls_tokens_open("x", "npy", &t));
    REFUSED(LS_EINVAL, "token format 'npy'", ls_tokens_save(back, "x", "npy", 100));
    ls_tokens_close(&t);
    ls_tokens_close(&back);
}

static void malformed_flat_files_are_refused(void **state)
{
    int32_t header[258] = { 20240520, 1, 4 };
    ls_tokens *t;

    (void)state;
    OK(file_write(scratch("odd.bin"), "abc", 3));
    REFUSED(LS_EFORMAT, "odd.bin: 3 bytes: u16 tokens need an even number", ls_tokens_open(scratch("odd.bin"), NULL, &t));
    REFUSED(LS_EFORMAT, "odd.bin: 3 bytes, shorter than llm.c's header",
            ls_tokens_open(scratch("odd.bin"), "llmc", &t));
    OK(file_write(scratch("notes.txt"), "abcd", 4));
    REFUSED(LS_EFORMAT, "notes.txt: not a token file", ls_tokens_open(scratch("notes.txt"), NULL, &t));
    REFUSED(LS_EIO, "none.bin", ls_tokens_open(scratch("none.bin"), NULL, &t));

    header[2] = 5;
    OK(file_write(scratch("l.bin"), header, sizeof header));
    REFUSED(LS_EFORMAT, "1032 bytes, but the header says 5 tokens of 2 bytes",
            ls_tokens_open(scratch("l.bin"), NULL, &t));
    header[2] = -1;
    OK(file_write(scratch("l.bin"), header, sizeof header));
    REFUSED(LS_EFORMAT, "says -1 tokens", ls_tokens_open(scratch("l.bin"), NULL, &t));
    header[1] = 2;
    OK(file_write(scratch("l.bin"), header, sizeof header));
    REFUSED(LS_EFORMAT, "version 2, expected 1", ls_tokens_open(scratch("l.bin"), NULL, &t));
    REFUSED(LS_EFORMAT, "magic 20240520, expected 20240801", ls_tokens_open(scratch("l.bin"), "llmc-llama3", &t));
    header[0] = 20240326;
    OK(file_write(scratch("l.bin"), header, sizeof header));
    REFUSED(LS_EFORMAT, "llm.c's GPT-2 weights, not tokens", ls_tokens_open(scratch("l.bin"), NULL, &t));
}

static void malformed_megatron_files_are_refused(void **state)
{
    static const struct { size_t at; unsigned char byte; const char *message; } cases[] = {
        { 0, 'X', "not Megatron's: it does not start" },
        { 9, 2, "version 2, expected 1" },
        { 17, 6, "type 6 is not an integer type" },
        { 17, 0, "type 0 is not an integer" },
        { 17, 9, "type 9 is not an integer" },
        { 18, 3, "do not hold exactly 3 sequences" },
        { 25, 0xff, "do not hold exactly" },
        { 26, 2, "and 2 document boundaries" },
        { 33, 0xff, "do not hold exactly" },
        { 34, 4, "sequence 1 has 1 tokens, but the .bin has only 0 left" },
        { 34, 9, "sequence 0 has 9 tokens, but the .bin has only 4 left" },
        { 37, 0x80, "tokens, but the .bin has only 4 left" },
        { 38, 0, "3 tokens of 2 bytes, the .bin 8 bytes" },
        { 38, 2, "sequence 1 has 2 tokens, but the .bin has only 1 left" },
        { 42, 1, "sequence 0 starts at byte 1; expected 0" },
        { 50, 7, "sequence 1 starts at byte 7; expected 6" },
        { 58, 1, "the first document starts at sequence 1, not 0" },
        { 66, 3, "the last document boundary is not 2" },
        { 74, 1, "the last document boundary is not 2" },
        { 74, 3, "the last document boundary is not 2" },
        { 81, 0x80, "the last document boundary is not 2" },
        { 17, 4, ".bin has only 2 left" },
    };
    unsigned char idx[sizeof index_of_two];
    ls_tokens *t;

    (void)state;
    OK(file_write(scratch("m.bin"), "\5\0\1\1\11\0\5", 8));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        memcpy(idx, index_of_two, sizeof idx);
        idx[cases[i].at] = cases[i].byte;
        OK(file_write(scratch("m.idx"), idx, sizeof idx));
        REFUSED(LS_EFORMAT, cases[i].message, ls_tokens_open(scratch("m.bin"), NULL, &t));
    }
    for (size_t bytes = 0; bytes < sizeof idx; bytes++) {
        OK(file_write(scratch("m.idx"), index_of_two, bytes));
        REFUSED(LS_EFORMAT, "index: ", ls_tokens_open(scratch("m"), NULL, &t));
    }
    OK(file_write(scratch("m.idx"), index_of_two, sizeof idx));
    OK(ls_tokens_open(scratch("m.idx"), NULL, &t));
    assert_int_equal(ls_tokens_documents(t), 2);
    assert_int_equal(ls_tokens_document(t, 1).begin, 3);
    REFUSED(LS_EINVAL, "its 2 documents are already known", ls_tokens_mark(t, 0));
    ls_tokens_close(&t);
}

/* The other types that Megatron writes, and values in them that are not tokens. */
static void test_types(void **state)
{
    static const struct { unsigned char code; size_t bytes; int is_signed; } types[] = {
        { 1, 1, 0 }, { 2, 1, 1 }, { 3, 2, 1 }, { 4, 4, 1 }, { 5, 8, 1 },
    };
    unsigned char idx[34 + 12 + 16], bin[24];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        int32_t ids[3];
        ls_tokens *t;

        memset(idx, 0, sizeof idx);
        memset(bin, 0, sizeof bin);
        memcpy(idx, index_of_two, 18);
        idx[17] = types[i].code;
        idx[18] = 1;
        idx[26] = 2;
        idx[34] = 3;
        idx[54] = 1;
        for (size_t k = 0; k < 3; k++) bin[k * types[i].bytes] = (unsigned char)(k + 100);
        struct file_map b = { bin, 3 * types[i].bytes }, x = { idx, sizeof idx };
        OK(tokens_from_memory(&token_format_megatron, b, x, "m", &t));
        OK(ls_tokens_read(t, 0, 3, 103, ids));
        assert_memory_equal(ids, ((int32_t[]){ 100, 101, 102 }), 12);
        bin[3 * types[i].bytes - 1] = 0xff;
        ls_status st = ls_tokens_read(t, 0, 3, INT32_MAX, ids);
        assert_int_equal(st, types[i].is_signed ? LS_EFORMAT : LS_OK);
        ls_tokens_close(&t);
    }
}

static void test_documents(void **state)
{
    ls_tokens *t = tokens_make(20, 0, 1, 8);  /* 0..7 0..7 0..3 */

    (void)state;
    assert_int_equal(ls_tokens_documents(t), 1);
    assert_int_equal(ls_tokens_document(t, 0).end, 20);
    OK(ls_tokens_mark(t, 3));
    assert_int_equal(ls_tokens_documents(t), 3);
    assert_int_equal(ls_tokens_document(t, 0).end, 4);
    assert_int_equal(ls_tokens_document(t, 1).begin, 4);
    assert_int_equal(ls_tokens_document(t, 2).begin, 12);
    assert_int_equal(ls_tokens_document(t, 2).end, 20);
    ls_tokens_close(&t);
}

static void check_split(ls_tokens *t, double fraction, size_t seq_len, size_t cut)
{
    ls_range train, validation;

    OK(ls_tokens_split(t, fraction, seq_len, &train, &validation));
    assert_int_equal(train.begin, 0);
    assert_int_equal(train.end, cut);
    assert_int_equal(validation.begin, cut);
    assert_int_equal(validation.end, ls_tokens_count(t));
}

static void test_split(void **state)
{
    ls_tokens *t = tokens_make(1000, 0, 1, 400), *empty = tokens_make(0, 0, 1, 2);  /* 399 at 399 and 799 */
    ls_range a, b;

    (void)state;
    check_split(t, 0, 10, 1000);
    check_split(t, 0.05, 10, 950);
    check_split(t, 0.05, 48, 912);           /* a multiple of 48 */
    check_split(t, 0.001, 64, 896);          /* at least one sample: from 935 down */
    check_split(t, 0.5, 400, 500);           /* a border at 400 would leave no sample before it: the very place */
    OK(ls_tokens_mark(t, 399));
    check_split(t, 0.25, 10, 800);           /* the document border at 800 is near 750 */
    check_split(t, 0.05, 10, 950);           /* but not near 950 */
    REFUSED(LS_EINVAL, "1000 tokens are fewer than one sample of 1000 + 1", ls_tokens_split(t, 0.1, 1000, &a, &b));
    REFUSED(LS_EINVAL, "1000 tokens do not hold one sample of 500 + 1 to train on and 501",
            ls_tokens_split(t, 0.1, 500, &a, &b));
    REFUSED(LS_EINVAL, "fraction is 1;", ls_tokens_split(t, 1, 10, &a, &b));
    REFUSED(LS_EINVAL, "nan; must be at least 0 and below 1", ls_tokens_split(t, 0.0 / 0.0, 10, &a, &b));
    REFUSED(LS_EINVAL, "the sequence length is 0", ls_tokens_split(t, 0.1, 0, &a, &b));
    REFUSED(LS_EINVAL, "text: empty", ls_tokens_split(empty, 0.1, 10, &a, &b));
    ls_tokens_close(&t);
    ls_tokens_close(&empty);
}

/* A disk that is full at the Nth write: refused, nothing half-written, and the old file stays. */
static void test_full_disk(void **state)
{
    ls_tokens *old = tokens_make(10, 0, 1, 100), *t = tokens_make(300000, 0, 1, 70000), *back;

    (void)state;
    OK(ls_tokens_save(old, scratch("a.bin"), "megatron", 100));
    for (int n = 1; n < 4; n++) {
        file_fail_at(n);
        REFUSED(LS_EIO, "No space left", ls_tokens_save(t, scratch("a.bin"), "megatron", 70000));
        file_fail_at(0);
        OK(ls_tokens_open(scratch("a.bin"), NULL, &back));
        check_same(old, back, 100);
        ls_tokens_close(&back);
    }
    assert_false(file_exists(scratch("a.bin.tmp")) || file_exists(scratch("a.idx.tmp")));
    ls_tokens_close(&old);
    ls_tokens_close(&t);
}

int main(void)
{
#define WITH_FOLDER(f) cmocka_unit_test_setup_teardown(f, scratch_set_up, scratch_tear_down)
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(test_write_and_read), WITH_FOLDER(test_bytes_of_files), WITH_FOLDER(test_vocabulary),
        WITH_FOLDER(malformed_flat_files_are_refused),   WITH_FOLDER(malformed_megatron_files_are_refused), cmocka_unit_test(test_types),
        cmocka_unit_test(test_documents), cmocka_unit_test(test_split),      WITH_FOLDER(test_full_disk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
