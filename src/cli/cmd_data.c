/* cmd_data.c - `lockstep data prepare` and `lockstep data inspect`. */
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/terminal.h"
#include "data/tokenizer.h"
#include "data/tokens.h"
#include "train/run/dataset.h"

/* ---- prepare ---- */

static bool append_end;

static const struct flag prepare_flags[] = {
    { "end", FLAG_SWITCH, &append_end, 0, 0, NULL, "append the end-of-text token to the text (JSON lines have one after each document)" },
    { 0 },
};

static ls_status check_prepare(const struct invocation *in)
{
    if (!in->config.data.text[0]) return ls_fail(LS_EINVAL, "no text to prepare: give --data.text=FILE");
    return LS_OK;
}

/* The folder that contains a path; free it with mem_free. NULL: out of memory. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!slash) return mem_strdup(".");
    return slash == path ? mem_strdup("/") : file_path("%.*s", (int)(slash - path), path);
}

static ls_status write_files(const struct config *c, const char *out, const struct dataset *d, const struct documents *found)
{
    const char *format = config_format(c) ? config_format(c) : "llmc";
    char *folder = folder_of(out), count[32], documents[32];

    if (!folder) return LS_ENOMEM;
    ls_status st = file_make_folders(folder);
    if (st == LS_OK) st = ls_tokens_save(d->tokens, out, format, ls_tokenizer_vocab(d->tokenizer));
    if (st == LS_OK) st = ls_tokenizer_save(d->tokenizer, folder);
    if (st == LS_OK)
        printf("%s: %s tokens in %s documents (%zu in the text), vocabulary of %d, format %s; the tokenizer is in %s\n", out,
               text_count(count, (int64_t)ls_tokens_count(d->tokens)), text_count(documents, (int64_t)ls_tokens_documents(d->tokens)),
               found->count, (int)ls_tokenizer_vocab(d->tokenizer), format, folder);
    mem_free(folder);
    return st;
}

static ls_status run_prepare(struct invocation *in)
{
    struct dataset d = { 0 };
    struct documents found;
    ls_status st = dataset_encode(&in->config, NULL, append_end, &d, &found);

    if (st == LS_OK) st = write_files(&in->config, in->arguments[0], &d, &found);
    dataset_close(&d);
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
    .examples = "  lockstep data prepare data/book.bin --data.text=book.txt --data.tokenizer=bpe --data.vocab_size=8192\n"
                "  lockstep data prepare data/web.bin --data.text=web.jsonl.zst --data.field=content --data.tokenizer=hf/gpt2\n"
                "  lockstep data prepare data/book --data.text=book.txt --data.tokenizer=hf/gpt2 --data.format=megatron\n"
                "  lockstep train --data.tokens=data/book.bin --data.tokenizer=data\n",
};

/* ---- inspect ---- */

static bool data_json;
static int64_t show = 16, vocab = 0;

static const struct flag inspect_flags[] = {
    { "tokens", FLAG_INT, &show, 0, 100000, "N", "show the first N tokens [16]" },
    { "vocab", FLAG_INT, &vocab, 1, 2147483647, "N", "check that every token id is below N" },
    { "json", FLAG_SWITCH, &data_json, 0, 0, NULL, "print as JSON" },
    { 0 },
};

static ls_status check_inspect(const struct invocation *in)
{
    if (in->config.data.text[0]) return ls_fail(LS_EINVAL, "data.text does nothing here: the file is an argument");
    if (strcmp(in->config.data.tokenizer, "bpe") == 0)
        return ls_fail(LS_EINVAL, "data.tokenizer=bpe does nothing here: there is no text to learn it from");
    return LS_OK;
}

struct view_of_tokens {
    ls_tokens *tokens;
    int32_t *first;
    size_t count, bytes;
    char *text;              /* text of the first tokens */
    ls_tokenizer *tokenizer; /* NULL: none was given or found */
    int64_t *times;          /* [vocabulary] how often each id occurs */
};

/* Counts how often each token occurs, and marks the documents, which end with end-of-text tokens. */
static ls_status count_tokens(struct view_of_tokens *v)
{
    enum { STEP = 4096 };
    int32_t ids[STEP], size = ls_tokenizer_vocab(v->tokenizer);

    v->times = mem_array(MEM_OTHER, (size_t)size, sizeof *v->times);
    if (!v->times) return LS_ENOMEM;
    for (size_t at = 0, n; at < ls_tokens_count(v->tokens); at += n) {
        n = MIN((size_t)STEP, ls_tokens_count(v->tokens) - at);
        LS_TRY(ls_tokens_read(v->tokens, at, n, size, ids));
        for (size_t i = 0; i < n; i++) v->times[ids[i]]++;
    }
    if (v->tokens->document || ls_tokenizer_end(v->tokenizer) < 0) return LS_OK; /* known from the file, or nothing ends them */
    return ls_tokens_mark(v->tokens, ls_tokenizer_end(v->tokenizer));
}

/* Special token k of the tokenizer; NULL after the last one. */
static const struct added_token *special_at(const struct view_of_tokens *v, size_t k)
{
    const struct added *lists[] = { &v->tokenizer->raw, &v->tokenizer->normalized };

    for (size_t l = 0; l < COUNT_OF(lists); l++)
        for (size_t i = 0; i < lists[l]->count; i++)
            if (lists[l]->token[i].special && k-- == 0) return &lists[l]->token[i];
    return NULL;
}

/* Opens the given tokenizer, or the one beside the token file; *out stays NULL if there is neither. */
static ls_status find_tokenizer(const struct config *c, const char *file, ls_tokenizer **out)
{
    if (strcmp(c->data.tokenizer, "bytes") != 0) return ls_tokenizer_open(c->data.tokenizer, out);
    const char *slash = strrchr(file, '/');
    char *folder = slash ? file_path("%.*s", (int)MAX(slash - file, 1), file) : mem_strdup(".");
    char *beside = folder ? file_path("%s/tokenizer.json", folder) : NULL;
    ls_status st = !beside ? LS_ENOMEM : file_exists(beside) ? ls_tokenizer_open(folder, out) : LS_OK;

    mem_free(folder);
    mem_free(beside);
    return st;
}

/* Reads the first tokens, and decodes them if there is a tokenizer. */
static ls_status read_first(const struct config *c, const char *file, struct view_of_tokens *v)
{
    v->count = MIN((size_t)show, ls_tokens_count(v->tokens));
    v->first = mem_array(MEM_OTHER, v->count, sizeof *v->first);
    if (!v->first) return LS_ENOMEM;
    if (v->count) LS_TRY(ls_tokens_read(v->tokens, 0, v->count, INT32_MAX, v->first));
    LS_TRY(find_tokenizer(c, file, &v->tokenizer));
    if (!v->tokenizer) return LS_OK;
    LS_TRY(count_tokens(v));
    LS_TRY(ls_tokenizer_decode(v->tokenizer, v->first, v->count, NULL, 0, &v->bytes));
    v->text = mem_zalloc(MEM_OTHER, v->bytes + 1);
    return v->text ? ls_tokenizer_decode(v->tokenizer, v->first, v->count, v->text, v->bytes, &v->bytes) : LS_ENOMEM;
}

static void put_json_special(struct json_out *j, const struct view_of_tokens *v, const struct added_token *t)
{
    char name[256];

    snprintf(name, sizeof name, "%.*s", (int)t->bytes, (const char *)t->text);
    json_put_int(j, name, v->times[t->id]);
}

static ls_status cmd_data_put_json(const struct view_of_tokens *v)
{
    struct json_out j = { 0 };

    json_begin_object(&j, NULL);
    json_put_string(&j, "format", ls_tokens_format(v->tokens));
    json_put_string(&j, "type", ls_tokens_type(v->tokens));
    json_put_int(&j, "tokens", (int64_t)ls_tokens_count(v->tokens));
    json_put_int(&j, "documents", (int64_t)ls_tokens_documents(v->tokens));
    if (v->tokenizer) {
        json_begin_object(&j, "special_tokens");
        for (size_t k = 0; special_at(v, k); k++) put_json_special(&j, v, special_at(v, k));
        json_end_object(&j);
    }
    json_begin_array(&j, "first");
    for (size_t i = 0; i < v->count; i++) json_put_int(&j, NULL, v->first[i]);
    json_end_array(&j);
    if (v->text) json_put_string(&j, "text", v->text);
    json_end_object(&j);
    return terminal_put_json(&j);
}

static void cmd_data_put_table(const struct view_of_tokens *v)
{
    char count[32];

    printf("format      %s, %s\n", ls_tokens_format(v->tokens), ls_tokens_type(v->tokens));
    printf("tokens      %s\n", text_count(count, (int64_t)ls_tokens_count(v->tokens)));
    printf("documents   %s\n", text_count(count, (int64_t)ls_tokens_documents(v->tokens)));
    if (!v->tokenizer) printf("special     unknown: there is no tokenizer.json beside the file; give --data.tokenizer=FOLDER\n");
    for (size_t k = 0; v->tokenizer && special_at(v, k); k++) {
        const struct added_token *t = special_at(v, k);

        printf("special     %.*s (id %d): %s\n", (int)t->bytes, (const char *)t->text, (int)t->id, text_count(count, v->times[t->id]));
    }
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
    if (st == LS_OK) st = read_first(&in->config, in->arguments[0], &v);
    if (st == LS_OK && data_json)
        st = cmd_data_put_json(&v);
    else if (st == LS_OK)
        cmd_data_put_table(&v);
    mem_free(v.first);
    mem_free(v.text);
    mem_free(v.times);
    ls_tokenizer_close(&v.tokenizer);
    ls_tokens_close(&tokens);
    return st;
}

const struct command command_data_inspect = {
    .name = "data inspect",
    .arguments = "FILE",
    .least = 1,
    .most = 1,
    .summary = "show what a token file holds, and check it",
    .verb = VERB_DATA,
    .flags = inspect_flags,
    .check = check_inspect,
    .run = run_inspect,
    .examples = "  lockstep data inspect data/book.bin --vocab 8192\n"
                "  lockstep data inspect data/book.bin --data.tokenizer=data --tokens 50\n"
                "  lockstep data inspect train.bin --data.format=nanogpt --json\n",
};
