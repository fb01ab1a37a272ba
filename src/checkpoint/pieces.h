/* pieces.h - content hashes by piece: each PIECE_BYTES of a slice's data, and the rest of it, has its own hash, so that a reader of part of
 * a tensor verifies that part and not the whole checkpoint.
 */
#ifndef LS_CHECKPOINT_PIECES_H
#define LS_CHECKPOINT_PIECES_H

#include "checkpoint/shards.h"

enum { PIECE_BYTES = 1 << 20, PIECE_DIGITS = 32 };

size_t piece_count(const ls_checkpoint_entry *e, uint64_t piece_bytes);

/* Allocates room for the hashes of everything that c lists, and sets the pointers in c->info. */
ls_status pieces_make_room(struct contents *c);
/* Stores the hashes of a shard that this rank wrote, from safetensors_pieces(). */
void pieces_put(struct contents *c, size_t shard, const char *digits);
/* Exchanges sizes and hashes among all ranks. Collective; comm NULL: nothing to do. */
ls_status pieces_gather(struct contents *c);

#endif
