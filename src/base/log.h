/* log.h - the only way in which the library writes: one line a call, to stderr and the rank's log file.
 *
 * Lines go to stderr when their level is at most the console's, and to the file, when one is open, always.
 * A line in the file starts with a UTC timestamp and the level.
 */
#ifndef LS_BASE_LOG_H
#define LS_BASE_LOG_H

#include "lockstep/status.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_set_console(enum log_level most); /* default LOG_WARN */
ls_status log_open(const char *path);      /* appends; closes the one open before */
void log_close(void);
void log_line(enum log_level level, const char *fmt, ...) LS_PRINTF(2, 3);

#endif
