/* folder.h - the folders of checkpoints under a root: names, checks, publishing, cleaning up after interrupted saves.
 *
 *   step_NNNNNNNN      a checkpoint; the step in decimal, at least 8 digits
 *   step_NNNNNNNN.tmp  being written or removed: swept away by the next save
 *   step_NNNNNNNN.old  was moved aside while its successor of the same step is put in place: counts as that step's
 *                      checkpoint while there is no other, and is put back by the next save
 */
#ifndef LS_CHECKPOINT_FOLDER_H
#define LS_CHECKPOINT_FOLDER_H

#include <stdbool.h>
#include "checkpoint/manifest.h"

char *folder_of_step(const char *root, uint64_t step); /* free with mem_free(); NULL: out of memory */
/* Cleans up what interrupted saves left under root, which is created if it is missing. */
ls_status folder_sweep(const char *root);
/* Renames tmp, which is complete, to path, replacing it. */
ls_status folder_publish(const char *tmp, const char *path);
/* Checks that the manifest is valid, every file has the recorded size, and those without tensors match their hashes. out may be NULL. */
ls_status folder_check(const char *path, struct manifest **out);
/* *older = the newest checkpoint of a lower step under the same root that folder_check accepts; NULL if there is no such checkpoint. Free
 * with mem_free. */
ls_status folder_before(const char *path, char **older);
/* As ls_checkpoint_resolve, but the newest one of a run or root even if it is damaged. Free with mem_free. */
ls_status folder_newest(const char *where, char **path);

#endif
