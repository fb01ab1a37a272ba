/* Any lines after those of the 256 single bytes (or, when the first byte is odd, any file): refused in one line, or a
 * tokenizer whose encoding decodes to the text. */
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "data/tokenizer.h"

enum { BYTES_ROOM = 4096 };

static size_t put_bytes(char *out)
{
    static const char code[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;

    for (unsigned b = 0; b < 256; b++)
        n += (size_t)snprintf(out + n, BYTES_ROOM - n, "%c%c== %u\n", code[b >> 2], code[(b & 3) << 4], b);
    return n;
}

static void fuzz_tiktoken_use(const ls_tokenizer *t)
{
    static const char text[] = "The aaaaaaaa abab  ba\n\n 12345 \xc3\xa9\xf0\x9f\x98\x80 it's <|endoftext|>";
    struct ids ids = { 0 };
    char back[sizeof text];
    size_t n;

    ASSERT(tokenizer_encode_ids(t, text, strlen(text), &(ls_encode_options){ .specials = 1 }, SIZE_MAX, &ids) == LS_OK);
    ASSERT(ls_tokenizer_decode(t, ids.at, ids.count, back, sizeof back, &n) == LS_OK);
    ASSERT(n == strlen(text) && memcmp(back, text, n) == 0);
    mem_free(ids.at);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    char *file = mem_alloc(MEM_OTHER, BYTES_ROOM + bytes);
    size_t n = bytes > 0 && data[0] % 2 ? 0 : put_bytes(file);
    ls_tokenizer *t;

    memcpy(file + n, data, bytes);
    if (tokenizer_read_tiktoken(file, n + bytes, "f", "cl100k", &t) == LS_OK) {
        fuzz_tiktoken_use(t);
        ls_tokenizer_close(&t);
    } else {
        ASSERT(strncmp(ls_errmsg(), "f: ", 3) == 0 && !strchr(ls_errmsg(), '\n'));
    }
    mem_free(file);
    return 0;
}
