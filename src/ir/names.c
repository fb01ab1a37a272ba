/* names.c - chunks of names. */
#include "ir/names.h"

#include <stdbool.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"

enum { CHUNK_ROOM = 8192 };

struct names_chunk {
    struct names_chunk *before;
    size_t room;
    char at[];
};

static bool names_grow(struct names *n, size_t bytes)
{
    size_t room = MAX(bytes, (size_t)CHUNK_ROOM);
    struct names_chunk *c = mem_alloc(MEM_OTHER, sizeof *c + room);

    if (!c) return false;
    *c = (struct names_chunk){ .before = n->last, .room = room };
    *n = (struct names){ .last = c };
    return true;
}

const char *names_add(struct names *n, const char *block, const char *what)
{
    size_t first = block ? strlen(block) : 0, second = strlen(what), bytes = first + (first > 0) + second + 1;
    char *name;

    if ((!n->last || bytes > n->last->room - n->used) && !names_grow(n, bytes)) return NULL;
    name = n->last->at + n->used;
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
        struct names_chunk *c = n->last;

        n->last = c->before;
        mem_free(c);
    }
    n->used = before.used;
}
