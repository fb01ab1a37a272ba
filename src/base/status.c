/* status.c - the texts of the statuses, and one message buffer a thread. */
#include "lockstep/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_ROOM = 2048 };  /* bytes with the NUL; a longer message ends in "..." */

static _Thread_local char message[MESSAGE_ROOM];

const char *ls_status_text(ls_status st)
{
    switch (st) {
#define STATUS_CASE(name, value, text) case LS_##name: return text;
        LS_STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

const char *ls_errmsg(void) { return message; }

static void mark_truncated(char *text, int wanted)
{
    if (wanted >= MESSAGE_ROOM) memcpy(text + MESSAGE_ROOM - 4, "...", 4);
}

/* Formats aside first: an argument may be the message itself. */
ls_status ls_fail(ls_status st, const char *fmt, ...)
{
    char text[MESSAGE_ROOM] = "";
    va_list args;

    va_start(args, fmt);
    int wanted = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    mark_truncated(text, wanted);
    memcpy(message, text, sizeof text);
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
    mark_truncated(text, wanted);
    memcpy(message, text, sizeof text);
    return st;
}
