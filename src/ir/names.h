/* names.h - the names of a program's values, which are freed together: most are read only when a program is printed or an error names one.
 *
 * They are stored one after the other in pages of 8 KiB. A name that is replaced is freed with the program.
 */
#ifndef LS_IR_NAMES_H
#define LS_IR_NAMES_H

#include <stddef.h>

struct names_page;

struct names {
    struct names_page *last;
    size_t used; /* bytes of the last page */
};

/* A copy of "block/what", or of what if block is NULL or "". NULL if there is no memory, with the message set. */
const char *names_add(struct names *n, const char *block, const char *what);
/* Frees all names that were added since `before`, a copy of the struct; of a zeroed one, all. */
void names_rewind(struct names *n, struct names before);

#endif
