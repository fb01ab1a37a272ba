/* pieces.c - see pieces.h. A shard's digits are one block: its header's, then its entries', each a string that ends in NUL. */
#include "checkpoint/pieces.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "checkpoint/collective_status.h"

size_t piece_count(const ls_checkpoint_entry *e, uint64_t piece_bytes)
{
    size_t bytes = ls_dtype_bytes(e->type);

    for (int d = 0; d < e->ndim; d++) bytes *= e->extent[d];
    return (size_t)(bytes / piece_bytes) + (bytes % piece_bytes != 0);
}

static size_t entry_digits(const struct contents *c, size_t entry)
{
    return piece_count(&c->info.entries[entry], PIECE_BYTES) * PIECE_DIGITS;
}

static size_t block_bytes(const struct contents *c, const struct shard *s)
{
    size_t n = PIECE_DIGITS + 1;

    for (size_t k = 0; k < s->entries; k++) n += entry_digits(c, s->entry + k) + 1;
    return n;
}

ls_status pieces_make_room(struct contents *c)
{
    size_t all = 0;
    char *at;

    for (size_t i = 0; i < c->nshards; i++) all += block_bytes(c, &c->shard[i]);
    at = c->digits = mem_zalloc(MEM_OTHER, all);
    if (!at) return LS_ENOMEM;
    c->info.piece_bytes = PIECE_BYTES;
    for (size_t i = 0; i < c->nshards; i++) {
        struct shard *s = &c->shard[i];

        s->digits = at;
        at += PIECE_DIGITS + 1;
        for (size_t k = 0; k < s->entries; k++) {
            c->info.entries[s->entry + k].hashes = at;
            at += entry_digits(c, s->entry + k) + 1;
        }
    }
    return LS_OK;
}

void pieces_put(struct contents *c, size_t shard, const char *digits)
{
    const struct shard *s = &c->shard[shard];

    memcpy(s->digits, digits, PIECE_DIGITS);
    digits += PIECE_DIGITS;
    for (size_t k = 0; k < s->entries; k++) {
        size_t n = entry_digits(c, s->entry + k);

        memcpy(c->info.entries[s->entry + k].hashes, digits, n);
        digits += n;
    }
    memcpy(c->info.files[shard].header, s->digits, sizeof c->info.files[shard].header);
}

/* ---- each rank sends to all: size, file hash and block of each of its shards ---- */

struct piece_info {
    uint64_t bytes;
    char hash[40];
};

static size_t message_bytes(const struct contents *c, uint64_t rank)
{
    size_t n = 0;

    for (size_t i = 0; i < c->nshards; i++)
        if (c->shard[i].rank == rank) n += sizeof(struct piece_info) + block_bytes(c, &c->shard[i]);
    return n;
}

static void write_message(const struct contents *c, uint64_t rank, unsigned char *to)
{
    for (size_t i = 0; i < c->nshards; i++) {
        struct piece_info t = { .bytes = c->info.files[i].bytes };

        if (c->shard[i].rank != rank) continue;
        memcpy(t.hash, c->info.files[i].hash, sizeof c->info.files[i].hash);
        memcpy(to, &t, sizeof t);
        memcpy(to + sizeof t, c->shard[i].digits, block_bytes(c, &c->shard[i]));
        to += sizeof t + block_bytes(c, &c->shard[i]);
    }
}

static void read_message(struct contents *c, uint64_t rank, const unsigned char *from)
{
    for (size_t i = 0; i < c->nshards; i++) {
        struct piece_info t;

        if (c->shard[i].rank != rank) continue;
        memcpy(&t, from, sizeof t);
        memcpy(c->shard[i].digits, from + sizeof t, block_bytes(c, &c->shard[i]));
        c->info.files[i].bytes = t.bytes;
        memcpy(c->info.files[i].hash, t.hash, sizeof c->info.files[i].hash);
        memcpy(c->info.files[i].header, c->shard[i].digits, sizeof c->info.files[i].header);
        from += sizeof t + block_bytes(c, &c->shard[i]);
    }
}

ls_status pieces_gather(struct contents *c)
{
    int n = c->comm ? ls_comm_size(c->comm) : 1;
    size_t room = 0;
    unsigned char *mine, *all;
    ls_status st;

    if (n == 1) return LS_OK;
    for (int rank = 0; rank < n; rank++) room = MAX(room, message_bytes(c, (uint64_t)rank));
    mine = mem_zalloc(MEM_OTHER, room);
    all = mem_array(MEM_OTHER, (size_t)n, room);
    st = agree(c->comm, mine && all ? LS_OK : LS_ENOMEM);
    if (st == LS_OK) {
        write_message(c, (uint64_t)ls_comm_rank(c->comm), mine);
        st = ls_all_gather(c->comm, mine, all, room, LS_U8, NULL);
    }
    for (int rank = 0; rank < n && st == LS_OK; rank++) read_message(c, (uint64_t)rank, all + (size_t)rank * room);
    mem_free(mine);
    mem_free(all);
    return st;
}
