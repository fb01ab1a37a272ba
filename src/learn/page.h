/* page.h - output for the reader, and lines that the reader types: a full screen on a terminal, plain lines elsewhere.
 *
 * On a terminal a page has a title in the first row, paragraphs that are wrapped to its width, and a line to type in at the bottom. It
 * follows the terminal's size. What does not fit scrolls: up, down, page up, page down. Nothing depends on colors: bold, dim and reverse.
 * Where standard input or output is no terminal, paragraphs are printed as they come, wrapped to 80 columns, and lines are read as they
 * are.
 */
#ifndef LS_LEARN_PAGE_H
#define LS_LEARN_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include "lockstep/status.h"

typedef struct page page;
enum page_style { PAGE_PLAIN, PAGE_BOLD, PAGE_DIM, PAGE_COLUMNS /* plain, and not wrapped: cut off at the right */ };

ls_status page_open(page **out);
void page_close(page **p); /* the terminal is as before */

void page_title(page *p, const char *fmt, ...) LS_PRINTF(2, 3); /* an empty page with this title */
void page_put(page *p, enum page_style style, const char *fmt, ...) LS_PRINTF(3, 4);
/* Drops what was typed before now: on a terminal, it was not meant for the next question. */
void page_forget_keys(page *p);
/* Reads a line without its end. false: no more input (end of file, ^D, the terminal was closed). Escape empties the line. seconds_left:
 * shown beside the prompt as a clock that runs down, on a terminal; NULL: no clock. It is negative once the time is over; the line is read
 * all the same. */
bool page_ask(page *p, const char *prompt, double (*seconds_left)(void *ctx), void *ctx, char *line, size_t room);

#endif
