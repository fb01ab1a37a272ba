/* test_base_text.c - text buffers, numbers for people and for parsers, UTF-8, edit distances; content hashes and CRC-32C. */
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/crc.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/text.h"
#include "train/faults/fault_points.h"

static void buffers_grow(void **state)
{
    struct text t = { 0 };

    (void)state;
    for (int i = 0; i < 1000; i++) text_put(&t, "%d,", i % 10), text_add(&t, "\0x", 2);
    assert_int_equal(text_status(&t), LS_OK);
    assert_int_equal(t.bytes, 4000);
    assert_memory_equal(t.data + 3996, "9,\0x", 5);
    text_free(&t);
    assert_null(t.data);
    mem_fail_at(2);
    for (int i = 0; i < 1000; i++) text_put(&t, "%d", i);
    mem_fail_at(0);
    assert_int_equal(text_status(&t), LS_ENOMEM);
    assert_int_equal(strlen(t.data), t.bytes); /* the part that fitted is intact */
    text_free(&t);
    text_add(&t, "x", SIZE_MAX / 2);
    assert_int_equal(text_status(&t), LS_ENOMEM);
    assert_non_null(strstr(ls_errmsg(), "out of memory"));
    text_free(&t);
}

static void bytes_are_formatted(void **state)
{
    static const struct { size_t bytes; const char *text; } cases[] = {
        { 0, "0 B" }, { 17, "17 B" }, { 999, "999 B" }, { 1000, "0.98 KiB" }, { 1024, "1.00 KiB" }, { 1536, "1.50 KiB" },
        { 10 * 1024, "10.0 KiB" }, { 100 * 1024, "100 KiB" }, { 10230, "9.99 KiB" }, { 10239, "10.0 KiB" },
        { 3 * (1ull << 29), "1.50 GiB" }, { 1ull << 40, "1.00 TiB" }, { SIZE_MAX, "16.0 EiB" },
    };
    char out[16];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) assert_string_equal(text_bytes(out, cases[i].bytes), cases[i].text);
    char exact[32];
    assert_string_equal(text_size(exact, 0), "0");
    assert_string_equal(text_size(exact, 1025), "1025");
    assert_string_equal(text_size(exact, 25 << 20), "25MiB");
    assert_string_equal(text_size(exact, 1ull << 50), "1048576GiB");
}

static void counts_are_formatted(void **state)
{
    char out[32];

    (void)state;
    assert_string_equal(text_count(out, 0), "0");
    assert_string_equal(text_count(out, 999), "999");
    assert_string_equal(text_count(out, 1000), "1,000");
    assert_string_equal(text_count(out, -1234567), "-1,234,567");
    assert_string_equal(text_count(out, INT64_MIN), "-9,223,372,036,854,775,808");
    assert_string_equal(text_count(out, INT64_MAX), "9,223,372,036,854,775,807");
}

static void reals_read_back(void **state)
{
    char out[TEXT_NUMBER_ROOM];

    (void)state;
    assert_string_equal(text_real(out, 0.1), "0.1");
    assert_string_equal(text_real(out, 1000), "1000.0");
    assert_string_equal(text_real(out, -0.0), "-0.0");
    assert_string_equal(text_real(out, 1e22), "1e+22");
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t bits = (uint64_t)rng_u32(1, 2, 2 * i) << 32 | rng_u32(1, 2, 2 * i + 1);
        double value, back = 0;

        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) continue;
        assert_true(text_read_real(text_real(out, value), &back));
        assert_memory_equal(&back, &value, sizeof back);
    }
}

static void trailing_characters_of_numbers_are_refused(void **state)
{
    static const char *const no_int[] = { "", "-", "+", "1.0", "1e3", " 1", "1 ", "0x10", "--1", "9223372036854775808", "1_000", "-+1" };
    static const char *const no_real[] = { "", ".", "-", "e5", "1e", "1e+", "nan", "inf", "0x1p3", "1,5", " 1", "1 ", "1e999", "1.2.3" };
    int64_t i = 7;
    double r = 7;

    (void)state;
    assert_true(text_read_int("-9223372036854775808", &i) && i == INT64_MIN);
    assert_true(text_read_int("+12", &i) && i == 12);
    for (size_t k = 0; k < COUNT_OF(no_int); k++) assert_false(text_read_int(no_int[k], &i));
    assert_int_equal(i, 12);
    assert_true(text_read_real("1.", &r) && r == 1);
    assert_true(text_read_real(".5", &r) && r == 0.5);
    assert_true(text_read_real("-3E-4", &r) && r == -3e-4);
    for (size_t k = 0; k < COUNT_OF(no_real); k++) assert_false(text_read_real(no_real[k], &r));
    assert_true(r == -3e-4);
}

static void byte_sizes_are_read(void **state)
{
    static const struct { const char *text; size_t bytes; } good[] = {
        { "0", 0 }, { "4096", 4096 }, { "64KiB", 65536 }, { "64 KiB", 65536 }, { "1.5GiB", 3ull << 29 }, { "10MB", 10000000 },
        { "2 B", 2 }, { "3KB", 3000 }, { "1e3", 1000 }, { "0.5 KB", 500 }, { "2GB", 2000000000 }, { "7 MiB", 7 << 20 },
        { "9007199254740993", 9007199254740993 }, { "9.1MiB", 9542041 }, { "0.3KiB", 307 }, { "0.29 KB", 290 }, { "1.001MB", 1001000 },
        { "0.001KiB", 1 },
    };
    static const char *const bad[] = { "", "-1", "1.5", "1 k", "1kib", "1  KiB", "KiB", "1TiB", "1e30", "1.5 B", "0.0009KiB", "nan",
                                       "1KiB " };
    size_t bytes = 7;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        assert_true(text_read_bytes(good[i].text, &bytes));
        assert_int_equal(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) assert_false(text_read_bytes(bad[i], &bytes));
}

/* A locale with a decimal comma changes nothing. Where none is installed, "C" is tested once more. */
static void locales_do_not_matter(void **state)
{
    static const char *const commas[] = { "de_DE.UTF-8", "fr_FR.UTF-8", "C" };
    char out[TEXT_NUMBER_ROOM];
    double back = 0;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(commas) && !setlocale(LC_NUMERIC, commas[i]); i++) { }
    assert_string_equal(text_real(out, 2.5), "2.5");
    assert_true(text_read_real("2.5", &back) && back == 2.5);
    assert_true(text_read_real("2.5e1", &back) && back == 25);
    setlocale(LC_NUMERIC, "C");
}

static void utf8_is_decoded_strictly(void **state)
{
    static const char *const bad[] = { "\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                                       "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xff", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xc3(" };
    uint32_t code = 0;

    (void)state;
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        char s[5] = { 0 };
        size_t length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

        if (c >= 0xd800 && c < 0xe000) continue;
        for (size_t i = length - 1; i > 0; i--) s[i] = (char)(0x80 | (c >> 6 * (length - 1 - i) & 0x3f));
        s[0] = (char)(length == 1 ? c : (0xf00u >> length & 0xff) | c >> 6 * (length - 1));
        if (text_utf8(s, &code) != length || code != c) fail_msg("U+%04X", (unsigned)c);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) assert_int_equal(text_utf8(bad[i], &code), 0);
}

static void edit_distances_are_right(void **state)
{
    static const struct { const char *a, *b; size_t distance; } cases[] = {
        { "", "", 0 }, { "", "abc", 3 }, { "steps", "steps", 0 }, { "stepz", "steps", 1 }, { "step", "steps", 1 },
        { "setps", "steps", 1 }, { "kitten", "sitting", 3 }, { "train.lr", "optim.lr", 4 }, { "ca", "abc", 3 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(text_distance(cases[i].a, cases[i].b), cases[i].distance);
        assert_int_equal(text_distance(cases[i].b, cases[i].a), cases[i].distance);
    }
    char big[200];
    memset(big, 'a', 199);
    big[199] = '\0';
    assert_int_equal(text_distance(big, ""), 64);  /* names are compared up to 64 letters */
}

/* XXH3_128bits with seed 0, as xxhsum -H2 prints it. */
static void hash_is_xxh3(void **state)
{
    char hex[HASH_ROOM], parts[HASH_ROOM], data[3000];
    hash_state *h = NULL;

    (void)state;
    hash_of("", 0, hex);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 7);
    hash_of(data, sizeof data, hex);
    assert_int_equal(hash_begin(&h), LS_OK);
    for (size_t at = 0, part = 0; at < sizeof data; at += part, part++) {
        part = MIN(part, sizeof data - at);
        hash_add(h, data + at, part);
    }
    hash_end(&h, parts);
    assert_null(h);
    assert_string_equal(hex, parts);
    data[1500] ^= 1;
    hash_of(data, sizeof data, parts);
    assert_string_not_equal(hex, parts);
    hash_end(&h, NULL);
    assert_int_equal(hash_begin(&h), LS_OK);
    hash_end(&h, NULL);
    mem_fail_at(1);
    assert_int_equal(hash_begin(&h), LS_ENOMEM);
    assert_null(h);
}

static void crc_is_that_of_tensorboard_records(void **state)
{
    /* From event files: the eight bytes of the length, then the data. */
    static const unsigned char length1[8] = { 24 }, length2[8] = { 26 };
    static const unsigned char data1[] = "\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0d" "brain.Event:2";
    static const unsigned char data2[] = "\x09\0\0\0\0\0\0\xf0\x3f\x10\x07\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\x20\x40";

    (void)state;
    assert_int_equal(crc32c("", 0), 0);
    assert_int_equal(crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(crc32c_masked("123456789", 9), 0xc78ab0e5u);
    assert_int_equal(crc32c_masked(length1, 8), 0x224b7fa3u);
    assert_int_equal(crc32c_masked(data1, 24), 0x7a57bf86u);
    assert_int_equal(crc32c_masked(length2, 8), 0x2dd89b12u);
    assert_int_equal(crc32c_masked(data2, 26), 0x3dc4cc87u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_grow),          cmocka_unit_test(bytes_are_formatted),
        cmocka_unit_test(counts_are_formatted),     cmocka_unit_test(reals_read_back),
        cmocka_unit_test(trailing_characters_of_numbers_are_refused), cmocka_unit_test(byte_sizes_are_read),
        cmocka_unit_test(locales_do_not_matter), cmocka_unit_test(utf8_is_decoded_strictly),
        cmocka_unit_test(edit_distances_are_right),             cmocka_unit_test(hash_is_xxh3),
        cmocka_unit_test(crc_is_that_of_tensorboard_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
