/* hash.h - the content hash: XXH3, 128 bits, seed 0, written as 32 hexadecimal digits (high word first), which is
 * what `xxhsum -H2` prints. It detects damage, not deliberate forgery. The only place that uses xxHash.
 */
#ifndef LS_BASE_HASH_H
#define LS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include "lockstep/status.h"

enum { HASH_ROOM = 33 }; /* 32 digits and a NUL */

typedef struct hash_state hash_state;

ls_status hash_begin(hash_state **out);
void hash_add(hash_state *h, const void *data, size_t bytes);
void hash_end(hash_state **h, char hex[HASH_ROOM]); /* *h = NULL; hex may be NULL (the hash is discarded); NULL is a no-op */
void hash_so_far(const hash_state *h, char hex[HASH_ROOM]);
void hash_next(hash_state *h, char hex[HASH_ROOM]); /* hash_so_far, then restarts as after hash_begin */
void hash_of(const void *data, size_t bytes, char hex[HASH_ROOM]);
uint64_t hash_counted(void); /* bytes that this process has hashed so far, but for those of hash_words_of() */

/* The same 128 bits, for tables in memory. */
struct hash_words {
    uint64_t low, high;
};
struct hash_words hash_words_of(const void *data, size_t bytes);

#endif
