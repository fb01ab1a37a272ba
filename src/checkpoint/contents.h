/* contents.h - lists what a save writes: files, and the tensor shards in them; the same list on all ranks. */
#ifndef LS_CHECKPOINT_CONTENTS_H
#define LS_CHECKPOINT_CONTENTS_H

#include "checkpoint/save_plan.h"
#include "checkpoint/manifest.h"

enum { CLASSES = 2 }; /* classes of files with tensors: parameters, optimizer */

/* A file of tensors, written by one rank. */
struct tensor_file {
    uint64_t rank, class;
    size_t claim, claims, entry, entries; /* first claim, number of claims; first entry, number of entries */
    char name[48];
    char *digits; /* the hashes of its header and its tensors: hash_blocks.h */
};

/* Names inside info are borrowed: from the store, the claims, the files, the caller's paths. */
struct contents {
    ls_checkpoint_info info;
    const ls_store *store;
    ls_comm *comm;
    struct claims claims;
    struct tensor_file *file;
    size_t tensor_files;
    void *chunk;              /* the writer's chunk of memory */
    char *digits;             /* the hashes of all files with tensors */
    const char *const *files; /* paths of info.files[tensor_files ..] */
};

/* Made from store and claims; files: to be copied along, NULL: none. LS_EINVAL if the claims do not cover every element exactly once. */
ls_status contents_list(struct contents *c, const char *const *files);
void contents_free(struct contents *c);

#endif
