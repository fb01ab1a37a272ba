/* stop.h - turns signals into requests, which the step loop checks between steps.
 *
 *   SIGINT, SIGTERM   save a checkpoint after the current step, then exit; the second one ends the process at once, without
 *                     saving, with exit code 128 + signal
 *   SIGHUP            (the terminal was closed) the same, but a second one changes nothing; still ignored if it was (nohup)
 *   SIGUSR1           save a checkpoint and continue
 * SIGPIPE is ignored: output that nobody reads must not end a run. The first signal that requests an exit is answered at once with a line
 * on standard error, because the current step may take long: the launcher writes it if it started the ranks, else rank 0 does.
 */
#ifndef LS_TRAIN_RUN_STOP_H
#define LS_TRAIN_RUN_STOP_H

#include <stdbool.h>

void stop_install(bool announces);        /* handles signals from now on, and clears earlier requests; announces: writes the line */
void stop_uninstall(void);                /* restores the handlers that stop_install() replaced, if it was called */
int stop_requested(void);                 /* the signal that requested an exit, or 0 */
bool stop_take_save(void);                /* true once per SIGUSR1 */
const char *stop_name(int signal_number); /* "SIGINT" */
const char *stop_line(int signal_number); /* the line, with its line feed */

#endif
