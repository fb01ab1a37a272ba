/* lab_program.h - a compiled program's instructions as a list, and queries on it. */
#ifndef LAB_PROGRAM_H
#define LAB_PROGRAM_H

#include <string.h>
#include "lab.h"
#include "lockstep/program.h"

/* The list; free(at) afterwards. Names belong to the program. */
struct instructions { ls_instruction *at; int n; };

static inline struct instructions instructions_of(const ls_program *p)
{
    struct instructions l = { NULL, ls_program_instructions(p) };

    l.at = malloc(((size_t)l.n + 1) * sizeof *l.at);
    if (!l.at) exit(1);
    for (int k = 0; k < l.n; k++) ls_program_instruction(p, k, &l.at[k]);
    return l;
}

static inline int is_op(const ls_instruction *i, const char *op) { return strcmp(i->op, op) == 0; }

/* The place of the wait that belongs to the start at `start`; -1: none. */
static inline int wait_of(const struct instructions *l, int start)
{
    for (int k = start + 1; k < l->n; k++)
        if (l->at[k].exchange == LS_EXCHANGE_WAIT && l->at[k].id == l->at[start].id) return k;
    return -1;
}

/* FLOPs of a segment before instruction `before`. */
static inline double flops_before(const struct instructions *l, int segment, int before)
{
    double flops = 0;

    for (int k = 0; k < before; k++) flops += l->at[k].segment == segment ? l->at[k].flops : 0;
    return flops;
}

/* The first operand whose name ends in ".weight", that name without the end; "": none. */
static inline const char *weight_of(const ls_instruction *i, char *room, size_t bytes)
{
    for (int k = 0; k < i->nout + i->nin; k++) {
        const ls_operand *o = k < i->nout ? &i->out[k] : &i->in[k - i->nout];
        size_t n = o->value.id ? strlen(o->name) : 0;

        if (n < 7 || strcmp(o->name + n - 7, ".weight") != 0) continue;
        snprintf(room, bytes, "%.*s", (int)n - 7, o->name);
        return room;
    }
    return "";
}

#endif
