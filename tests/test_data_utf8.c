/* test_data_utf8.c - UTF-8 compared with the table of RFC 3629, the byte alphabet with GPT-2's, and NFC's quick check. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"
#include "data/byte_alphabet.h"
#include "data/normalize.h"
#include "data/utf8.h"

static void test_every_code_point(void **state)
{
    unsigned char text[4];
    uint32_t back;

    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xd800 && c < 0xe000) continue;
        size_t n = utf8_encode(c, text);
        assert_int_equal(n, c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4);
        if (utf8_decode(text, n, &back) != n || back != c) fail_msg("U+%04X comes back as U+%04X", c, back);
        if (utf8_decode(text, n - 1, &back) != 0 && n > 1) fail_msg("U+%04X cut short is read", c);
    }
}

/* The ranges of the second byte, by the first; the rest are 80..BF. */
static int is_sequence(const unsigned char *b, size_t n)
{
    static const struct { unsigned char first, last, low, high; size_t n; } rows[] = {
        { 0x00, 0x7f, 0, 0, 1 },       { 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 },
        { 0xe1, 0xec, 0x80, 0xbf, 3 }, { 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 },
        { 0xf0, 0xf0, 0x90, 0xbf, 4 }, { 0xf1, 0xf3, 0x80, 0xbf, 4 }, { 0xf4, 0xf4, 0x80, 0x8f, 4 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (b[0] < rows[i].first || b[0] > rows[i].last) continue;
        if (n != rows[i].n) return 0;
        for (size_t k = 1; k < n; k++)
            if (b[k] < (k == 1 ? rows[i].low : 0x80) || b[k] > (k == 1 ? rows[i].high : 0xbf)) return 0;
        return 1;
    }
    return 0;
}

static void test_every_short_sequence(void **state)
{
    static const unsigned char third[] = { 0x00, 0x7f, 0x80, 0xbf, 0xc0, 0xff };
    uint32_t point;

    (void)state;
    for (uint32_t v = 0; v < 65536 * COUNT_OF(third); v++) {
        uint32_t two = v / COUNT_OF(third);
        unsigned char b[4] = { (unsigned char)(two >> 8), (unsigned char)two, third[v % COUNT_OF(third)], 0x80 };

        for (size_t n = 1; n <= 4; n++) {
            size_t got = utf8_decode(b, n, &point);

            if ((got == n) != is_sequence(b, n))
                fail_msg("%02x %02x %02x %02x: %zu of %zu", b[0], b[1], b[2], b[3], got, n);
        }
    }
}

static void bad_byte_offset_is_reported(void **state)
{
    unsigned char text[100];

    (void)state;
    for (size_t at = 0; at < sizeof text; at++) {
        memset(text, 'a', sizeof text);
        text[at] = 0xff;
        assert_int_equal(utf8_valid(text, sizeof text), at);
    }
    assert_int_equal(utf8_valid(text, 0), 0);
    assert_int_equal(utf8_check((const unsigned char *)"one\ntwo\nab\xe2\x82", 12, "notes.txt"), LS_EFORMAT);
    assert_string_equal(ls_errmsg(), "notes.txt: not UTF-8: byte 0xe2 at offset 10, line 3");
    assert_int_equal(utf8_check((const unsigned char *)"\xf0\x9f\x98\x80\0z", 6, "x"), LS_OK);
}

static void test_byte_alphabet(void **state)
{
    unsigned char seen[256] = { 0 }, all[256], back[256];
    char text[512];
    uint32_t last = 0;

    (void)state;
    assert_int_equal(byte_alphabet_point(' '), 0x120);
    assert_int_equal(byte_alphabet_point('\n'), 0x10a);
    assert_int_equal(byte_alphabet_point(0x7f), 0x121);
    assert_int_equal(byte_alphabet_point(0xa0), 0x142);
    assert_int_equal(byte_alphabet_point(0xad), 0x143);
    assert_int_equal(byte_alphabet_point(0xff), 0xff);
    for (int i = 0; i < 256; i++) {
        unsigned char b = byte_alphabet_at(i);

        assert_int_equal(seen[b]++, 0);
        assert_true(i == 0 || byte_alphabet_point(b) > last);
        last = byte_alphabet_point(b);
        assert_int_equal(byte_alphabet_byte(last), b);
        all[i] = (unsigned char)i;
    }
    size_t n = byte_alphabet_write(all, 256, text);
    assert_int_equal(byte_alphabet_read(text, n, back), 256);
    assert_memory_equal(all, back, 256);
    for (uint32_t c = 0x144; c < 0x3000; c++) assert_int_equal(byte_alphabet_byte(c), -1);
    assert_int_equal(byte_alphabet_read("a b", 3, back), -1);
}

static void check_form_c(const char *text, const char *wanted)
{
    struct normal normal = { 0 };
    const unsigned char *out;
    size_t bytes;

    assert_int_equal(normalize_nfc(&normal, (const unsigned char *)text, strlen(text), &out, &bytes), LS_OK);
    assert_int_equal(bytes, strlen(wanted));
    assert_memory_equal(out, wanted, bytes);
    if (strpbrk(text, "\xcc\xcd\xe1\xe2\xf0") == NULL) assert_ptr_equal(out, text);
    normal_free(&normal);
}

static void normalization_form_c_is_right(void **state)
{
    (void)state;
    check_form_c("", "");
    check_form_c("plain \xc3\xa9", "plain \xc3\xa9");
    check_form_c("e\xcc\x81", "\xc3\xa9");
    check_form_c("\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c");  /* jamo: han */
    check_form_c("\xed\x95\x98\xe1\x86\xa7z", "\xed\x95\x98\xe1\x86\xa7z");  /* ha, and no final jamo */
    check_form_c("\xe2\x84\xab", "\xc3\x85");                              /* Angstrom sign */
    check_form_c("q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87");                /* marks in canonical order */
    check_form_c("x\xcd\x85\xe1\xab\x8a", "x\xcd\x85\xe1\xab\x8a");        /* U+1ACA is newer than this form C */
    check_form_c("\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0" "e\xcc\x81", "\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0\xc3\xa9");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_point), cmocka_unit_test(test_every_short_sequence),
        cmocka_unit_test(bad_byte_offset_is_reported),
        cmocka_unit_test(test_byte_alphabet),
        cmocka_unit_test(normalization_form_c_is_right),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
