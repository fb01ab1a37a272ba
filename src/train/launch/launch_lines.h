/* launch_lines.h - the output of ranks, split into lines: on the console as "[rank 2] line", in the rank's own file unchanged.
 *
 * Lines of different ranks never mix. A line of more than LINE_MOST bytes continues in the next, with its own prefix. A line of standard
 * error that starts with "lockstep" may be how the rank reports its end: it is held back until the rank says more or ends, because the
 * launcher says it last, and once.
 * The console may be slow, stopped or gone: as long as ranks live, it is written to only when it takes a line without
 * waiting, and pipes are read only while there is room.
 */
#ifndef LS_TRAIN_LAUNCH_LAUNCH_LINES_H
#define LS_TRAIN_LAUNCH_LAUNCH_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include "train/run/append.h"

enum { LINE_MOST = 4000, CONSOLE_ROOM = 1 << 16 };

struct console {
    int fd;
    bool terminal; /* rank 0 may draw its progress there: the drawing is wiped before lines are put */
    size_t used;
    char buffer[CONSOLE_ROOM];
};

void console_open(struct console *c, int fd);
void console_put(struct console *c, int rank, const char *text, size_t bytes); /* one line, without its line feed */
void console_say(struct console *c, const char *line);                         /* the launcher's own, with its line feed */
bool console_has_room(const struct console *c);
/* Writes lines for as long as that needs no waiting; all: every line. Lines to a console that no longer exists are dropped. */
void console_flush(struct console *c, bool all);
void console_wipe(struct console *c); /* takes rank 0's drawing off a terminal */

struct stream {
    int fd;
    size_t used;
    char line[LINE_MOST + 1];
}; /* fd -1: closed; line[used]: begun, not ended */

struct rank_output {
    int rank;
    struct stream out, err;
    const char *folder; /* of the rank's file; NULL: none. The file is made with the first line. */
    struct append log;
    char last_report[LINE_MOST + 1]; /* "": none */
};

/* Takes the reading ends; out is -1 where standard output does not come here. */
void rank_output_open(struct rank_output *v, int rank, int out, int err, const char *folder);
void rank_output_read(struct rank_output *v, struct stream *s, struct console *c); /* what one read(2) gives */
/* The rank has ended: reads what is left and closes the pipes. held stays. */
void rank_output_finish(struct rank_output *v, struct console *c);
void rank_output_release(struct rank_output *v, struct console *c); /* as a line like others */
void rank_output_close(struct rank_output *v);

#endif
