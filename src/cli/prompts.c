/* prompts.c - see prompts.h. */
#include "cli/prompts.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/print_sample.h"

/* ---- the file ---- */

static size_t count_lines(const char *text, size_t bytes)
{
    size_t n = bytes > 0 && text[bytes - 1] != '\n';

    for (size_t i = 0; i < bytes; i++) n += text[i] == '\n';
    return n;
}

static ls_status cut_lines(struct prompts *p, size_t bytes)
{
    char *at = p->text;

    p->n = count_lines(p->text, bytes);
    if (p->n == 0) return ls_fail(LS_EINVAL, "%s: the file is empty; expected a prompt on each line", p->path);
    p->line = mem_array(MEM_OTHER, p->n, sizeof *p->line);
    if (!p->line) return LS_ENOMEM;
    for (size_t i = 0; i < p->n; i++) {
        size_t left = bytes - (size_t)(at - p->text);
        char *end = memchr(at, '\n', left);
        size_t length = end ? (size_t)(end - at) : left;

        if (memchr(at, '\0', length)) return ls_fail(LS_EINVAL, "%s:%zu: the line contains a NUL byte; expected text", p->path, i + 1);
        at[length] = '\0';
        if (length > 0 && at[length - 1] == '\r') at[length - 1] = '\0';
        if (!at[0]) return ls_fail(LS_EINVAL, "%s:%zu: the line is empty; expected a prompt on each line", p->path, i + 1);
        p->line[i] = at;
        at += length + 1;
    }
    return LS_OK;
}

ls_status prompts_read(const char *path, struct prompts *out)
{
    struct prompts p = { .path = path };
    size_t bytes = 0;
    ls_status st = file_read(path, &p.text, &bytes);

    if (st == LS_OK) st = cut_lines(&p, bytes);
    if (st == LS_OK)
        *out = p;
    else
        prompts_free(&p);
    return st;
}

void prompts_free(struct prompts *p)
{
    mem_free(p->text);
    mem_free(p->line);
    *p = (struct prompts){ 0 };
}

/* ---- the texts ---- */

struct prompts_job {
    const struct trained *trained;
    const struct prompts *prompts;
    const struct prompts_options *options;
    struct generate_prompt *prompt; /* [n], with ids of its own */
    struct text *text;              /* [n] what was generated */
    size_t first, made;             /* the batch's first prompt; tokens of all prompts */
};

static ls_status prompts_encode(struct prompts_job *j, size_t i)
{
    struct generate_prompt *p = &j->prompt[i];
    int32_t *ids;
    size_t room;

    LS_TRY(print_encode(j->trained, j->prompts->line[i], &ids, &p->n));
    p->ids = ids;
    p->number = i;
    if (j->options->tokens >= 0) {
        p->count = (size_t)j->options->tokens;
        return generate_check(j->trained, p->n, p->count);
    }
    LS_TRY(generate_room(j->trained, p->n, &room));
    p->count = MIN(room, j->options->usual);
    return LS_OK;
}

static ls_status prompts_take(void *ctx, size_t prompt, int32_t id)
{
    struct prompts_job *j = ctx;
    size_t bytes;
    const char *text = ls_tokenizer_token(j->trained->tokenizer, id, &bytes);
    struct text *to = &j->text[j->first + prompt];

    j->made++;
    if (text) text_add(to, text, bytes);
    return text_status(to);
}

static ls_status prompts_print(const struct prompts_job *j, size_t i)
{
    printf("%s--- prompt %zu\n%s", i ? "\n" : "", i + 1, j->prompts->line[i]);
    fwrite(j->text[i].data ? j->text[i].data : "", 1, j->text[i].bytes, stdout);
    putchar('\n');
    return fflush(stdout) == 0 ? LS_OK : ls_fail(LS_EIO, "cannot write to standard output");
}

static ls_status prompts_generate(struct prompts_job *j)
{
    size_t n = j->prompts->n;
    char count[32];

    for (size_t i = 0; i < n; i++) {
        ls_status st = prompts_encode(j, i);

        if (st != LS_OK) return ls_fail_at(st, "%s:%zu", j->prompts->path, i + 1);
    }
    double began = base_now();
    for (; j->first < n; j->first += j->options->batch) {
        size_t some = MIN(j->options->batch, n - j->first);

        LS_TRY(generate_batch(j->trained, some, j->prompt + j->first, &j->options->sampling, prompts_take, j));
        for (size_t i = 0; i < some; i++) LS_TRY(prompts_print(j, j->first + i));
    }
    began = base_now() - began;
    fprintf(stderr, "%zu prompt%s: %s tokens in %.3f s, %.1f tokens/s\n", n, n == 1 ? "" : "s", text_count(count, (int64_t)j->made), began,
            (double)j->made / began);
    return LS_OK;
}

ls_status prompts_run(const struct trained *t, const struct prompts *p, const struct prompts_options *o)
{
    struct prompts_job j = { .trained = t, .prompts = p, .options = o };
    ls_status st = LS_ENOMEM;

    j.prompt = mem_array(MEM_OTHER, p->n, sizeof *j.prompt);
    j.text = mem_array(MEM_OTHER, p->n, sizeof *j.text);
    if (j.prompt && j.text) st = prompts_generate(&j);
    for (size_t i = 0; i < p->n; i++) {
        if (j.prompt) mem_free((void *)(uintptr_t)j.prompt[i].ids);
        if (j.text) text_free(&j.text[i]);
    }
    mem_free(j.prompt);
    mem_free(j.text);
    return st;
}
