/* reader_hashes.c - the content hashes of an open checkpoint: everything that saved_read() returns has been compared with them, once.
 *
 * A newer checkpoint has a hash for each block of each shard's data (hash_blocks.h) and one for each file's header; one of an earlier
 * version only has hashes of whole files, and a file is then read in full before its first element is used.
 */
#include "checkpoint/reader.h"

#include <string.h>
#include "base/base.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/threads.h"
#include "checkpoint/hash_blocks.h"

enum { EXPECTED_BLOCKS = 8 };

static ls_status check_whole(const struct saved *s, size_t file)
{
    const ls_checkpoint_file *f = &s->manifest->info.files[file];
    char hash[HASH_ROOM];
    size_t before;

    if (s->believed[file]) return LS_OK;
    hash_of(safetensors_start(s->file[file], &before), safetensors_bytes(s->file[file]), hash);
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
    size_t bytes;

    if (!s->manifest->info.hash_block_bytes) return check_whole(s, file);
    const unsigned char *start = safetensors_start(s->file[file], &bytes);
    hash_of(start, bytes, hash);
    if (strcmp(hash, f->header) != 0)
        return ls_fail(LS_EFORMAT, "%s/%s: damaged: its header (%zu bytes) has the hash %s, but the manifest says %s", s->path, f->name,
                       bytes, hash, f->header);
    return LS_OK;
}

static ls_status check_block(const struct saved *s, size_t entry, size_t block)
{
    const ls_checkpoint_entry *e = &s->manifest->info.entries[entry];
    const struct safetensor *t = s->tensor[entry];
    size_t from = block * s->manifest->info.hash_block_bytes, n = MIN((size_t)s->manifest->info.hash_block_bytes, t->bytes - from), before;
    char hash[HASH_ROOM];

    hash_of(t->data + from, n, hash);
    if (memcmp(hash, e->hashes + block * HASH_DIGITS, HASH_DIGITS) == 0) return LS_OK;
    from += (size_t)(t->data - safetensors_start(s->file[e->file], &before));
    return ls_fail(LS_EFORMAT, "%s/%s: tensor '%s': damaged: bytes %zu to %zu of the file have the hash %s, but the manifest says %.32s",
                   s->path, s->manifest->info.files[e->file].name, t->name, from, from + n - 1, hash, e->hashes + block * HASH_DIGITS);
}

struct checking {
    const struct saved *s;
    size_t entry, first; /* index of the entry, and of its first block to check */
};

/* Lets the disk read blocks [first, last], and the next entry's first ones, which usually follow. */
static void expect_blocks(const struct saved *s, size_t entry, size_t first, size_t last)
{
    const struct safetensor *t = s->tensor[entry], *next = entry + 1 < s->manifest->info.nentries ? s->tensor[entry + 1] : NULL;
    size_t block = s->manifest->info.hash_block_bytes, from = first * block, to = MIN((last + 1) * block, t->bytes);

    file_map_expect(t->data + from, to - from);
    if (next && s->manifest->info.entries[entry + 1].file == s->manifest->info.entries[entry].file)
        file_map_expect(next->data, MIN(next->bytes, EXPECTED_BLOCKS * block));
}

/* Compares blocks first + begin ..; one that differs stays unmarked. */
static void reader_hashes_check_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct checking *c = ctx;
    unsigned char *checked = c->s->verified[c->entry];

    (void)thread;
    for (size_t p = c->first + begin; p < c->first + end; p++)
        if (!checked[p]) checked[p] = check_block(c->s, c->entry, p) == LS_OK;
}

ls_status saved_check_bytes(const struct saved *s, size_t entry, size_t from, size_t to)
{
    const ls_checkpoint_info *info = &s->manifest->info;
    struct checking c = { s, entry, 0 };

    if (!info->hash_block_bytes) return check_whole(s, info->entries[entry].file);
    if (from == to) return LS_OK;
    if (!s->verified[entry]) s->verified[entry] = mem_zalloc(MEM_OTHER, hash_block_count(&info->entries[entry], info->hash_block_bytes));
    if (!s->verified[entry]) return LS_ENOMEM;
    c.first = from / info->hash_block_bytes;
    size_t last = (to - 1) / info->hash_block_bytes;
    if (last > c.first && !s->verified[entry][c.first]) expect_blocks(s, entry, c.first, last);
    if (last > c.first) threads_each(last + 1 - c.first, 1, reader_hashes_check_range, &c);
    for (size_t p = c.first; p <= last; p++) {
        if (s->verified[entry][p]) continue;
        LS_TRY(check_block(s, entry, p)); /* again, for the message on this thread; or the only one */
        s->verified[entry][p] = 1;
    }
    return LS_OK;
}

ls_status saved_check_all(const struct saved *s)
{
    for (size_t i = 0; i < s->manifest->info.nentries; i++) LS_TRY(saved_check_bytes(s, i, 0, s->tensor[i]->bytes));
    return LS_OK;
}
