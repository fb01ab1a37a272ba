/* hash.c - see hash.h. */
#include "base/hash.h"

#include <stdatomic.h>
#include <stdio.h>
#define XXH_STATIC_LINKING_ONLY /* the size of XXH3_state_t, so that the ledger counts it */
#include <xxhash.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"

enum { PULSE_BYTES = 8 << 20 }; /* a fraction of a second, also from a slow disk */

struct hash_state {
    XXH3_state_t xxh;
};

static atomic_uint_fast64_t counted;

uint64_t hash_counted(void) { return atomic_load(&counted); }

ls_status hash_begin(hash_state **out)
{
    hash_state *h = mem_alloc(MEM_OTHER, sizeof *h);

    if (!h) return LS_ENOMEM;
    XXH3_INITSTATE(&h->xxh);
    ASSERT(XXH3_128bits_reset(&h->xxh) == XXH_OK);
    *out = h;
    return LS_OK;
}

static void add_blocks(XXH3_state_t *xxh, const unsigned char *data, size_t bytes)
{
    atomic_fetch_add(&counted, bytes);
    for (size_t at = 0, n; at < bytes; at += n) {
        n = MIN(bytes - at, (size_t)PULSE_BYTES);
        ASSERT(XXH3_128bits_update(xxh, data + at, n) == XXH_OK);
        pulse();
    }
}

void hash_add(hash_state *h, const void *data, size_t bytes) { add_blocks(&h->xxh, data, bytes); }

static void write_hex(XXH128_hash_t value, char hex[HASH_ROOM])
{
    snprintf(hex, HASH_ROOM, "%016llx%016llx", (unsigned long long)value.high64, (unsigned long long)value.low64);
}

void hash_end(hash_state **at, char hex[HASH_ROOM])
{
    if (!*at) return;
    if (hex) write_hex(XXH3_128bits_digest(&(*at)->xxh), hex);
    mem_free(*at);
    *at = NULL;
}

void hash_so_far(const hash_state *h, char hex[HASH_ROOM]) { write_hex(XXH3_128bits_digest(&h->xxh), hex); }

void hash_next(hash_state *h, char hex[HASH_ROOM])
{
    hash_so_far(h, hex);
    ASSERT(XXH3_128bits_reset(&h->xxh) == XXH_OK);
}

void hash_of(const void *data, size_t bytes, char hex[HASH_ROOM])
{
    XXH3_state_t xxh;

    XXH3_INITSTATE(&xxh);
    ASSERT(XXH3_128bits_reset(&xxh) == XXH_OK);
    add_blocks(&xxh, data, bytes);
    write_hex(XXH3_128bits_digest(&xxh), hex);
}

struct hash_words hash_words_of(const void *data, size_t bytes)
{
    XXH128_hash_t h = XXH3_128bits(data, bytes);

    return (struct hash_words){ h.low64, h.high64 };
}
