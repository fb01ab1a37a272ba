/* stop.h - signals as requests, which the step loop checks between steps.
 *
 *   SIGINT, SIGTERM   save a checkpoint after the step that runs, then leave; the second one ends the process at once, without
 *                     saving (exit 128 + signal)
 *   SIGHUP            the same (the terminal was closed), however often it comes; stays ignored where it was (nohup)
 *   SIGUSR1           save a checkpoint and continue
 * SIGPIPE is ignored: output that nobody reads must not end a run. The first signal that asks to leave is answered at once with
 * one line on standard error, because the step that runs may take long: by the launcher where it started the ranks, by rank 0
 * where another launcher did.
 */
#ifndef LS_TRAIN_RUN_STOP_H
#define LS_TRAIN_RUN_STOP_H

#include <stdbool.h>

void stop_install(bool announces);        /* from now on; clears what was asked before. announces: this process writes the line. */
void stop_uninstall(void);                /* the signals do what they did before stop_install; no-op without one */
int stop_requested(void);                 /* the signal that asks to leave, or 0 */
bool stop_take_save(void);                /* true once per SIGUSR1 */
const char *stop_name(int signal_number); /* "SIGINT" */
const char *stop_line(int signal_number); /* the line, with its line feed */

#endif
