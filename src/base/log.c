/* log.c - lines to stderr and to the rank's file, each in one write(2).
 *
 * On stderr a line is the text alone; in the file it is "2026-01-31T12:34:56.789Z warning: text". Control
 * characters inside the text become spaces; a line longer than LINE_ROOM ends in "...".
 */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_ROOM = 4096, STAMP_ROOM = 64 };

static atomic_int console = LOG_WARN;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER; /* guards fd */
static int fd = -1;

void log_set_console(enum log_level most) { atomic_store(&console, (int)most); }

ls_status log_open(const char *path)
{
    int opened = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);

    if (opened < 0) return ls_fail(LS_EIO, "%s: cannot open the log for appending: %s", path, strerror(errno));
    pthread_mutex_lock(&log_lock);
    if (fd >= 0) close(fd);
    fd = opened;
    pthread_mutex_unlock(&log_lock);
    return LS_OK;
}

void log_close(void)
{
    pthread_mutex_lock(&log_lock);
    if (fd >= 0) close(fd);
    fd = -1;
    pthread_mutex_unlock(&log_lock);
}

/* A line that cannot be written is lost: there is nowhere else to report it. */
static void write_all(int to, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t done = write(to, text, bytes);

        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return;
        text += done;
        bytes -= (size_t)done;
    }
}

static size_t put_stamp(char out[STAMP_ROOM], enum log_level level)
{
    static const char *const names[] = { "error", "warning", "info", "debug" };
    struct timespec now;
    struct tm utc;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t at = strftime(out, STAMP_ROOM, "%Y-%m-%dT%H:%M:%S", &utc);
    return at + (size_t)snprintf(out + at, STAMP_ROOM - at, ".%03dZ %s: ", (int)(now.tv_nsec / 1000000), names[level]);
}

void log_line(enum log_level level, const char *fmt, ...)
{
    char line[STAMP_ROOM + LINE_ROOM + 1] = "";
    size_t stamp = put_stamp(line, level);
    char *text = line + stamp;
    va_list args;

    va_start(args, fmt);
    int wanted = vsnprintf(text, LINE_ROOM, fmt, args);
    va_end(args);
    if (wanted >= LINE_ROOM) memcpy(text + LINE_ROOM - 4, "...", 4);
    size_t bytes = strlen(text);
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) text[i] = ' ';
    text[bytes++] = '\n';

    if ((int)level <= atomic_load(&console)) write_all(STDERR_FILENO, text, bytes);
    pthread_mutex_lock(&log_lock);
    if (fd >= 0) write_all(fd, line, stamp + bytes);
    pthread_mutex_unlock(&log_lock);
}
