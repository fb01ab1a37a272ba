/* launch_strays.h - processes that ranks leave behind.
 *
 * While a launch runs, an orphan among its descendants becomes the launcher's child (PR_SET_CHILD_SUBREAPER), whatever
 * session or group it moved to. So when all ranks have ended, children that were not there before are strays.
 */
#ifndef LS_TRAIN_LAUNCH_STRAYS_H
#define LS_TRAIN_LAUNCH_STRAYS_H

#include <sys/types.h>

enum { STRAYS_KNOWN = 64 };

struct strays { pid_t before[STRAYS_KNOWN]; int n; int subreaper; };  /* children of this process before the launch */

void strays_begin(struct strays *s);
void strays_end(struct strays *s);  /* kills and reaps them, and their children, until there are none */

#endif
