/* launch_lines.h - the output of ranks, split into lines, which are written to the console as "[rank 2] line" and unchanged to a file.
 *
 * Lines of different ranks never mix. A line of more than LINE_MOST bytes is split into several, each with the prefix. A line on standard
 * error that starts with "lockstep" may be the rank's report of its failure. It is held back until the rank writes another line or ends,
 * because the launcher prints the report of a failure once, as the last line.
 * The console may be slow, stopped or closed. While ranks run, the launcher writes to it only if that does not block, and reads the pipes
 * only while the buffer has room.
 */
#ifndef LS_TRAIN_LAUNCH_LAUNCH_LINES_H
#define LS_TRAIN_LAUNCH_LAUNCH_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include "train/run/append.h"

enum { LINE_MOST = 4000, CONSOLE_ROOM = 1 << 16 };

struct console {
    int fd;
    bool terminal; /* rank 0 may display a progress line there, which is erased before other lines are written */
    size_t used;
    char buffer[CONSOLE_ROOM];
};

void console_open(struct console *c, int fd);
void console_put(struct console *c, int rank, const char *text, size_t bytes); /* one line, without its line feed */
void console_announce(struct console *c, const char *line);                    /* a line of the launcher, with its line feed */
bool console_has_room(const struct console *c);
/* Writes buffered lines as long as that does not block; all: every line, even if it blocks. Drops lines if the console is closed. */
void console_flush(struct console *c, bool all);
void console_wipe(struct console *c); /* erases rank 0's progress line from a terminal */

/* fd -1: closed. line[used]: the beginning of a line whose line feed has not been read yet. */
struct stream {
    int fd;
    size_t used;
    char line[LINE_MOST + 1];
};

struct rank_output {
    int rank;
    struct stream out, err;
    const char *folder; /* folder of the log file, which is created with the first line; NULL: no file, or the file is open */
    struct append log;
    char last_report[LINE_MOST + 1]; /* the line that is held back; "": none */
};

/* Takes over the read ends of the pipes; out is -1 if the rank's standard output is not piped. */
void rank_output_open(struct rank_output *o, int rank, int out, int err, const char *folder);
void rank_output_read(struct rank_output *o, struct stream *s, struct console *c); /* reads once */
/* Reads the rest after the rank has ended, and closes the pipes. last_report stays held back. */
void rank_output_finish(struct rank_output *o, struct console *c);
void rank_output_release(struct rank_output *o, struct console *c); /* prints last_report like any other line */
void rank_output_close(struct rank_output *o);

#endif
