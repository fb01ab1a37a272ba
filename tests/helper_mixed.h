/* helper_mixed.h - the generated text of tools/tokenizer_fixtures.py, repeated in C, and the hash of ids. */
#ifndef HELPER_MIXED_H
#define HELPER_MIXED_H

#include <stddef.h>
#include <stdint.h>
#include "base/json.h"

enum { MIXED_LINE_MOST = 32 << 10 };  /* bytes of a line; 23 items of at most 480, and some */

/* Line n with the fragments of expected.json; returns its length. */
size_t mixed_line(const json_node *fragments, uint64_t n, char *out);
/* Text of the code points of one block of 256 (a few of the sparse ones), each in six places; 0: none chosen. */
size_t mixed_points(uint32_t block, char *out);

struct mixed_hash { uint64_t value; };
void mixed_hash_start(struct mixed_hash *h);
void mixed_hash_ids(struct mixed_hash *h, const int32_t *ids, size_t count);  /* one list */
void mixed_hash_text(const struct mixed_hash *h, char out[17]);

#endif
