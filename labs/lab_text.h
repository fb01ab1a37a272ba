/* lab_text.h - a program's text (ls_program_text) as a list: which instruction stands before which. */
#ifndef LAB_TEXT_H
#define LAB_TEXT_H

#include <ctype.h>
#include <string.h>
#include "lab.h"
#include "lockstep/program.h"

struct line {
    char   segment;     /* 'f'orward, 'b'ackward, 'o'ptimizer */
    char   op[24];      /* "linear", "all_reduce", "wait all_reduce" */
    double flops;
    double elements;    /* of a collective: the largest operand, counted whole */
    int    ranks, slot; /* of a collective; a wait has the slot of its start */
    char   what[64];    /* of a collective: the value that it makes */
};

struct lines { struct line *at; int n; };

/* "1.50M" */
static inline double line_number(const char *text)
{
    static const char suffix[] = "kMGTPE";
    char *end;
    double x = strtod(text, &end);
    const char *s = *end ? strchr(suffix, *end) : NULL;

    for (int k = s ? (int)(s - suffix) + 1 : 0; k > 0; k--) x *= 1000;
    return x;
}

static inline double largest_operand(const char *text)
{
    double most = 0;

    for (const char *at = text; (at = strchr(at, '[')); at++) most = fmax(most, strtod(at + 1, NULL));
    return most;
}

/* number  phase  op  kernel  bytes  FLOPs  live  value[..] <- value[..] ... over N ranks, #slot */
static inline int line_parse(const char *text, char segment, struct line *out)
{
    char flops[32], word[2][24], *over = strstr(text, " over ");
    int number, at;

    if (sscanf(text, "%d %*s %23s %23s%n", &number, word[0], word[1], &at) < 3) return 0;
    *out = (struct line){ .segment = segment };
    snprintf(out->op, sizeof out->op, "%s", word[0]);
    if (strcmp(word[0], "wait") == 0) {
        if (sscanf(text, "%*d %*s %*s %*s %*s%n", &at) < 0) return 0;
        snprintf(out->op, sizeof out->op, "wait %.18s", word[1]);
    }
    if (sscanf(text + at, "%*s %31s %*s %63[^[]", flops, out->what) < 2) return 0;
    out->flops = flops[0] == '-' ? 0 : line_number(flops);
    out->elements = largest_operand(text);
    if (over) sscanf(over, " over %d ranks, #%d", &out->ranks, &out->slot);
    return 1;
}

static inline struct lines lines_read(const ls_program *p)
{
    struct lines l = { NULL, 0 };
    char *text, segment = 0, *rest;

    TRY(ls_program_text(p, &text));
    rest = text;
    for (char *row; (row = strsep(&rest, "\n"));) {
        if (islower((unsigned char)row[0]) && strstr(row, ": ")) segment = row[0];
        l.at = realloc(l.at, ((size_t)l.n + 1) * sizeof *l.at);
        if (!l.at) exit(1);
        if (isspace((unsigned char)row[0]) && line_parse(row, segment, &l.at[l.n])) l.n++;
    }
    ls_free(text);
    return l;
}

static inline int line_is(const struct line *l, const char *op) { return strcmp(l->op, op) == 0; }

/* The place of the wait that belongs to the start at `start`; -1: none. */
static inline int line_wait(const struct lines *l, int start)
{
    char wait[32];

    snprintf(wait, sizeof wait, "wait %s", l->at[start].op);
    for (int k = start + 1; k < l->n; k++)
        if (line_is(&l->at[k], wait) && l->at[k].slot == l->at[start].slot) return k;
    return -1;
}

/* FLOPs of a segment that stand in front of line `before`. */
static inline double line_flops(const struct lines *l, char segment, int before)
{
    double flops = 0;

    for (int k = 0; k < before; k++) flops += l->at[k].segment == segment ? l->at[k].flops : 0;
    return flops;
}

#endif
