/* train_words.c - the distinct pre-tokens of a text and how often each occurs. */
#include "data/array.h"
#include "base/pulse.h"
#include "data/train.h"

struct table {
    uint32_t *cell;
    size_t cells;
}; /* open addressing over the bytes of pre-tokens: word + 1, 0 is free */

/* While counting, the symbols of a word are its bytes' ids, so two words are equal if their symbols are. */
static bool is_word(const struct words *w, size_t i, const int32_t *symbol, size_t length)
{
    return w->word[i].length == length && memcmp(w->symbol + w->word[i].at, symbol, length * sizeof *symbol) == 0;
}

static size_t find_cell(const struct words *w, const struct table *t, const int32_t *symbol, size_t length)
{
    size_t at = hash_bytes((const unsigned char *)symbol, length * sizeof *symbol) & (t->cells - 1);

    while (t->cell[at] && !is_word(w, t->cell[at] - 1, symbol, length)) at = (at + 1) & (t->cells - 1);
    return at;
}

static ls_status grow_table(const struct words *w, struct table *t)
{
    size_t cells = MAX(t->cells * 2, 4096);
    uint32_t *cell = mem_array(MEM_OTHER, cells, sizeof *cell);

    if (!cell) return LS_ENOMEM;
    mem_free(t->cell);
    *t = (struct table){ cell, cells };
    for (size_t i = 0; i < w->count; i++) t->cell[find_cell(w, t, w->symbol + w->word[i].at, w->word[i].length)] = (uint32_t)i + 1;
    return LS_OK;
}

/* Counts the pre-token. Its symbols are written after all others, and stay there if it is new. */
static ls_status count_pretoken(struct words *w, struct table *t, const struct bpe *b, const unsigned char *pretoken, size_t bytes)
{
    void *symbols = w->symbol, *words = w->word;

    if (bytes >= UINT32_MAX || w->count >= UINT32_MAX - 1)
        return ls_fail(LS_EINVAL, "the text has a pre-token of %zu bytes, or too many different ones", bytes);
    LS_TRY(array_grow(&symbols, &w->symbol_room, w->symbols + bytes, sizeof *w->symbol));
    w->symbol = symbols;
    LS_TRY(array_grow(&words, &w->room, w->count + 1, sizeof *w->word));
    w->word = words;
    if (2 * (w->count + 1) > t->cells) LS_TRY(grow_table(w, t));

    int32_t *symbol = w->symbol + w->symbols;
    for (size_t i = 0; i < bytes; i++) symbol[i] = b->byte_id[pretoken[i]];
    size_t at = find_cell(w, t, symbol, bytes);
    if (t->cell[at]) {
        w->word[t->cell[at] - 1].count++;
        return LS_OK;
    }
    w->word[w->count] = (struct word){ w->symbols, (uint32_t)bytes, 1 };
    t->cell[at] = (uint32_t)++w->count;
    w->symbols += bytes;
    return LS_OK;
}

static ls_status count_pretokens(struct words *w, struct table *table, struct split_work *work, const ls_tokenizer *t,
                                 const unsigned char *text, size_t bytes)
{
    size_t begin, end;

    for (size_t at = 0; at < bytes; at = end) {
        pulse();
        LS_TRY(split_next(t->stage[0].split, work, text, bytes, at, &begin, &end));
        if (begin > at) LS_TRY(count_pretoken(w, table, &t->bpe, text + at, begin - at));
        if (end > begin) LS_TRY(count_pretoken(w, table, &t->bpe, text + begin, end - begin));
    }
    return LS_OK;
}

ls_status words_count(struct words *w, const ls_tokenizer *t, const unsigned char *text, size_t bytes)
{
    struct table table = { 0 };
    struct split_work *work;

    LS_TRY(split_work_new(&work));
    ls_status st = count_pretokens(w, &table, work, t, text, bytes);
    mem_free(table.cell);
    split_work_free(&work);
    return st;
}

void words_free(struct words *w)
{
    mem_free(w->word);
    mem_free(w->symbol);
    *w = (struct words){ 0 };
}
