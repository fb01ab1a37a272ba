/* launch_orphans.h - kills processes that ranks leave behind.
 *
 * During a launch, a descendant whose parent dies becomes a child of the launcher (PR_SET_CHILD_SUBREAPER), even in another session or
 * process group. So after all ranks have ended, every child that did not exist before the launch is an orphan.
 */
#ifndef LS_TRAIN_LAUNCH_LAUNCH_ORPHANS_H
#define LS_TRAIN_LAUNCH_LAUNCH_ORPHANS_H

#include <sys/types.h>

enum { ORPHANS_KNOWN = 64 };

struct orphans {
    pid_t before[ORPHANS_KNOWN]; /* [n] children of this process before the launch */
    int n;
    int subreaper; /* the attribute of this process before the launch */
};

void orphans_begin(struct orphans *s);
void orphans_end(struct orphans *s); /* kills and reaps all orphans, including their descendants */

#endif
