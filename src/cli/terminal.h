/* terminal.h - properties and colors of standard output: color only on a terminal, and never with NO_COLOR. */
#ifndef LS_CLI_TERMINAL_H
#define LS_CLI_TERMINAL_H

#include <stdbool.h>
#include "base/json.h"

enum style { STYLE_PLAIN, STYLE_BOLD, STYLE_DIM, STYLE_GREEN, STYLE_CYAN };

bool terminal_is(void);                   /* true if standard output is a terminal that can move its cursor */
int terminal_width(void);                 /* columns; 80 if unknown */
const char *terminal_style(enum style s); /* an escape sequence, or "" */

/* Prints the JSON text of j on standard output, as one line, unless memory ran out; frees j in any case. */
ls_status terminal_put_json(struct json_out *j);

#endif
