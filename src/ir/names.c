/* names.c - pages of names. */
#include "ir/names.h"

#include <stdbool.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"

enum { PAGE_ROOM = 8192 };

struct names_page {
    struct names_page *before;
    size_t room;
    char at[];
};

static bool names_grow(struct names *n, size_t bytes)
{
    size_t room = MAX(bytes, (size_t)PAGE_ROOM);
    struct names_page *page = mem_alloc(MEM_OTHER, sizeof *page + room);

    if (!page) return false;
    *page = (struct names_page){ .before = n->last, .room = room };
    *n = (struct names){ .last = page };
    return true;
}

const char *names_add(struct names *n, const char *block, const char *what)
{
    size_t first = block ? strlen(block) : 0, second = strlen(what), bytes = first + (first > 0) + second + 1;

    if ((!n->last || bytes > n->last->room - n->used) && !names_grow(n, bytes)) return NULL;
    char *name = n->last->at + n->used;
    n->used += bytes;
    if (first) {
        memcpy(name, block, first);
        name[first++] = '/';
    }
    memcpy(name + first, what, second + 1);
    return name;
}

void names_rewind(struct names *n, struct names before)
{
    while (n->last != before.last) {
        struct names_page *page = n->last;

        n->last = page->before;
        mem_free(page);
    }
    n->used = before.used;
}
