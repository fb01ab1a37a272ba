/* hash_blocks.c - see hash_blocks.h. The digits of a file are one array: its header's, then its entries', each a string that ends in NUL.
 */
#include "checkpoint/hash_blocks.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "checkpoint/collective_status.h"

size_t hash_block_count(const ls_checkpoint_entry *e, uint64_t hash_block_bytes)
{
    size_t bytes = ls_dtype_bytes(e->type);

    for (int d = 0; d < e->ndim; d++) bytes *= e->extent[d];
    return (size_t)(bytes / hash_block_bytes) + (bytes % hash_block_bytes != 0);
}

static size_t entry_digits(const struct contents *c, size_t entry)
{
    return hash_block_count(&c->info.entries[entry], HASH_BLOCK_BYTES) * HASH_DIGITS;
}

static size_t digits_bytes(const struct contents *c, const struct tensor_file *s)
{
    size_t n = HASH_DIGITS + 1;

    for (size_t k = 0; k < s->entries; k++) n += entry_digits(c, s->entry + k) + 1;
    return n;
}

ls_status hash_blocks_make_room(struct contents *c)
{
    size_t all = 0;

    for (size_t i = 0; i < c->tensor_files; i++) all += digits_bytes(c, &c->file[i]);
    char *at = c->digits = mem_zalloc(MEM_OTHER, all);
    if (!at) return LS_ENOMEM;
    c->info.hash_block_bytes = HASH_BLOCK_BYTES;
    for (size_t i = 0; i < c->tensor_files; i++) {
        struct tensor_file *s = &c->file[i];

        s->digits = at;
        at += HASH_DIGITS + 1;
        for (size_t k = 0; k < s->entries; k++) {
            c->info.entries[s->entry + k].hashes = at;
            at += entry_digits(c, s->entry + k) + 1;
        }
    }
    return LS_OK;
}

void hash_blocks_put(struct contents *c, size_t file, const char *digits)
{
    const struct tensor_file *s = &c->file[file];

    memcpy(s->digits, digits, HASH_DIGITS);
    digits += HASH_DIGITS;
    for (size_t k = 0; k < s->entries; k++) {
        size_t n = entry_digits(c, s->entry + k);

        memcpy(c->info.entries[s->entry + k].hashes, digits, n);
        digits += n;
    }
    memcpy(c->info.files[file].header, s->digits, sizeof c->info.files[file].header);
}

/* ---- each rank sends to all: size, file hash and digits of each of its files ---- */

struct file_info {
    uint64_t bytes;
    char hash[40];
};

static size_t message_bytes(const struct contents *c, uint64_t rank)
{
    size_t n = 0;

    for (size_t i = 0; i < c->tensor_files; i++)
        if (c->file[i].rank == rank) n += sizeof(struct file_info) + digits_bytes(c, &c->file[i]);
    return n;
}

static void write_message(const struct contents *c, uint64_t rank, unsigned char *to)
{
    for (size_t i = 0; i < c->tensor_files; i++) {
        struct file_info t = { .bytes = c->info.files[i].bytes };

        if (c->file[i].rank != rank) continue;
        memcpy(t.hash, c->info.files[i].hash, sizeof c->info.files[i].hash);
        memcpy(to, &t, sizeof t);
        memcpy(to + sizeof t, c->file[i].digits, digits_bytes(c, &c->file[i]));
        to += sizeof t + digits_bytes(c, &c->file[i]);
    }
}

static void read_message(struct contents *c, uint64_t rank, const unsigned char *from)
{
    for (size_t i = 0; i < c->tensor_files; i++) {
        struct file_info t;

        if (c->file[i].rank != rank) continue;
        memcpy(&t, from, sizeof t);
        memcpy(c->file[i].digits, from + sizeof t, digits_bytes(c, &c->file[i]));
        c->info.files[i].bytes = t.bytes;
        memcpy(c->info.files[i].hash, t.hash, sizeof c->info.files[i].hash);
        memcpy(c->info.files[i].header, c->file[i].digits, sizeof c->info.files[i].header);
        from += sizeof t + digits_bytes(c, &c->file[i]);
    }
}

ls_status hash_blocks_gather(struct contents *c)
{
    int n = c->comm ? ls_comm_size(c->comm) : 1;
    size_t room = 0;

    if (n == 1) return LS_OK;
    for (int rank = 0; rank < n; rank++) room = MAX(room, message_bytes(c, (uint64_t)rank));
    unsigned char *mine = mem_zalloc(MEM_OTHER, room);
    unsigned char *all = mem_array(MEM_OTHER, (size_t)n, room);
    ls_status st = agree(c->comm, mine && all ? LS_OK : LS_ENOMEM);
    if (st == LS_OK) {
        write_message(c, (uint64_t)ls_comm_rank(c->comm), mine);
        st = ls_all_gather(c->comm, mine, all, room, LS_U8, NULL);
    }
    for (int rank = 0; rank < n && st == LS_OK; rank++) read_message(c, (uint64_t)rank, all + (size_t)rank * room);
    mem_free(mine);
    mem_free(all);
    return st;
}
