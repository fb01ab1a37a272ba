/* safetensors.h - files of named tensors, read by mmap and written as a stream.
 *
 *   0 .. 8     u64, little-endian: N, bytes of the header, at most 100,000,000
 *   8 .. 8+N   the header: one JSON object, which begins with '{' and may be padded with spaces at the end:
 *              {"__metadata__": {text: text, ...},
 *               "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
 *   8+N ..     the data: little-endian, row-major; a tensor's is [8+N+begin, 8+N+end)
 * The tensors' ranges cover the data without hole or overlap; the values of "__metadata__" are strings (it may be null). The reader here
 * also rejects duplicate names, names with control characters, more than LS_DIMS dims, types of less than a byte (F4, F6), a range that is
 * not the shape's product times the element's size. Names are looked up and printed; they never become paths. Files that we write are
 * padded so that the data begins on a multiple of 8 bytes, have "__metadata__" {"format": "pt"}, and have the tensors in the given order.
 */
#ifndef LS_CHECKPOINT_SAFETENSORS_H
#define LS_CHECKPOINT_SAFETENSORS_H

#include <stdbool.h>
#include "base/file.h"
#include "base/hash.h"
#include "lockstep/dtype.h"
#include "lockstep/status.h"
#include "lockstep/tensor.h"

enum { SAFETENSORS_HEADER_MOST = 100000000, SAFETENSORS_PREFIX = 8 }; /* bytes */

struct safetensor {
    const char *name;
    const char *type_name; /* as in the file: "BOOL" */
    ls_dtype type;         /* LS_DTYPES: a type that lockstep does not have */
    int ndim;
    size_t size[LS_DIMS], count, bytes;
    const unsigned char *data; /* in the mapped file; of any alignment */
};

/* True if the name has no control characters and is not the one that the format reserves. */
bool safetensor_name_is_valid(const char *name);

struct safetensors; /* an open file */

/* Every message starts with path, or with `what`. The bytes passed to _parse must outlive its result. */
ls_status safetensors_open(const char *path, struct safetensors **out);
ls_status safetensors_parse(const unsigned char *data, size_t bytes, const char *what, struct safetensors **out);
void safetensors_close(struct safetensors **f); /* NULL is a no-op */

const char *safetensors_path(const struct safetensors *f);
size_t safetensors_bytes(const struct safetensors *f);                              /* size of the file */
const unsigned char *safetensors_start(const struct safetensors *f, size_t *bytes); /* everything before the data */
size_t safetensors_count(const struct safetensors *f);
const struct safetensor *safetensors_at(const struct safetensors *f, size_t i);           /* in the order of their data */
const struct safetensor *safetensors_find(const struct safetensors *f, const char *name); /* NULL: none */

/* Its data, aligned for the element type: in the file, or a copy in *copy, to be freed with mem_free(). NULL when out of memory. */
const void *safetensor_aligned(const struct safetensor *t, void **copy);

/* The tensors of a file: the header is written from these when it is opened, then the data of each, in order. */
struct safetensor_spec {
    const char *name;
    ls_dtype type;
    int ndim;
    size_t size[LS_DIMS];
};
struct safetensors_writer;

ls_status safetensors_create(const char *path, size_t n, const struct safetensor_spec *spec, struct safetensors_writer **out);
/* Call before the first put: hashes every hash_block_bytes of each tensor's data, and the rest of it, separately. */
ls_status safetensors_hash_blocks(struct safetensors_writer *w, size_t hash_block_bytes);
ls_status safetensors_put(struct safetensors_writer *w, const void *data, size_t bytes);
/* After the last put, borrowed: 32 digits for everything before the data (8 + N bytes), then 32 for each block in order. */
ls_status safetensors_hashes(const struct safetensors_writer *w, const char **digits);
/* Syncs and publishes; *bytes and hash of the whole file. *w = NULL, also on failure. */
ls_status safetensors_publish(struct safetensors_writer **w, uint64_t *bytes, char hash[HASH_ROOM]);
void safetensors_abandon(struct safetensors_writer **w); /* NULL is a no-op */

size_t safetensor_spec_bytes(const struct safetensor_spec *s); /* bytes of its data */

#endif
