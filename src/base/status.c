/* status.c - the texts of the statuses, and one message buffer per thread.
 *
 * A message is one line: control characters, for example from file names, become spaces.
 */
#include "lockstep/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_ROOM = 2048 }; /* bytes with the NUL; a longer message ends in "..." */

static _Thread_local char message[MESSAGE_ROOM];

const char *ls_status_text(ls_status st)
{
    switch (st) {
#define STATUS_CASE(name, value, text) \
    case LS_##name: return text;
        LS_STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

const char *ls_errmsg(void) { return message; }

/* Makes text[MESSAGE_ROOM] this thread's message; `wanted` is its length before truncation. */
static void set_message(char *text, int wanted)
{
    if (wanted >= MESSAGE_ROOM) memcpy(text + MESSAGE_ROOM - 4, "...", 4);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = ' ';
    memcpy(message, text, MESSAGE_ROOM);
}

/* Formats into a separate buffer first: an argument may be the message itself. */
ls_status ls_fail(ls_status st, const char *fmt, ...)
{
    char text[MESSAGE_ROOM] = "";
    va_list args;

    va_start(args, fmt);
    int wanted = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    set_message(text, wanted);
    return st;
}

ls_status ls_fail_at(ls_status st, const char *fmt, ...)
{
    char place[MESSAGE_ROOM] = "", text[MESSAGE_ROOM];
    va_list args;

    va_start(args, fmt);
    vsnprintf(place, sizeof place, fmt, args);
    va_end(args);
    int wanted = snprintf(text, sizeof text, "%s: %s", place, message);
    set_message(text, wanted);
    return st;
}
