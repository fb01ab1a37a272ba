/* folder.h - the folders of checkpoints under a root: their names, what is whole, what is published or left behind.
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

char *folder_of_step(const char *root, uint64_t step); /* free with mem_free(); NULL: no memory */
/* Removes and puts back what interrupted saves left under root, which is made if it is missing. */
ls_status folder_sweep(const char *root);
/* tmp, complete, becomes path, which it replaces. */
ls_status folder_publish(const char *tmp, const char *path);
/* The manifest is sound, every file is there in its size, and those without tensors have their content. out may be NULL. */
ls_status folder_check(const char *path, struct manifest **out);
/* *older = the newest checkpoint of a lower step under the same root that folder_check accepts; NULL if there is no such checkpoint. Free
 * with mem_free. */
ls_status folder_before(const char *path, char **older);
/* As ls_checkpoint_resolve, but the newest one of a run or root even if it is damaged. Free with mem_free. */
ls_status folder_newest(const char *where, char **path);

#endif
