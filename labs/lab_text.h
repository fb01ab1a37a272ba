/* lab_text.h - a program's text (ls_program_text) as a list: which instruction stands before which, and what is exchanged over
 * which axis. */
#ifndef LAB_TEXT_H
#define LAB_TEXT_H

#include <ctype.h>
#include <string.h>
#include "lab.h"
#include "lockstep/program.h"

struct line {
    char   segment;     /* 'f'orward, 'b'ackward, 'o'ptimizer */
    char   op[24];      /* "linear", "all_reduce", "wait all_reduce" */
    double flops, bytes; /* bytes: of all operands, three figures of it */
    char   weight[64];  /* the first operand whose name ends in ".weight", that name without the end */
    double elements;    /* of a collective: the largest operand, counted whole */
    int    ranks, slot; /* of a collective; a wait has the slot of its start */
    char   axis[8];     /* of an exchange: "tp" */
    char   block[32];   /* "h.3"; empty outside of blocks */
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

    for (const char *at = text; (at = strchr(at, '[')); at++) {
        double count = 1;
        char *end = (char *)at;

        do count *= strtod(end + 1, &end); while (*end == ',');
        most = fmax(most, count);
    }
    return most;
}

/* "   tp 27.0 MiB f32 over 4 ranks" */
static inline void line_axis(const char *text, char axis[8])
{
    const char *at = strstr(text, " MiB ");
    int spaces = 0;

    axis[0] = 0;
    while (at && at > text && spaces < 2) spaces += *--at == ' ';
    if (at) sscanf(at - 4, "%*[^a-z]%7s", axis);
}

static inline void line_weight(const char *text, char weight[64])
{
    const char *end = strstr(text, ".weight["), *at = end;

    while (at && at > text && at[-1] != ' ') at--;
    snprintf(weight, 64, "%.*s", at ? (int)(end - at) : 0, at ? at : "");
}

/* number  phase  op  kernel  bytes  FLOPs  live  value[..] <- value[..] ... over N ranks, #slot */
static inline int line_parse(const char *text, char segment, struct line *out)
{
    char phase[16], bytes[32], flops[32], word[2][24], *two, *over = strstr(text, " over ");
    int number, at;

    if (sscanf(text, "%d %15s%n", &number, phase, &at) < 2) return 0;
    text += at;
    two = strcmp(phase, "backward") == 0 ? strpbrk(text, "AB") : NULL;  /* "backward B": a phase of two words */
    text += two ? two + 1 - text : 0;
    if (sscanf(text, "%23s %23s%n", word[0], word[1], &at) < 2) return 0;
    *out = (struct line){ .segment = segment };
    snprintf(out->op, sizeof out->op, "%s", word[0]);
    if (strcmp(word[0], "wait") == 0) {
        if (sscanf(text, "%*s %*s %*s%n", &at) < 0) return 0;
        snprintf(out->op, sizeof out->op, "wait %.18s", word[1]);
    }
    if (sscanf(text + at, "%31s %31s %*s %63[^[]", bytes, flops, out->what) < 3) return 0;
    bytes[strcspn(bytes, "B")] = 0;
    out->bytes = line_number(bytes);
    out->flops = flops[0] == '-' ? 0 : line_number(flops);
    line_weight(text, out->weight);
    out->elements = largest_operand(text);
    line_axis(text, out->axis);
    if (over) sscanf(over, " over %d ranks, #%d", &out->ranks, &out->slot);
    return 1;
}

static inline struct lines lines_read(const ls_program *p)
{
    struct lines l = { NULL, 0 };
    char *text, segment = 0, block[32] = "", *rest;

    TRY(ls_program_text(p, &text));
    rest = text;
    for (char *row; (row = strsep(&rest, "\n"));) {
        if (islower((unsigned char)row[0]) && strstr(row, ": ")) segment = row[0];
        l.at = realloc(l.at, ((size_t)l.n + 1) * sizeof *l.at);
        if (!l.at) exit(1);
        if (sscanf(row, "  -- %31s", block) == 1) {
            if (block[0] == '(') block[0] = 0;
            continue;
        }
        if (!isspace((unsigned char)row[0]) || !line_parse(row, segment, &l.at[l.n])) continue;
        memcpy(l.at[l.n].block, block, sizeof block);
        l.n++;
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
