/* launch_orphans.h - processes that ranks leave behind.
 *
 * While a launch runs, an orphan among its descendants becomes the launcher's child (PR_SET_CHILD_SUBREAPER), whatever
 * session or group it moved to. So when all ranks have ended, children that were not there before are orphans.
 */
#ifndef LS_TRAIN_LAUNCH_LAUNCH_ORPHANS_H
#define LS_TRAIN_LAUNCH_LAUNCH_ORPHANS_H

#include <sys/types.h>

enum { ORPHANS_KNOWN = 64 };

struct orphans {
    pid_t before[ORPHANS_KNOWN];
    int n;
    int subreaper;
}; /* children of this process before the launch */

void orphans_begin(struct orphans *s);
void orphans_end(struct orphans *s); /* kills and reaps them, and their children, until there are none */

#endif
