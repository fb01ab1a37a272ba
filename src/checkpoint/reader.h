/* reader.h - an open checkpoint: its manifest and files; reads any part of any tensor from the saved shards. */
#ifndef LS_CHECKPOINT_READER_H
#define LS_CHECKPOINT_READER_H

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/boxes.h"
#include "lockstep/store.h"

struct saved {
    char *path;
    struct manifest *manifest;
    struct safetensors **file;        /* [nfiles]; NULL: no tensor of the manifest is in that file */
    const struct safetensor **tensor; /* [nentries] */
    unsigned char **verified;         /* [nentries][hash_block_count]: 1 if the block has been verified; NULL: none yet */
    unsigned char *believed;          /* [nfiles] 1 if the whole file has been verified */
};

/* Opens a checkpoint whose manifest is valid, whose files have the recorded sizes, and whose files without tensors match their hashes.
 * Close with saved_close(), on failure, too, if *s was zero before. */
ls_status saved_open(const char *path, struct saved *s);
/* Checks that each file holds exactly the shards that the manifest lists, and that the headers match their hashes. Call before
 * saved_read(). */
ls_status saved_check_files(struct saved *s);
void saved_close(struct saved *s);
bool saved_has(const struct saved *s, const char *kind, const char *name);
/* The kind of a parameter's source value (rule 3 of checkpoint.h): "master" or "parameter". */
const char *saved_truth(const struct saved *s, const char *name);
/* host[n] = elements from .. of a box of an existing tensor, row-major in the box, rounded to `type` (exact for the same type). Everything
 * that is read is verified: LS_EFORMAT names the damaged tensor. host NULL: only verifies. */
ls_status saved_read(const struct saved *s, const char *kind, const char *name, const struct box *box, size_t from, size_t n, void *host,
                     ls_dtype type);

/* reader_hashes.c: verify bytes [from, to) of an entry's data, a file's header, or all data of all files. */
ls_status saved_check_bytes(const struct saved *s, size_t entry, size_t from, size_t to);
ls_status saved_check_header(const struct saved *s, size_t file);
ls_status saved_check_all(const struct saved *s);

/* reader_check.c: checks that the checkpoint's parameters and the store's have the same names and shapes; with `optimizer` also their
 * states. */
ls_status saved_check_store(const struct saved *s, const ls_store *store, bool optimizer);

/* "[2,3]" */
enum { SHAPE_ROOM = LS_DIMS * 24 };
const char *shape_text(char out[SHAPE_ROOM], int ndim, const size_t *size);

#endif
