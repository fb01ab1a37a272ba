/* kept_plays.c - see kept_plays.h. */
#include "train/plan/kept_plays.h"

#include "base/mem.h"

enum {
    PLAYED_LEAST = 1 << 10, /* initial room for results, which is doubled */
    PLAYED_MOST = 1 << 17,  /* up to this; the table is emptied when half of it is full. Both are powers of 2 */
};

/* The arguments of tape_play(). No padding: keys are compared as bytes. */
struct played_key {
    struct hash_words place; /* hash of the stage's place */
    int64_t pattern;
    double samples; /* samples of the term */
};

/* Results by open addressing: each is at its key's hash or in a later cell. */
struct played {
    struct hash_words key; /* zeros: the cell is free */
    struct tape_seconds seconds;
};

struct kept_plays {
    struct played *table; /* [room] */
    int room, count;
};

ls_status kept_plays_open(struct kept_plays **out)
{
    struct kept_plays *k = mem_array(MEM_OTHER, 1, sizeof *k);

    if (!k) return LS_ENOMEM;
    k->room = PLAYED_LEAST;
    k->table = mem_array(MEM_OTHER, PLAYED_LEAST, sizeof *k->table);
    if (!k->table) {
        mem_free(k);
        return LS_ENOMEM;
    }
    *out = k;
    return LS_OK;
}

void kept_plays_close(struct kept_plays **out)
{
    struct kept_plays *k = *out;

    *out = NULL;
    if (!k) return;
    mem_free(k->table);
    mem_free(k);
}

static bool played_is_free(const struct played *x) { return x->key.low == 0 && x->key.high == 0; }

static struct played *played_find(struct played *table, int room, const struct hash_words *key)
{
    size_t at = key->low & (size_t)(room - 1);

    while (!played_is_free(&table[at]) && (table[at].key.low != key->low || table[at].key.high != key->high))
        at = (at + 1) & (size_t)(room - 1);
    return &table[at];
}

/* Makes room for one more. */
static ls_status grow_plays(struct kept_plays *k)
{
    int room = 2 * k->room;
    struct played *grown;

    if (2 * k->count < k->room) return LS_OK;
    if (k->room == PLAYED_MOST) {
        for (int i = 0; i < k->room; i++) k->table[i].key = (struct hash_words){ 0 };
        k->count = 0;
        return LS_OK;
    }
    if (!(grown = mem_array(MEM_OTHER, (size_t)room, sizeof *grown))) return LS_ENOMEM;
    for (int i = 0; i < k->room; i++)
        if (!played_is_free(&k->table[i])) *played_find(grown, room, &k->table[i].key) = k->table[i];
    mem_free(k->table);
    k->table = grown;
    k->room = room;
    return LS_OK;
}

ls_status kept_play_of(struct kept_plays *k, const struct patterns *p, int pattern, const struct cluster *c, const struct tape_place *at,
                       struct hash_words stage, struct tape_seconds *out)
{
    struct pattern *x = patterns_at(p, pattern);
    struct played_key key = { stage, pattern, at->samples };
    struct hash_words words = hash_words_of(&key, sizeof key);
    struct played *kept = played_find(k->table, k->room, &words);

    if (played_is_free(kept)) {
        LS_TRY(grow_plays(k));
        kept = played_find(k->table, k->room, &words);
        *kept = (struct played){ .key = words };
        for (int i = 0; i < x->tapes; i++) tape_play(&x->tape[i], c, at, &kept->seconds);
        k->count++;
    }
    *out = kept->seconds;
    return LS_OK;
}
