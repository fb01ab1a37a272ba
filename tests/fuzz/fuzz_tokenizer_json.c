/* Any tokenizer.json, or, after a 'P', any pattern: refused in one line, or a tokenizer that splits and encodes a text. */
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "data/tokenizer.h"

static const char text[] = "The aaaaaaaa abab  ba\n\n 12345 e\xcc\x81\xf0\x9f\x98\x80 it's IT'S <|endoftext|>\t\xe2\x80\x83.";

static void check_message(void) { ASSERT(ls_errmsg()[0] && !strchr(ls_errmsg(), '\n')); }

static void use_tokenizer(const ls_tokenizer *t)
{
    struct ids ids = { 0 };
    size_t n;

    if (tokenizer_encode_ids(t, text, strlen(text), &(ls_encode_options){ .specials = 1 }, 16, &ids) == LS_OK)
        ASSERT(ls_tokenizer_decode(t, ids.at, ids.count, NULL, 0, &n) == LS_OK);
    else
        check_message();
    mem_free(ids.at);
}

static void use_pattern(const char *regex)
{
    struct split *s;
    struct split_work *w;
    size_t begin, end;

    if (split_compile(regex, &s) != LS_OK) {
        check_message();
        return;
    }
    ASSERT(split_work_new(&w) == LS_OK);
    for (size_t at = 0; at < strlen(text); at = end) {
        if (split_next(s, w, (const unsigned char *)text, strlen(text), at, &begin, &end) != LS_OK) break;
        ASSERT(begin >= at && end <= strlen(text) && (end > begin || begin == strlen(text)));
    }
    split_work_free(&w);
    split_free(&s);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    char *copy = mem_zalloc(MEM_OTHER, bytes + 1);
    ls_tokenizer *t;

    memcpy(copy, data, bytes);
    if (bytes > 0 && data[0] == 'P') {
        use_pattern(copy + 1);
    } else if (tokenizer_read_json(copy, bytes, "f", &t) == LS_OK) {
        use_tokenizer(t);
        ls_tokenizer_close(&t);
    } else {
        check_message();
    }
    mem_free(copy);
    return 0;
}
