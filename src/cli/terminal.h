/* terminal.h - properties and colours of standard output: colour only on a terminal, and never with NO_COLOR. */
#ifndef LS_CLI_TERMINAL_H
#define LS_CLI_TERMINAL_H

#include <stdbool.h>
#include "base/json.h"

enum style { STYLE_PLAIN, STYLE_BOLD, STYLE_DIM, STYLE_GREEN, STYLE_CYAN };

bool terminal_is(void);                   /* standard output is one that moves its cursor */
int terminal_width(void);                 /* columns; 80 if unknown */
const char *terminal_style(enum style s); /* an escape sequence, or "" */

/* Puts what j holds on standard output, if all of it had room, as one line; frees j in any case. */
ls_status terminal_put_json(struct json_out *j);

#endif
