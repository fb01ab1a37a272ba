/* unicode.c - see the header; tools/unicode_supplement.py generates the table. */
#include "data/unicode.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"

struct range {
    unsigned first, last;
};

#define ADDED(name, ...) { name, (const struct range[]){ __VA_ARGS__, { 0, 0 } } },
static const struct {
    const char *name;
    const struct range *range;
} added[] = {
#include "data/unicode_table.inc"
};
#undef ADDED

static const char *const supported[] = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd",
    "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp",
};

static const struct {
    const char *name, *members;
} ascii[] = {
    { "L", "A-Za-z" }, { "Lu", "A-Z" }, { "Ll", "a-z" }, { "N", "0-9" }, { "Nd", "0-9" },
};

const char UNICODE_SPACE[] = "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
const char UNICODE_NOT_SPACE[] = "\\x{0}-\\x{8}\\x{e}-\\x{1f}!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{"
                                 "2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";

size_t unicode_class(const char *name, char *out, size_t room)
{
    const char *members = NULL, *first = "";

    for (size_t i = 0; i < COUNT_OF(supported); i++)
        if (strcmp(supported[i], name) == 0) members = name;
    if (!members) return 0;
    for (size_t i = 0; i < COUNT_OF(ascii); i++)
        if (strcmp(ascii[i].name, name) == 0) first = ascii[i].members;

    size_t n = (size_t)snprintf(out, room, "%s\\p{%s}", first, name);
    for (size_t i = 0; i < COUNT_OF(added); i++) {
        if (strncmp(added[i].name, name, strlen(name)) != 0) continue;
        for (const struct range *r = added[i].range; r->last; r++) {
            ASSERT(n < room);
            n += (size_t)snprintf(out + n, room - n, "\\x{%x}-\\x{%x}", r->first, r->last);
        }
    }
    ASSERT(n < room);
    return n;
}
