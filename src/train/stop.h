/* stop.h - signals as requests: the step loop asks between steps what it is to do.
 *
 *   SIGINT, SIGTERM   save a checkpoint, then leave; the second one ends the process at once (exit 128 + signal)
 *   SIGUSR1           save a checkpoint and go on
 * SIGPIPE is ignored: output that nobody reads must not end a run.
 */
#ifndef LS_TRAIN_STOP_H
#define LS_TRAIN_STOP_H

#include <stdbool.h>

void stop_install(void);     /* from now on; clears what was asked before */
void stop_uninstall(void);   /* the signals do what they did before stop_install */
int  stop_requested(void);   /* the signal that asks to leave, or 0 */
bool stop_take_save(void);   /* true once per SIGUSR1 */

#endif
