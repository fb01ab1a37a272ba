/* pieces.h - content hashes by piece: each PIECE_BYTES of a slice's data, and what is left of it, has a hash of its own, so that whoever
 * reads a part of a tensor verifies what it reads and not the whole checkpoint.
 */
#ifndef LS_CHECKPOINT_PIECES_H
#define LS_CHECKPOINT_PIECES_H

#include "checkpoint/shards.h"

enum { PIECE_BYTES = 1 << 20, PIECE_DIGITS = 32 };

size_t piece_count(const ls_checkpoint_entry *e, uint64_t piece_bytes);

/* Room for the hashes of everything that c lists, where c->info points at them. */
ls_status pieces_make_room(struct contents *c);
/* The hashes of a shard that was written here, as safetensors_pieces() gives them. */
void pieces_put(struct contents *c, size_t shard, const char *digits);
/* Each rank's sizes and hashes to all. Collective; comm NULL: nothing to do. */
ls_status pieces_gather(struct contents *c);

#endif
