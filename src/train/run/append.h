/* append.h - files that grow by whole lines or records: metrics, events.
 *
 * Each put is one write(2) at the end, so a reader never sees half of an old record. A file that cannot grow (a full
 * disk) must not end a training run: the first failure is one warning in the log, later ones are silent, and
 * writing goes on as soon as there is room again. A record that was cut is taken back.
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

ls_status append_open(const char *path, struct append *out); /* creates it, or appends to it */
void append_put(struct append *a, const void *data, size_t bytes);
void append_close(struct append *a); /* APPEND_NONE afterwards; of APPEND_NONE a no-op */

#endif
