/* reader_hashes.c - the content hashes of an open checkpoint: everything that saved_read() returns has been compared with them, once.
 *
 * A newer checkpoint has a hash for each piece of each slice's data (pieces.h) and one for each file's header; one of an earlier version
 * only has hashes of whole files, and a file is then read in full before its first element is used.
 */
#include "checkpoint/reader.h"

#include <string.h>
#include "base/base.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/threads.h"
#include "checkpoint/pieces.h"

enum { EXPECTED_PIECES = 8 };

static ls_status check_whole(const struct saved *s, size_t file)
{
    const ls_checkpoint_file *f = &s->manifest->info.files[file];
    char hash[HASH_ROOM];
    size_t before;

    if (s->believed[file]) return LS_OK;
    hash_of(safetensors_start(s->shard[file], &before), safetensors_bytes(s->shard[file]), hash);
    if (strcmp(hash, f->hash) != 0)
        return ls_fail(LS_EFORMAT, "%s/%s: damaged: its content has the hash %s, but the manifest says %s", s->path, f->name, hash,
                       f->hash);
    s->believed[file] = 1;
    return LS_OK;
}

ls_status saved_check_header(const struct saved *s, size_t file)
{
    const ls_checkpoint_file *f = &s->manifest->info.files[file];
    char hash[HASH_ROOM];
    const unsigned char *start;
    size_t bytes;

    if (!s->manifest->info.piece_bytes) return check_whole(s, file);
    start = safetensors_start(s->shard[file], &bytes);
    hash_of(start, bytes, hash);
    if (strcmp(hash, f->header) != 0)
        return ls_fail(LS_EFORMAT, "%s/%s: damaged: its header (%zu bytes) has the hash %s, but the manifest says %s", s->path, f->name,
                       bytes, hash, f->header);
    return LS_OK;
}

static ls_status check_piece(const struct saved *s, size_t entry, size_t piece)
{
    const ls_checkpoint_entry *e = &s->manifest->info.entries[entry];
    const struct safetensor *t = s->tensor[entry];
    size_t from = piece * s->manifest->info.piece_bytes, n = MIN((size_t)s->manifest->info.piece_bytes, t->bytes - from), before;
    char hash[HASH_ROOM];

    hash_of(t->data + from, n, hash);
    if (memcmp(hash, e->hashes + piece * PIECE_DIGITS, PIECE_DIGITS) == 0) return LS_OK;
    from += (size_t)(t->data - safetensors_start(s->shard[e->file], &before));
    return ls_fail(LS_EFORMAT, "%s/%s: tensor '%s': damaged: bytes %zu to %zu of the file have the hash %s, but the manifest says %.32s",
                   s->path, s->manifest->info.files[e->file].name, t->name, from, from + n - 1, hash, e->hashes + piece * PIECE_DIGITS);
}

struct checking {
    const struct saved *s;
    size_t entry, first; /* index of the entry, and of its first piece to check */
};

/* Lets the disk read pieces [first, last], and the next entry's first ones, which usually follow. */
static void expect_pieces(const struct saved *s, size_t entry, size_t first, size_t last)
{
    const struct safetensor *t = s->tensor[entry], *next = entry + 1 < s->manifest->info.nentries ? s->tensor[entry + 1] : NULL;
    size_t piece = s->manifest->info.piece_bytes, from = first * piece, to = MIN((last + 1) * piece, t->bytes);

    file_map_expect(t->data + from, to - from);
    if (next && s->manifest->info.entries[entry + 1].file == s->manifest->info.entries[entry].file)
        file_map_expect(next->data, MIN(next->bytes, EXPECTED_PIECES * piece));
}

/* Compares pieces first + begin ..; one that differs stays unmarked. */
static void reader_hashes_check_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct checking *c = ctx;
    unsigned char *checked = c->s->piece[c->entry];

    (void)thread;
    for (size_t p = c->first + begin; p < c->first + end; p++)
        if (!checked[p]) checked[p] = check_piece(c->s, c->entry, p) == LS_OK;
}

ls_status saved_check_bytes(const struct saved *s, size_t entry, size_t from, size_t to)
{
    const ls_checkpoint_info *info = &s->manifest->info;
    struct checking c = { s, entry, 0 };
    size_t last;

    if (!info->piece_bytes) return check_whole(s, info->entries[entry].file);
    if (from == to) return LS_OK;
    if (!s->piece[entry]) s->piece[entry] = mem_zalloc(MEM_OTHER, piece_count(&info->entries[entry], info->piece_bytes));
    if (!s->piece[entry]) return LS_ENOMEM;
    c.first = from / info->piece_bytes;
    last = (to - 1) / info->piece_bytes;
    if (last > c.first && !s->piece[entry][c.first]) expect_pieces(s, entry, c.first, last);
    if (last > c.first) threads_each(last + 1 - c.first, 1, reader_hashes_check_range, &c);
    for (size_t p = c.first; p <= last; p++) {
        if (s->piece[entry][p]) continue;
        LS_TRY(check_piece(s, entry, p)); /* again, for the message on this thread; or the only one */
        s->piece[entry][p] = 1;
    }
    return LS_OK;
}

ls_status saved_check_all(const struct saved *s)
{
    for (size_t i = 0; i < s->manifest->info.nentries; i++) LS_TRY(saved_check_bytes(s, i, 0, s->tensor[i]->bytes));
    return LS_OK;
}
