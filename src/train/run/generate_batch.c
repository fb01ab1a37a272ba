/* generate_batch.c - generates several texts at once.
 *
 * Each text has its own cache, which a program of its own fills with the keys and values of the prompt. Then one program computes the next
 * token of all texts; when half of them have ended, it is made again for the others.
 */
#include <stdio.h>
#include "base/base.h"
#include "base/mem.h"
#include "train/run/generate.h"

struct writing {
    const struct generate_prompt *prompt;
    size_t index; /* index of the prompt */
    ls_cache *cache;
    size_t made;  /* tokens generated so far */
    int32_t last; /* the last of them */
    bool ended;
};

struct generation {
    const struct trained *trained;
    struct sampling sampling;
    generate_batch_fn *fn;
    void *ctx;
    size_t n;
    struct writing *text;      /* [n] */
    ls_program *next;          /* one token of each of `rows` texts; NULL: none */
    size_t rows, *row;         /* [rows] their numbers */
    float *logits;             /* [n * V] */
    struct candidate *scratch; /* [V] */
    int32_t *tokens;           /* [n] */
    int32_t *positions;        /* [n, and of the longest prompt] */
};

/* Ids that the tokenizer does not have are never sampled, even if the model has rows for them. */
static size_t sampled_vocab(const struct trained *t) { return t->tokenizer ? (size_t)ls_tokenizer_vocab(t->tokenizer) : t->model.vocab; }

/* Samples the next token of a text from its logits. */
static ls_status generate_take(struct generation *g, struct writing *w, const float *logits)
{
    const struct trained *t = g->trained;
    struct sampling s = g->sampling;

    s.prompt = w->prompt->number;
    int32_t id = sample_next(logits, sampled_vocab(t), &s, w->made, g->scratch);
    w->ended = t->tokenizer && id == ls_tokenizer_end(t->tokenizer);
    if (w->ended) return LS_OK;
    w->last = id;
    w->ended = ++w->made == w->prompt->count;
    return g->fn(g->ctx, w->index, id);
}

/* ---- the prompt ---- */

static ls_status open_prompt(struct generation *g, const struct writing *w, ls_program **out)
{
    size_t t = w->prompt->n;
    ls_program *p;

    LS_TRY(ls_program_new(g->trained->store, &p));
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ 1, t });
    ls_value positions = ls_input(p, "positions", LS_I32, 1, (size_t[]){ t });
    ls_value position = ls_input(p, "position", LS_I32, 1, (size_t[]){ 1 });
    ls_value length = ls_input(p, "length", LS_I32, 1, (size_t[]){ 1 });
    ls_value last = ls_input(p, "last", LS_I32, 1, (size_t[]){ 1 });
    ls_output(p, "logits", ls_model_decode(p, &g->trained->model, w->cache, tokens, positions, position, length, last));
    ls_status st = ls_program_compile(p, NULL);
    if (st == LS_OK)
        *out = p;
    else
        ls_program_release(&p);
    return st;
}

static ls_status run_prompt(struct generation *g, const struct writing *w, ls_program *p)
{
    size_t t = w->prompt->n;
    int32_t position = 0, length = (int32_t)t, last = (int32_t)t - 1;

    for (size_t i = 0; i < t; i++) g->positions[i] = (int32_t)i;
    LS_TRY(ls_program_write(p, "tokens", w->prompt->ids, LS_I32, t));
    LS_TRY(ls_program_write(p, "positions", g->positions, LS_I32, t));
    LS_TRY(ls_program_write(p, "position", &position, LS_I32, 1));
    LS_TRY(ls_program_write(p, "length", &length, LS_I32, 1));
    LS_TRY(ls_program_write(p, "last", &last, LS_I32, 1));
    LS_TRY(ls_program_run(p, LS_FORWARD));
    return ls_program_read(p, "logits", g->logits, LS_F32, g->trained->model.vocab);
}

/* Fills the text's cache and samples its first token. */
static ls_status generate_begin(struct generation *g, struct writing *w)
{
    ls_store_options o = ls_store_settings(g->trained->store);
    ls_program *p;

    w->ended = w->prompt->count == 0;
    if (w->ended) return LS_OK;
    LS_TRY(ls_cache_new(o.device, &g->trained->model, o.type, 1, w->prompt->n + w->prompt->count, &w->cache));
    LS_TRY(open_prompt(g, w, &p));
    ls_status st = run_prompt(g, w, p);
    ls_program_release(&p);
    return st == LS_OK ? generate_take(g, w, g->logits) : st;
}

/* ---- all texts ---- */

/* The names of the inputs of row i of the program. */
struct row_names {
    char position[32], length[32];
};

static struct row_names row_names(size_t i)
{
    struct row_names n;

    snprintf(n.position, sizeof n.position, "position.%zu", i);
    snprintf(n.length, sizeof n.length, "length.%zu", i);
    return n;
}

/* The operands of the program, [rows] each. */
struct next_operands {
    ls_cache **cache;
    ls_value *position, *length;
};

static ls_status build_next(struct generation *g, ls_program *p, const struct next_operands *o)
{
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ 1, g->rows });
    ls_value positions = ls_input(p, "positions", LS_I32, 1, (size_t[]){ g->rows });

    for (size_t i = 0; i < g->rows; i++) {
        struct row_names names = row_names(i);

        o->cache[i] = g->text[g->row[i]].cache;
        o->position[i] = ls_input(p, names.position, LS_I32, 1, (size_t[]){ 1 });
        o->length[i] = ls_input(p, names.length, LS_I32, 1, (size_t[]){ 1 });
    }
    ls_output(p, "logits", ls_model_decode_batch(p, &g->trained->model, g->rows, o->cache, tokens, positions, o->position, o->length));
    return ls_program_compile(p, NULL);
}

/* Makes the program for the texts that have not ended. */
static ls_status open_next(struct generation *g)
{
    struct next_operands o;

    ls_program_release(&g->next);
    g->rows = 0;
    for (size_t i = 0; i < g->n; i++)
        if (!g->text[i].ended) g->row[g->rows++] = i;
    if (g->rows == 0) return LS_OK;
    o.cache = mem_array(MEM_OTHER, g->rows, sizeof(ls_cache *));
    o.position = mem_array(MEM_OTHER, g->rows, sizeof *o.position);
    o.length = mem_array(MEM_OTHER, g->rows, sizeof *o.length);
    ls_status st = o.cache && o.position && o.length ? ls_program_new(g->trained->store, &g->next) : LS_ENOMEM;
    if (st == LS_OK) st = build_next(g, g->next, &o);
    mem_free(o.cache);
    mem_free(o.position);
    mem_free(o.length);
    return st;
}

/* A text that has ended is computed again and ignored, until the program is made again. */
static ls_status run_next(struct generation *g)
{
    for (size_t i = 0; i < g->rows; i++) {
        const struct writing *w = &g->text[g->row[i]];
        int32_t position = (int32_t)(w->prompt->n + w->made) - 1, length = position + 1;
        struct row_names names = row_names(i);

        g->tokens[i] = w->last;
        g->positions[i] = position;
        LS_TRY(ls_program_write(g->next, names.position, &position, LS_I32, 1));
        LS_TRY(ls_program_write(g->next, names.length, &length, LS_I32, 1));
    }
    LS_TRY(ls_program_write(g->next, "tokens", g->tokens, LS_I32, g->rows));
    LS_TRY(ls_program_write(g->next, "positions", g->positions, LS_I32, g->rows));
    LS_TRY(ls_program_run(g->next, LS_FORWARD));
    return ls_program_read(g->next, "logits", g->logits, LS_F32, g->rows * g->trained->model.vocab);
}

static ls_status generate_run(struct generation *g)
{
    for (size_t i = 0; i < g->n; i++) LS_TRY(generate_begin(g, &g->text[i]));
    LS_TRY(open_next(g));
    while (g->rows > 0) {
        size_t left = 0;

        LS_TRY(run_next(g));
        for (size_t i = 0; i < g->rows; i++) {
            struct writing *w = &g->text[g->row[i]];

            if (!w->ended) LS_TRY(generate_take(g, w, g->logits + i * g->trained->model.vocab));
            left += !w->ended;
        }
        if (2 * left <= g->rows && left < g->rows) LS_TRY(open_next(g));
    }
    return LS_OK;
}

static ls_status open_generation(struct generation *g, const struct generate_prompt *prompts)
{
    size_t vocab = g->trained->model.vocab, longest = g->n;

    for (size_t i = 0; i < g->n; i++) longest = MAX(longest, prompts[i].n);
    g->text = mem_array(MEM_OTHER, g->n, sizeof *g->text);
    g->row = mem_array(MEM_OTHER, g->n, sizeof *g->row);
    g->logits = mem_array(MEM_OTHER, g->n * vocab, sizeof *g->logits);
    g->scratch = mem_array(MEM_OTHER, vocab, sizeof *g->scratch);
    g->tokens = mem_array(MEM_OTHER, g->n, sizeof *g->tokens);
    g->positions = mem_array(MEM_OTHER, longest, sizeof *g->positions);
    if (!g->text || !g->row || !g->logits || !g->scratch || !g->tokens || !g->positions) return LS_ENOMEM;
    for (size_t i = 0; i < g->n; i++) g->text[i] = (struct writing){ .prompt = &prompts[i], .index = i };
    return LS_OK;
}

static void close_generation(struct generation *g)
{
    ls_program_release(&g->next);
    for (size_t i = 0; g->text && i < g->n; i++) ls_cache_release(&g->text[i].cache);
    mem_free(g->text);
    mem_free(g->row);
    mem_free(g->logits);
    mem_free(g->scratch);
    mem_free(g->tokens);
    mem_free(g->positions);
}

ls_status generate_batch(const struct trained *t, size_t n, const struct generate_prompt *prompts, const struct sampling *s,
                         generate_batch_fn *fn, void *ctx)
{
    struct generation g = { .trained = t, .sampling = *s, .fn = fn, .ctx = ctx, .n = n };

    for (size_t i = 0; i < n; i++) LS_TRY(generate_check(t, prompts[i].n, prompts[i].count));
    ls_status st = open_generation(&g, prompts);
    if (st == LS_OK) st = generate_run(&g);
    close_generation(&g);
    return st;
}
