/* encode.c - text into ids.
 *
 * The text is divided into tasks: added tokens, and stretches between them of about chunk_bytes. A stretch may end only where all named
 * patterns split in any context: before a space with an ASCII letter on both sides. Each task yields its own ids; tasks run on one thread
 * or on the team, with the same result. One window of the text is encoded at a time, and its ids are delivered before the next one, so
 * memory besides the tokens is small.
 */
#include "data/pattern.h"
#include "data/normalize.h"
#include "base/pulse.h"
#include "base/threads.h"
#include "data/tokenizer.h"
#include "data/tokens.h"
#include "data/utf8.h"

enum { ERROR_BYTES = 200 };

/* Per-thread state. */
enum { PRETOKENS_PER_PULSE = 1024 };

struct worker {
    struct bpe_work *bpe;
    struct split_work *split;
    struct normal normal;
    unsigned char *spaced; /* a pre-token with a space before it */
    size_t spaced_room;
    bool specials;
    unsigned pretokens; /* so far, for pulses */
};

struct task {
    const unsigned char *text; /* [bytes]; NULL: the token `special` */
    size_t bytes;
    int32_t special;
    struct ids ids;
    ls_status status;
    char error[ERROR_BYTES];
};

/* The rest of the text: a stretch up to `end`, then the added token `found`, if any, and so on. */
struct remaining {
    const unsigned char *text;
    size_t bytes, at, end, chunk;
    const struct added_token *found;
    bool specials;
};

struct job {
    const ls_tokenizer *t;
    struct remaining left;
    struct task *task; /* [count], of the current window */
    size_t count, room;
    struct worker *worker; /* [workers], by thread */
    size_t workers;
    ids_fn *fn;
    void *ctx;
};

static ls_status worker_open(struct worker *w, const ls_tokenizer *t, size_t text_bytes, bool specials)
{
    w->specials = specials;
    LS_TRY(bpe_work_new(t->bpe.merges ? text_bytes : 0, &w->bpe)); /* without merges there is nothing to cache */
    return split_work_new(&w->split);
}

static void worker_close(struct worker *w)
{
    bpe_work_free(&w->bpe);
    split_work_free(&w->split);
    normal_free(&w->normal);
    mem_free(w->spaced);
}

static ls_status encode_pretoken(const ls_tokenizer *t, struct worker *w, int stage, const unsigned char *pretoken, size_t bytes,
                                 struct ids *out);

static ls_status put_space(const ls_tokenizer *t, struct worker *w, int stage, const unsigned char *pretoken, size_t bytes, struct ids *out)
{
    void *p = w->spaced;

    if (bytes == 0 || pretoken[0] == ' ') return encode_pretoken(t, w, stage + 1, pretoken, bytes, out);
    LS_TRY(array_grow(&p, &w->spaced_room, bytes + 1, 1));
    w->spaced = p;
    w->spaced[0] = ' ';
    memcpy(w->spaced + 1, pretoken, bytes);
    return encode_pretoken(t, w, stage + 1, w->spaced, bytes + 1, out);
}

/* Both the matches of the stage's pattern and the text between them are pre-tokens. */
static ls_status encode_pretoken(const ls_tokenizer *t, struct worker *w, int stage, const unsigned char *pretoken, size_t bytes,
                                 struct ids *out)
{
    size_t begin, end;

    if (stage == t->stages) return bpe_encode(&t->bpe, w->bpe, pretoken, bytes, out);
    if (!t->stage[stage].split) return put_space(t, w, stage, pretoken, bytes, out);
    for (size_t at = 0; at < bytes; at = end) {
        if (++w->pretokens % PRETOKENS_PER_PULSE == 0) pulse();
        LS_TRY(split_next(t->stage[stage].split, w->split, pretoken, bytes, at, &begin, &end));
        if (begin > at) LS_TRY(encode_pretoken(t, w, stage + 1, pretoken + at, begin - at, out));
        if (end > begin) LS_TRY(encode_pretoken(t, w, stage + 1, pretoken + begin, end - begin, out));
    }
    return LS_OK;
}

static ls_status encode_text(const ls_tokenizer *t, struct worker *w, const unsigned char *text, size_t bytes, struct ids *out)
{
    const struct added_token *found;
    size_t at = 0, next = 0;

    if (t->nfc) LS_TRY(normalize_nfc(&w->normal, text, bytes, &text, &bytes));
    while ((found = added_next(&t->normalized, text, bytes, at, w->specials, &next)) != NULL) {
        LS_TRY(encode_pretoken(t, w, 0, text + at, next - at, out));
        LS_TRY(ids_push(out, found->id));
        at = next + found->bytes;
    }
    return encode_pretoken(t, w, 0, text + at, bytes - at, out);
}

static ls_status add_task(struct job *j, const unsigned char *text, size_t bytes, int32_t special)
{
    void *p = j->task;

    LS_TRY(array_grow(&p, &j->room, j->count + 1, sizeof *j->task));
    j->task = p;
    j->task[j->count++] = (struct task){ .text = text, .bytes = bytes, .special = special };
    return LS_OK;
}

static bool is_letter(unsigned char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* The first position after `from` where a stretch may end; bytes if there is none. from >= 1. */
static size_t find_cut(const unsigned char *text, size_t bytes, size_t from)
{
    for (size_t i = from; i + 1 < bytes; i++)
        if (text[i] == ' ' && is_letter(text[i - 1]) && is_letter(text[i + 1])) return i;
    return bytes;
}

/* True if all stages are named patterns and no added token can span the end of a stretch. */
static bool is_cuttable(const ls_tokenizer *t)
{
    for (int i = 0; i < t->stages; i++)
        if (!t->stage[i].regex || !pattern_find_regex(t->stage[i].regex)) return false;
    return t->normalized.count == 0;
}

/* Finds the added token that follows the stretch from left.at on. */
static void find_stretch(struct job *j)
{
    struct remaining *l = &j->left;

    l->end = l->bytes;
    l->found = added_next(&j->t->raw, l->text, l->bytes, l->at, l->specials, &l->end);
    if (!l->found) l->end = l->bytes;
}

/* Makes the tasks of the next `most` bytes of text or a little more; none: the text has ended. */
static ls_status fill_window(struct job *j, size_t most)
{
    struct remaining *l = &j->left;
    size_t from = l->at;

    j->count = 0;
    while (l->at - from < most && (l->at < l->end || l->found)) {
        size_t rest = l->end - l->at, n = rest > l->chunk ? find_cut(l->text + l->at, rest, l->chunk) : rest;

        if (rest > 0) {
            LS_TRY(add_task(j, l->text + l->at, n, 0));
            l->at += n;
            continue;
        }
        LS_TRY(add_task(j, NULL, 0, l->found->id));
        l->at += l->found->bytes;
        find_stretch(j);
    }
    return LS_OK;
}

static void run_tasks(void *ctx, size_t begin, size_t end, int thread)
{
    struct job *j = ctx;

    for (struct task *k = j->task + begin; k < j->task + end; k++) {
        pulse();
        if (k->text) k->status = ids_reserve(&k->ids, k->bytes); /* at once, so that the peak does not depend on the timing of threads */
        if (k->text && k->status == LS_OK) k->status = encode_text(j->t, &j->worker[thread], k->text, k->bytes, &k->ids);
        if (!k->text) k->status = ids_push(&k->ids, k->special);
        if (k->status == LS_OK) continue;
        strncpy(k->error, ls_errmsg(), ERROR_BYTES - 1); /* messages are per thread */
        return;
    }
}

static void free_window(struct job *j)
{
    for (size_t i = 0; i < j->count; i++) mem_free(j->task[i].ids.at);
    j->count = 0;
}

/* The ids of all tasks in order. */
static ls_status give_window(struct job *j)
{
    for (size_t i = 0; i < j->count; i++) {
        struct task *k = &j->task[i];

        if (k->status != LS_OK) return ls_fail(k->status, "%s", k->error);
        LS_TRY(j->fn(j->ctx, k->ids.at, k->ids.count));
    }
    return LS_OK;
}

/* A window has this many chunks per thread, or 1/PARTS of a long text; threads synchronize at the end of each window. */
enum { WINDOW = 2, PARTS = 16 };

static ls_status run_job(struct job *j, size_t text_bytes, bool threads)
{
    size_t most;

    j->workers = threads ? (size_t)threads_count() : 1;
    j->worker = mem_array(MEM_OTHER, j->workers, sizeof *j->worker);
    if (!j->worker) return LS_ENOMEM;
    for (size_t i = 0; i < j->workers; i++) LS_TRY(worker_open(&j->worker[i], j->t, text_bytes, j->left.specials));
    if (!size_mul(WINDOW * j->workers, j->left.chunk, &most)) most = SIZE_MAX;
    most = MAX(most, text_bytes / PARTS);
    for (find_stretch(j);; free_window(j)) {
        LS_TRY(fill_window(j, most));
        if (j->count == 0) return LS_OK;
        if (threads)
            threads_each(j->count, 1, run_tasks, j);
        else
            run_tasks(j, 0, j->count, 0);
        LS_TRY(give_window(j));
    }
}

ls_status tokenizer_encode_each(const ls_tokenizer *t, const char *text, size_t bytes, const ls_encode_options *options, size_t chunk_bytes,
                                ids_fn *fn, void *ctx)
{
    struct job j = { .t = t,
                     .fn = fn,
                     .ctx = ctx,
                     .left = { .text = (const unsigned char *)text,
                               .bytes = bytes,
                               .chunk = is_cuttable(t) ? chunk_bytes : SIZE_MAX,
                               .specials = options->specials } };

    if (options->end && t->end < 0) return ls_fail(LS_EINVAL, "this tokenizer has no end-of-text token to append");
    LS_TRY(utf8_check((const unsigned char *)text, bytes, "text"));
    ls_status st = run_job(&j, bytes, options->threads);
    if (st == LS_OK && options->end) st = fn(ctx, &t->end, 1);
    for (size_t i = 0; i < j.workers && j.worker; i++) worker_close(&j.worker[i]);
    free_window(&j);
    mem_free(j.worker);
    mem_free(j.task);
    return st;
}

static ls_status append_ids(void *ctx, const int32_t *ids, size_t count) { return ids_append(ctx, ids, count); }

ls_status tokenizer_encode_ids(const ls_tokenizer *t, const char *text, size_t bytes, const ls_encode_options *options, size_t chunk_bytes,
                               struct ids *out)
{
    return tokenizer_encode_each(t, text, bytes, options, chunk_bytes, append_ids, out);
}

static ls_status buffer_ids(void *ctx, const int32_t *ids, size_t count) { return token_buffer_add(ctx, ids, count); }

ls_status ls_tokenizer_encode(const ls_tokenizer *t, const char *text, size_t bytes, const ls_encode_options *options, ls_tokens **out)
{
    const ls_encode_options none = { 0 };
    struct token_buffer buffer;

    token_buffer_open(&buffer, ls_tokenizer_vocab(t));
    ls_status st = tokenizer_encode_each(t, text, bytes, options ? options : &none, ENCODE_CHUNK, buffer_ids, &buffer);
    if (st == LS_OK) st = token_buffer_take(&buffer, out);
    token_buffer_close(&buffer);
    return st;
}
