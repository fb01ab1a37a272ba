/* reader.h - an open checkpoint: its manifest, its shards, and any part of any tensor out of the slices in which it was saved. */
#ifndef LS_CHECKPOINT_READER_H
#define LS_CHECKPOINT_READER_H

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/slices.h"
#include "lockstep/store.h"

struct saved {
    char *path;
    struct manifest *manifest;
    struct safetensors **shard;       /* [nfiles]; NULL: no tensor of the manifest is in that file */
    const struct safetensor **tensor; /* [nentries] */
    unsigned char **piece;            /* [nentries][piece_count]: 1 where the content was compared with its hash; NULL: nowhere yet */
    unsigned char *believed;          /* [nfiles] 1: the whole file was */
};

/* The manifest is sound, the files are there in their sizes, and those without tensors have their content. Closed by saved_close() on
 * failure too, when *s was zero before. */
ls_status saved_open(const char *path, struct saved *s);
/* Every slice that the manifest lists is in its shard, and nothing else is; the headers have their content. Before saved_read(). */
ls_status saved_check_shards(struct saved *s);
void saved_close(struct saved *s);
bool saved_has(const struct saved *s, const char *kind, const char *name);
/* Where the truth about a parameter stands (rule 3 of checkpoint.h): "master" or "parameter". */
const char *saved_truth(const struct saved *s, const char *name);
/* host[n] = elements from .. of a box of a tensor that is there, row-major in the box, rounded to `type`; of the same type its bits.
 * What is read has been compared with its hashes: LS_EFORMAT names the tensor that is damaged. host NULL: only compared. */
ls_status saved_read(const struct saved *s, const char *kind, const char *name, const struct slice *box, size_t from, size_t n, void *host,
                     ls_dtype type);

/* reader_hashes.c: bytes [from, to) of an entry's data, a shard's header, all data of all shards against their hashes. */
ls_status saved_check_bytes(const struct saved *s, size_t entry, size_t from, size_t to);
ls_status saved_check_header(const struct saved *s, size_t file);
ls_status saved_check_all(const struct saved *s);

/* reader_check.c: the checkpoint's parameters and the store's are the same in name and shape; with `optimizer` its states are too. */
ls_status saved_check_store(const struct saved *s, const ls_store *store, bool optimizer);

/* "[2,3]" */
enum { SHAPE_ROOM = LS_DIMS * 24 };
const char *shape_text(char out[SHAPE_ROOM], int ndim, const size_t *size);

#endif
