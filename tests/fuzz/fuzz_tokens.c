/* Any token file: the first byte chooses the format, two more where the .bin ends and Megatron's .idx begins. Refused
 * in one line, or tokens that can be read to the last and documents without gaps. */
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "data/tokens.h"

static void fuzz_tokens_use(ls_tokens *t)
{
    size_t at = 0;
    int32_t id;

    for (size_t i = 0; i < ls_tokens_count(t); i++)
        if (ls_tokens_read(t, i, 1, 1000, &id) == LS_OK) ASSERT(id >= 0 && id < 1000);
    ASSERT(ls_tokens_read(t, ls_tokens_count(t), 1, 1000, &id) == LS_EINVAL);
    if (!t->document) ls_tokens_mark(t, 0);  /* ids above i32 are refused here */
    for (size_t i = 0; i < ls_tokens_documents(t); i++) {
        ls_range r = ls_tokens_document(t, i);

        ASSERT(r.begin == at && r.end >= at && r.end <= ls_tokens_count(t));
        at = r.end;
    }
    ASSERT(at == ls_tokens_count(t) || ls_tokens_documents(t) == 0);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
#define FORMAT_ROW(id, name) &token_format_##id,
    const struct token_format *formats[] = { LS_TOKEN_FORMAT_MAP(FORMAT_ROW) };
    ls_tokens *t;

    if (bytes < 3) return 0;
    const struct token_format *format = formats[data[0] % COUNT_OF(formats)];
    size_t rest = bytes - 3, cut = format == &token_format_megatron ? MIN(rest, data[1] + 256u * data[2]) : rest;
    unsigned char *bin = mem_alloc(MEM_OTHER, cut), *idx = mem_alloc(MEM_OTHER, rest - cut);
    memcpy(bin, data + 3, cut);
    memcpy(idx, data + 3 + cut, rest - cut);

    struct file_map b = { bin, cut }, x = { idx, rest - cut };
    if (tokens_from_memory(format, b, x, "f", &t) == LS_OK) {
        fuzz_tokens_use(t);
        ls_tokens_close(&t);
    } else {
        ASSERT(strncmp(ls_errmsg(), "f: ", 3) == 0 && !strchr(ls_errmsg(), '\n'));
    }
    mem_free(bin);
    mem_free(idx);
    return 0;
}
