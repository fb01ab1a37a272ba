/* log.h - the library's only output: one line per call, to stderr and to the rank's log file.
 *
 * Lines go to stderr if their level is at most the console's, and always to the file if one is open.
 * A line in the file starts with a UTC timestamp and the level.
 */
#ifndef LS_BASE_LOG_H
#define LS_BASE_LOG_H

#include "lockstep/status.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_set_console(enum log_level most); /* default LOG_WARN */
ls_status log_open(const char *path);      /* appends; closes the one that was open */
void log_close(void);
void log_line(enum log_level level, const char *fmt, ...) LS_PRINTF(2, 3);

#endif
