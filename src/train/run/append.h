/* append.h - files to which complete lines or records are appended: metrics, events.
 *
 * append_put() is one write(2) at the end of the file, so a reader never sees part of an old record. A file that cannot grow (a
 * full disk) does not end a training run: the first failure is a warning in the log, later ones are silent, and writing resumes
 * when there is space again. A record that was written in part is removed again.
 */
#ifndef LS_TRAIN_RUN_APPEND_H
#define LS_TRAIN_RUN_APPEND_H

#include <stddef.h>
#include "lockstep/status.h"

struct append {
    int fd;
    int warned;
    char *path;
};
#define APPEND_NONE \
    {               \
        -1, 0, NULL \
    }

ls_status append_open(const char *path, struct append *out); /* creates the file if it does not exist */
void append_put(struct append *a, const void *data, size_t bytes);
void append_close(struct append *a); /* *a is APPEND_NONE afterwards; closing APPEND_NONE does nothing */

#endif
