/* hash_blocks.h - content hashes by block: each HASH_BLOCK_BYTES of the data of a shard, and the rest of it, has its own hash, so that a
 * reader of part of a tensor verifies that part and not the whole checkpoint.
 */
#ifndef LS_CHECKPOINT_HASH_BLOCKS_H
#define LS_CHECKPOINT_HASH_BLOCKS_H

#include "checkpoint/contents.h"

enum { HASH_BLOCK_BYTES = 1 << 20, HASH_DIGITS = 32 };

size_t hash_block_count(const ls_checkpoint_entry *e, uint64_t hash_block_bytes);

/* Allocates room for the hashes of everything that c lists, and sets the pointers in c->info. */
ls_status hash_blocks_make_room(struct contents *c);
/* Stores the hashes of a file that this rank wrote, from safetensors_hashes(). */
void hash_blocks_put(struct contents *c, size_t file, const char *digits);
/* Exchanges sizes and hashes among all ranks. Collective; comm NULL: nothing to do. */
ls_status hash_blocks_gather(struct contents *c);

#endif
