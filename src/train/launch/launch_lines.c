/* launch_lines.c - reads the pipes of ranks and writes their lines. */
#include "train/launch/launch_lines.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum { WRITE_MOST = 4096, LEFT_MOST = 64 }; /* bytes that a pipe takes in one write; reads of a pipe after its rank has ended */
static const char wipe[] = "\r\033[K";

/* ---- console ---- */

void console_open(struct console *c, int fd)
{
    c->fd = fd;
    c->terminal = isatty(fd) && isatty(STDOUT_FILENO);
    c->used = 0;
}

void console_announce(struct console *c, const char *line)
{
    const char *front = c->terminal ? wipe : "";
    size_t bytes = strlen(front) + strlen(line);

    if (c->used + bytes > CONSOLE_ROOM) console_flush(c, true);
    memcpy(c->buffer + c->used, front, strlen(front));
    memcpy(c->buffer + c->used + strlen(front), line, strlen(line));
    c->used += bytes;
}

bool console_has_room(const struct console *c) { return c->used < CONSOLE_ROOM / 2; }

void console_put(struct console *c, int rank, const char *text, size_t bytes)
{
    char prefix[32];
    size_t front = (size_t)snprintf(prefix, sizeof prefix, "%s[rank %d] ", c->terminal ? wipe : "", rank);

    if (c->used + front + bytes + 1 > CONSOLE_ROOM) console_flush(c, true);
    char *to = c->buffer + c->used;
    memcpy(to, prefix, front);
    memcpy(to + front, text, bytes);
    to[front + bytes] = '\n';
    c->used += front + bytes + 1;
}

static bool takes_more(const struct console *c)
{
    struct pollfd p = { c->fd, POLLOUT, 0 };

    return poll(&p, 1, 0) != 0;
}

/* Bytes of as many complete lines as fit into one write. */
static size_t launch_lines_fit(const struct console *c)
{
    if (c->used <= WRITE_MOST) return c->used;
    const char *end = memrchr(c->buffer, '\n', WRITE_MOST);
    return end ? (size_t)(end - c->buffer) + 1 : WRITE_MOST;
}

void console_flush(struct console *c, bool all)
{
    while (c->used > 0 && (all || takes_more(c))) {
        ssize_t done = write(c->fd, c->buffer, launch_lines_fit(c));

        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && errno == EAGAIN && !all) return;
        if (done < 0 && errno == EAGAIN) {
            struct pollfd p = { c->fd, POLLOUT, 0 };
            poll(&p, 1, -1);
            continue;
        }
        if (done <= 0) done = (ssize_t)c->used;
        c->used -= (size_t)done;
        memmove(c->buffer, c->buffer + done, c->used);
    }
}

void console_wipe(struct console *c)
{
    console_flush(c, true);
    if (c->terminal && write(c->fd, wipe, sizeof wipe - 1) < 0) c->terminal = false;
}

/* ---- the output of one rank ---- */

void rank_output_open(struct rank_output *o, int rank, int out, int err, const char *folder)
{
    o->rank = rank;
    o->out.fd = out;
    o->err.fd = err;
    o->out.used = o->err.used = 0;
    o->folder = folder;
    o->log = (struct append)APPEND_NONE;
    o->last_report[0] = '\0';
}

static void open_log(struct rank_output *o)
{
    char *path = file_path("%s/rank_%04d.err", o->folder, o->rank);
    ls_status st = path ? file_make_folders(o->folder) : LS_ENOMEM;

    if (st == LS_OK) st = append_open(path, &o->log);
    if (st != LS_OK) log_line(LOG_WARN, "the output of rank %d is not logged: %s", o->rank, ls_errmsg());
    mem_free(path);
    o->folder = NULL;
}

static void keep(struct rank_output *o, const char *text, size_t bytes)
{
    if (o->folder) open_log(o);
    if (o->log.fd >= 0) append_put(&o->log, text, bytes);
}

void rank_output_release(struct rank_output *o, struct console *c)
{
    if (o->last_report[0]) console_put(c, o->rank, o->last_report, strlen(o->last_report));
    o->last_report[0] = '\0';
}

static bool may_be_the_end(const char *text, size_t bytes)
{
    return bytes > 9 && memcmp(text, "lockstep", 8) == 0 && (text[8] == ' ' || text[8] == ':');
}

/* Writes the text in s->line. ended: a line feed followed it. */
static void launch_lines_put(struct rank_output *o, struct stream *s, struct console *c, bool ended)
{
    if (s == &o->err) rank_output_release(o, c);
    if (s == &o->err && may_be_the_end(s->line, s->used)) {
        memcpy(o->last_report, s->line, s->used);
        o->last_report[s->used] = '\0';
    } else {
        console_put(c, o->rank, s->line, s->used);
    }
    s->line[s->used] = '\n';
    keep(o, s->line, s->used + ended);
    s->used = 0;
}

/* Splits data into lines; the text after the last line feed stays in s->line. */
static void launch_lines_take(struct rank_output *o, struct stream *s, struct console *c, const char *data, size_t bytes)
{
    while (bytes > 0) {
        const char *end = memchr(data, '\n', bytes);
        size_t length = end ? (size_t)(end - data) : bytes, room = LINE_MOST - s->used;
        size_t now = MIN(length, room);

        memcpy(s->line + s->used, data, now);
        s->used += now;
        bool complete = end && now == length;
        if (complete || s->used == LINE_MOST) launch_lines_put(o, s, c, complete);
        data += now + complete;
        bytes -= now + complete;
    }
}

static void close_stream(struct rank_output *o, struct stream *s, struct console *c)
{
    if (s->used > 0) launch_lines_put(o, s, c, true);
    close(s->fd);
    s->fd = -1;
}

/* Returns the bytes read; 0: nothing to read now, or the end of the stream. */
static ssize_t read_once(struct rank_output *o, struct stream *s, struct console *c)
{
    char data[8192];
    ssize_t got = read(s->fd, data, sizeof data);

    if (got > 0) {
        launch_lines_take(o, s, c, data, (size_t)got);
        return got;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) close_stream(o, s, c);
    return 0;
}

void rank_output_read(struct rank_output *o, struct stream *s, struct console *c)
{
    if (s->fd >= 0) read_once(o, s, c);
}

/* A process that the rank started may still write: only as much as a full pipe contains is read. */
static void launch_lines_finish(struct rank_output *o, struct stream *s, struct console *c)
{
    for (int i = 0; i < LEFT_MOST && s->fd >= 0; i++)
        if (read_once(o, s, c) == 0) break;
    if (s->fd >= 0) close_stream(o, s, c);
}

void rank_output_finish(struct rank_output *o, struct console *c)
{
    launch_lines_finish(o, &o->out, c);
    launch_lines_finish(o, &o->err, c);
}

void rank_output_close(struct rank_output *o) { append_close(&o->log); }
