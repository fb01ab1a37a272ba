/* cmd_data.c - `lockstep data prepare` and `lockstep data inspect`. */
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/args.h"
#include "train/dataset.h"

/* ---- prepare ---- */

static bool append_end;

static const struct flag prepare_flags[] = {
    { "end", FLAG_SWITCH, &append_end, 0, 0, NULL, "append the end-of-text token" },
    { 0 },
};

static ls_status check_prepare(const struct invocation *in)
{
    if (!in->config.data.text[0]) return ls_fail(LS_EINVAL, "no text to prepare: give --data.text=FILE");
    return LS_OK;
}

/* Folder that a path lies in; free with mem_free. NULL when out of memory. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!slash) return mem_strdup(".");
    return slash == path ? mem_strdup("/") : file_path("%.*s", (int)(slash - path), path);
}

static ls_status write_files(const struct config *c, const char *out, const ls_tokenizer *t, const ls_tokens *tokens)
{
    const char *format = config_format(c) ? config_format(c) : "llmc";
    char *folder = folder_of(out), count[32];

    if (!folder) return LS_ENOMEM;
    ls_status st = file_make_folders(folder);
    if (st == LS_OK) st = ls_tokens_save(tokens, out, format, ls_tokenizer_vocab(t));
    if (st == LS_OK) st = ls_tokenizer_save(t, folder);
    if (st == LS_OK)
        printf("%s: %s tokens of a vocabulary of %d, format %s; the tokenizer is in %s\n", out,
               text_count(count, (int64_t)ls_tokens_count(tokens)), (int)ls_tokenizer_vocab(t), format, folder);
    mem_free(folder);
    return st;
}

static ls_status encode(const struct config *c, const char *out, const struct file_map *text)
{
    ls_encode_options o = { .end = append_end, .threads = 1 };
    ls_tokenizer *t = NULL;
    ls_tokens *tokens = NULL;

    if (text->bytes == 0) return ls_fail(LS_EINVAL, "%s: the text is empty", c->data.text);
    LS_TRY(dataset_tokenizer(c, (const char *)text->data, text->bytes, &t));
    ls_status st = ls_tokenizer_encode(t, (const char *)text->data, text->bytes, &o, &tokens);
    if (st == LS_OK) st = write_files(c, out, t, tokens);
    ls_tokens_close(&tokens);
    ls_tokenizer_close(&t);
    return st;
}

static ls_status run_prepare(struct invocation *in)
{
    struct file_map text;

    LS_TRY(file_map_open(in->config.data.text, &text));
    ls_status st = encode(&in->config, in->arguments[0], &text);
    file_map_close(&text);
    return st;
}

const struct command command_data_prepare = {
    .name = "data prepare",
    .arguments = "OUT",
    .least = 1,
    .most = 1,
    .summary = "turn a text into a token file and its tokenizer",
    .verb = VERB_DATA,
    .flags = prepare_flags,
    .check = check_prepare,
    .run = run_prepare,
    .examples =
        "  lockstep data prepare data/book.bin --data.text=book.txt --data.tokenizer=bpe --data.vocab_size=8192\n"
        "  lockstep data prepare data/book --data.text=book.txt --data.tokenizer=hf/gpt2 --data.format=megatron\n"
        "  lockstep train --data.tokens=data/book.bin --data.tokenizer=data\n",
};

/* ---- inspect ---- */

static bool json;
static int64_t show = 16, vocab = 0;

static const struct flag inspect_flags[] = {
    { "tokens", FLAG_INT, &show, 0, 100000, "N", "show the first N tokens [16]" },
    { "vocab", FLAG_INT, &vocab, 1, 2147483647, "N", "check that every id is below N" },
    { "json", FLAG_SWITCH, &json, 0, 0, NULL, "print as JSON" },
    { 0 },
};

static ls_status check_inspect(const struct invocation *in)
{
    if (in->config.data.text[0]) return ls_fail(LS_EINVAL, "data.text does nothing here: the file is an argument");
    if (strcmp(in->config.data.tokenizer, "bpe") == 0)
        return ls_fail(LS_EINVAL, "data.tokenizer=bpe does nothing here: there is no text");
    return LS_OK;
}

struct view_of_tokens { const ls_tokens *tokens; int32_t *first; size_t count; char *text; size_t bytes; };

/* The first tokens, and their text when a tokenizer was named. */
static ls_status read_first(const struct config *c, struct view_of_tokens *v)
{
    ls_tokenizer *t = NULL;

    v->count = MIN((size_t)show, ls_tokens_count(v->tokens));
    v->first = mem_array(MEM_OTHER, v->count, sizeof *v->first);
    if (!v->first) return LS_ENOMEM;
    if (v->count) LS_TRY(ls_tokens_read(v->tokens, 0, v->count, INT32_MAX, v->first));
    if (strcmp(c->data.tokenizer, "bytes") == 0) return LS_OK;
    LS_TRY(ls_tokenizer_open(c->data.tokenizer, &t));
    ls_status st = ls_tokenizer_decode(t, v->first, v->count, NULL, 0, &v->bytes);
    if (st == LS_OK) {
        v->text = mem_zalloc(MEM_OTHER, v->bytes + 1);
        st = v->text ? ls_tokenizer_decode(t, v->first, v->count, v->text, v->bytes, &v->bytes) : LS_ENOMEM;
    }
    ls_tokenizer_close(&t);
    return st;
}

static ls_status put_json(const struct view_of_tokens *v)
{
    struct json_out j = { 0 };

    json_begin_object(&j, NULL);
    json_put_string(&j, "format", ls_tokens_format(v->tokens));
    json_put_string(&j, "type", ls_tokens_type(v->tokens));
    json_put_int(&j, "tokens", (int64_t)ls_tokens_count(v->tokens));
    json_put_int(&j, "documents", (int64_t)ls_tokens_documents(v->tokens));
    json_begin_array(&j, "first");
    for (size_t i = 0; i < v->count; i++) json_put_int(&j, NULL, v->first[i]);
    json_end_array(&j);
    if (v->text) json_put_string(&j, "text", v->text);
    json_end_object(&j);
    ls_status st = json_out_status(&j);
    if (st == LS_OK) puts(j.text);
    json_out_free(&j);
    return st;
}

static void put_table(const struct view_of_tokens *v)
{
    char count[32];

    printf("format      %s, %s\n", ls_tokens_format(v->tokens), ls_tokens_type(v->tokens));
    printf("tokens      %s\n", text_count(count, (int64_t)ls_tokens_count(v->tokens)));
    printf("documents   %s\n", text_count(count, (int64_t)ls_tokens_documents(v->tokens)));
    printf("first      ");
    for (size_t i = 0; i < v->count; i++) printf(" %d", (int)v->first[i]);
    printf("\n");
    if (v->text) printf("text        %s\n", v->text);
}

static ls_status run_inspect(struct invocation *in)
{
    struct view_of_tokens v = { 0 };
    ls_tokens *tokens;

    LS_TRY(ls_tokens_open(in->arguments[0], config_format(&in->config), &tokens));
    v.tokens = tokens;
    ls_status st = vocab ? ls_tokens_check(tokens, (int32_t)vocab) : LS_OK;
    if (st == LS_OK) st = read_first(&in->config, &v);
    if (st == LS_OK && json) st = put_json(&v);
    else if (st == LS_OK) put_table(&v);
    mem_free(v.first);
    mem_free(v.text);
    ls_tokens_close(&tokens);
    return st;
}

const struct command command_data_inspect = {
    .name = "data inspect",
    .arguments = "FILE",
    .least = 1,
    .most = 1,
    .summary = "say what a token file holds, and check it",
    .verb = VERB_DATA,
    .flags = inspect_flags,
    .check = check_inspect,
    .run = run_inspect,
    .examples = "  lockstep data inspect data/book.bin --vocab 8192\n"
                "  lockstep data inspect data/book.bin --data.tokenizer=data --tokens 50\n"
                "  lockstep data inspect train.bin --data.format=nanogpt --json\n",
};
