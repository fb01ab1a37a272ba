/* launching.h - starts several ranks of a command. */
#ifndef LS_CLI_LAUNCHING_H
#define LS_CLI_LAUNCHING_H

#include "cli/args.h"
#include "train/launch/launch.h"

/* Runs launch.ranks children with this process's arguments, and with the arguments `more` (ended by NULL) right after the command's name.
 * log_folder, ends: as in train/launch/launch.h. A failure sets the message and in->code. */
ls_status launching_run(struct invocation *in, const char *log_folder, const char *const *more, char (*ends)[LAUNCH_END]);

#endif
