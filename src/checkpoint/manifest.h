/* manifest.h - the manifest of a checkpoint in memory, with an index by tensor; manifest.c specifies the format. */
#ifndef LS_CHECKPOINT_MANIFEST_H
#define LS_CHECKPOINT_MANIFEST_H

#include "lockstep/checkpoint.h"

enum { MANIFEST_FORMAT = 1 };
#define MANIFEST_NAME  "manifest.json"
#define KIND_PARAMETER "parameter"
#define KIND_MASTER    "master"

struct manifest {
    ls_checkpoint_info info;            /* first member: the public API returns a pointer to it */
    const ls_checkpoint_entry **sorted; /* info.entries by kind, name, offset */
};

/* `what` names the source in messages. */
ls_status manifest_parse(const char *text, size_t bytes, const char *what, struct manifest **out);
ls_status manifest_read(const char *folder, struct manifest **out);
void manifest_release(struct manifest **m); /* NULL is a no-op */
/* The complete text, including the trailer; free with mem_free(). */
ls_status manifest_format(const ls_checkpoint_info *info, char **text, size_t *bytes);

/* The shards of a tensor, in the order of their offsets; *n = 0 if there is no such tensor. */
const ls_checkpoint_entry *const *manifest_find(const struct manifest *m, const char *kind, const char *name, size_t *n);
/* The name of an entry in its file; free with mem_free(). */
char *manifest_key(const ls_checkpoint_entry *e);

/* manifest_check.c: fills `sorted` and rejects contradictions: files named twice, shards that overlap or leave holes, parameters of several
 * types. */
ls_status manifest_check(struct manifest *m, const char *what);

#endif
