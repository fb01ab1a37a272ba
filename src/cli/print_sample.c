/* print_sample.c - prints text that a model generates on standard output. Without a tokenizer, ids are printed as numbers. */
#include "cli/print_sample.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"

/* ids[*count]: the token `begin` if it is not negative, then the tokens of the prompt. */
static ls_status print_sample_join(const struct trained *t, const ls_tokens *tokens, int32_t begin, int32_t **ids, size_t *count)
{
    size_t first = begin >= 0, n = ls_tokens_count(tokens);
    int32_t *all = mem_array(MEM_OTHER, first + n, sizeof *all);

    if (!all) return LS_ENOMEM;
    if (first) all[0] = begin;
    ls_status st = n ? ls_tokens_read(tokens, 0, n, (int32_t)t->model.vocab, all + first) : LS_OK;
    if (st != LS_OK) {
        mem_free(all);
        return st;
    }
    *ids = all;
    *count = first + n;
    return LS_OK;
}

ls_status print_encode(const struct trained *t, const char *prompt, int32_t **ids, size_t *count)
{
    ls_encode_options o = { .specials = 1 };
    ls_tokens *tokens;

    if (!t->tokenizer) return ls_fail(LS_EINVAL, "%s has no tokenizer: give one with --tokenizer, or the prompt as --ids", t->path);
    int32_t begin = ls_tokenizer_begin(t->tokenizer);
    if (begin < 0 && prompt[0] == '\0') begin = ls_tokenizer_end(t->tokenizer);
    if (begin < 0 && prompt[0] == '\0') return ls_fail(LS_EINVAL, "the tokenizer has no token that begins a text: give --prompt TEXT");
    LS_TRY(ls_tokenizer_encode(t->tokenizer, prompt, strlen(prompt), &o, &tokens));
    ls_status st = print_sample_join(t, tokens, begin, ids, count);
    ls_tokens_close(&tokens);
    return st;
}

static ls_status put_token(void *ctx, int32_t id)
{
    const struct trained *t = ctx;
    size_t bytes;
    const char *text = t->tokenizer ? ls_tokenizer_token(t->tokenizer, id, &bytes) : NULL;

    if (!t->tokenizer)
        printf("%d ", (int)id);
    else if (text)
        fwrite(text, 1, bytes, stdout);
    if (fflush(stdout) != 0) return ls_fail(LS_EIO, "cannot write to standard output");
    return LS_OK;
}

ls_status print_sample(const struct trained *t, const int32_t *ids, size_t n, size_t count, const struct sampling *s)
{
    int32_t end = t->tokenizer ? ls_tokenizer_end(t->tokenizer) : -1, begin = t->tokenizer ? ls_tokenizer_begin(t->tokenizer) : -1;

    LS_TRY(generate_check(t, n, count)); /* before the prompt is printed */
    for (size_t i = 0; i < n; i++)
        if (ids[i] != end && ids[i] != begin) LS_TRY(put_token((void *)(uintptr_t)t, ids[i]));
    LS_TRY(generate(t, ids, n, count, s, put_token, (void *)(uintptr_t)t));
    putchar('\n');
    return LS_OK;
}
