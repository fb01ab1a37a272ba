/* split.c - PCRE2 with its JIT compiler.
 *
 * The subject is checked once, by utf8_check(), and never by PCRE2, which would check all of it for each match. PCRE2's memory comes from
 * the ledger. PCRE2's limits end a pattern that backtracks without end.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "data/split.h"

#include "base/base.h"
#include "base/mem.h"
#include "data/pattern.h"

enum { STACK_FIRST = 32 << 10, STACK_MOST = 1 << 20, MESSAGE = 128 };

struct split {
    pcre2_general_context *memory;
    pcre2_code *code;
};

struct split_work {
    pcre2_general_context *memory;
    pcre2_match_context *context;
    pcre2_match_data *data;
    pcre2_jit_stack *stack;
};

static void *split_take(size_t bytes, void *ctx)
{
    (void)ctx;
    return mem_alloc(MEM_OTHER, bytes);
}

static void split_give(void *p, void *ctx)
{
    (void)ctx;
    mem_free(p);
}

static ls_status compile(struct split *s, const char *pattern)
{
    const uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE;
    PCRE2_UCHAR message[MESSAGE];
    PCRE2_SIZE at;
    int error;

    s->memory = pcre2_general_context_create(split_take, split_give, NULL);
    if (!s->memory) return LS_ENOMEM;
    pcre2_compile_context *context = pcre2_compile_context_create(s->memory);
    if (!context) return LS_ENOMEM;
    s->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &error, &at, context);
    pcre2_compile_context_free(context);
    if (!s->code && error == PCRE2_ERROR_HEAP_FAILED) return LS_ENOMEM;
    if (!s->code) {
        pcre2_get_error_message(error, message, sizeof message);
        return ls_fail(LS_EFORMAT, "the pattern cannot be compiled: %s", (char *)message);
    }
    /* Without a JIT compiler, pcre2_match() interprets: slower, with the same result. */
    pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE);
    return LS_OK;
}

ls_status split_compile(const char *regex, struct split **out)
{
    struct split *s;
    char *pattern;

    LS_TRY(pattern_translate(regex, &pattern));
    s = mem_zalloc(MEM_OTHER, sizeof *s);
    ls_status st = s ? compile(s, pattern) : LS_ENOMEM;
    mem_free(pattern);
    if (st != LS_OK) split_free(&s);
    if (st == LS_EFORMAT) return ls_fail_at(st, "pattern '%.60s'", regex);
    if (st == LS_OK) *out = s;
    return st;
}

void split_free(struct split **at)
{
    struct split *s = *at;

    if (!s) return;
    pcre2_code_free(s->code);
    pcre2_general_context_free(s->memory);
    mem_free(s);
    *at = NULL;
}

ls_status split_work_new(struct split_work **out)
{
    struct split_work *w = mem_zalloc(MEM_OTHER, sizeof *w);

    if (!w) return LS_ENOMEM;
    w->memory = pcre2_general_context_create(split_take, split_give, NULL);
    if (w->memory) w->context = pcre2_match_context_create(w->memory);
    if (w->context) w->data = pcre2_match_data_create(1, w->memory);
    if (w->data) w->stack = pcre2_jit_stack_create(STACK_FIRST, STACK_MOST, w->memory);
    if (!w->stack) {
        split_work_free(&w);
        return ls_fail(LS_ENOMEM, "out of memory: matching a pattern");
    }
    pcre2_jit_stack_assign(w->context, NULL, w->stack);
    *out = w;
    return LS_OK;
}

void split_work_free(struct split_work **at)
{
    struct split_work *w = *at;

    if (!w) return;
    pcre2_jit_stack_free(w->stack);
    pcre2_match_data_free(w->data);
    pcre2_match_context_free(w->context);
    pcre2_general_context_free(w->memory);
    mem_free(w);
    *at = NULL;
}

ls_status split_next(const struct split *s, struct split_work *w, const unsigned char *text, size_t bytes, size_t from, size_t *begin,
                     size_t *end)
{
    PCRE2_UCHAR message[MESSAGE];
    int found = pcre2_match(s->code, text, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, w->data, w->context);

    if (found >= 0) {
        *begin = pcre2_get_ovector_pointer(w->data)[0];
        *end = pcre2_get_ovector_pointer(w->data)[1];
        return LS_OK;
    }
    if (found == PCRE2_ERROR_NOMEMORY) return LS_ENOMEM;
    if (found != PCRE2_ERROR_NOMATCH) {
        pcre2_get_error_message(found, message, sizeof message);
        return ls_fail(LS_EUNSUPPORTED, "splitting the text into pre-tokens failed at byte %zu of %zu: %s", from, bytes, (char *)message);
    }
    *begin = *end = bytes;
    return LS_OK;
}
