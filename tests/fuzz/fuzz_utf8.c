/* Any bytes: refused at the first bad one in one line, or text that survives code points, form C, encoding and
 * decoding. */
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "data/normalize.h"
#include "data/tokenizer.h"
#include "data/utf8.h"

static void check_points(const unsigned char *data, size_t bytes)
{
    unsigned char again[4];
    uint32_t point;

    for (size_t i = 0, n; i < bytes; i += n) {
        n = utf8_decode(data + i, bytes - i, &point);
        ASSERT(n > 0 && utf8_encode(point, again) == n && memcmp(again, data + i, n) == 0);
    }
}

/* The form C is valid, and its own form C. */
static void check_form_c(const unsigned char *data, size_t bytes)
{
    struct normal a = { 0 }, b = { 0 };
    const unsigned char *once, *twice;
    size_t n, m;

    ASSERT(normalize_nfc(&a, data, bytes, &once, &n) == LS_OK);
    ASSERT(utf8_valid(once, n) == n);
    ASSERT(normalize_nfc(&b, once, n, &twice, &m) == LS_OK);
    ASSERT(n == m && memcmp(once, twice, n) == 0);
    normal_free(&a);
    normal_free(&b);
}

static void check_trained(const char *text, size_t bytes)
{
    ls_tokenizer *t;
    struct ids ids = { 0 };
    char *back = mem_alloc(MEM_OTHER, bytes + 1);
    size_t n;

    ASSERT(ls_tokenizer_train(text, bytes, &(ls_bpe_options){ 300, "o200k" }, &t) == LS_OK);
    ASSERT(tokenizer_encode_ids(t, text, bytes, &(ls_encode_options){ 0 }, 64, &ids) == LS_OK);
    ASSERT(ls_tokenizer_decode(t, ids.at, ids.count, back, bytes, &n) == LS_OK);
    ASSERT(n == bytes && memcmp(back, text, n) == 0);
    mem_free(ids.at);
    mem_free(back);
    ls_tokenizer_close(&t);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    size_t good = utf8_valid(data, bytes);

    if (good < bytes) {
        ASSERT(utf8_check(data, bytes, "f") == LS_EFORMAT && !strchr(ls_errmsg(), '\n'));
        ASSERT(utf8_valid(data, good) == good);
        return 0;
    }
    ASSERT(utf8_check(data, bytes, "f") == LS_OK);
    check_points(data, bytes);
    check_form_c(data, bytes);
    if (bytes > 0) check_trained((const char *)data, bytes);
    return 0;
}
