/* launching.h - a command that starts ranks of itself. */
#ifndef LS_CLI_LAUNCHING_H
#define LS_CLI_LAUNCHING_H

#include "cli/args.h"
#include "train/launch/launch.h"

/* Runs launch.ranks children with this process's arguments, and `more` (ended by NULL) right after the command's name;
 * their share of the cores is launch.threads unless that was given. log_folder, ends: as in train/launch/launch.h. A failure leaves its
 * line as the message and in->code. */
ls_status launching_run(struct invocation *in, const char *log_folder, const char *const *more, char (*ends)[LAUNCH_END]);

#endif
