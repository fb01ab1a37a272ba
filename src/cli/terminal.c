/* terminal.c - the properties and colors of standard output. */
#include "cli/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Open MPI gives its ranks a pseudo-terminal even if its own output is not a terminal. */
bool terminal_is(void)
{
    const char *term = getenv("TERM");

    return !getenv("OMPI_COMM_WORLD_SIZE") && isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
}

int terminal_width(void)
{
    struct winsize size;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
    return size.ws_col;
}

/* NO_COLOR turns colors off if it has any value (no-color.org). */
static bool has_color(void)
{
    const char *no = getenv("NO_COLOR");

    return terminal_is() && !(no && no[0]);
}

const char *terminal_style(enum style s)
{
    static const char *const codes[] = { "\033[0m", "\033[1m", "\033[2m", "\033[32m", "\033[36m" };

    return has_color() ? codes[s] : "";
}

ls_status terminal_put_json(struct json_out *j)
{
    ls_status st = json_out_status(j);

    if (st == LS_OK) puts(j->text);
    json_out_free(j);
    return st;
}
