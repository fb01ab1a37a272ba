/* steps.h - collective algorithms as data: what one rank does, step by step, written down before anything moves.
 *
 * A list is made by a pure function of (rank, n, sizes); tests run lists on virtual ranks, the runtime runs them over any
 * transport, the cost model prices them, the command line prints them. Positions are in elements.
 *
 * A step sends `out` to rank `to` and receives `in` from rank `from`, at once (to or from -1: not), and then
 *     STEP_COPY     in's place has what came
 *     STEP_REDUCE   in's place = op(in's place, what came), in this order of operands
 *     STEP_LOCAL    nothing travels: in = out on this rank (to == from == -1)
 * Places are in one of three buffers: the call's send, the call's recv, and scratch (of list->scratch elements). Sums of
 * half types use lists whose sums all happen on one rank (direct), because each sum is kept in the f32 scratch:
 * list->wide says that scratch holds f32 (or the type itself when that is wider or no half type).
 */
#ifndef LS_COMM_STEPS_H
#define LS_COMM_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include "lockstep/comm.h"

enum place { IN_SEND, IN_RECV, IN_SCRATCH };
struct span { enum place in; size_t at, len; };        /* elements [at, at + len) */
enum step_kind { STEP_COPY, STEP_REDUCE, STEP_LOCAL };
struct step { int to, from; struct span out, in; enum step_kind kind; };
struct step_list { struct step *step; int n, room; size_t scratch; bool wide; };

/* What a call asks for. Block i of the big buffer is [at[i], at[i + 1]), at[n + 1] ascending from 0. For all_to_all at is
 * of send and recv_at of recv; else recv_at is NULL. broadcast: one block, at[n] elements. root: of broadcast. */
struct shape_of_call { int rank, n, root; const size_t *at, *recv_at; };

/* One algorithm of one collective. make() appends to an empty list; LS_ENOMEM is its only failure. ranks(): NULL: any n. */
struct algorithm {
    ls_collective op;
    const char   *name;                                  /* "ring", "halving_doubling", "tree", "direct" */
    bool        (*ranks)(int n);
    bool          half;                                  /* sums half types right: every sum ends in one rounding */
    ls_status   (*make)(const struct shape_of_call *c, struct step_list *out);
};
const struct algorithm *algorithm_at(int i);             /* the table; NULL past the end */
const struct algorithm *algorithm_named(ls_collective op, const char *name);  /* NULL: none */
/* The choice: by op, bytes of the whole buffer and ranks, from the tuned table or the shipped one; one that fits. */
const struct algorithm *algorithm_choose(ls_collective op, size_t bytes, int n, bool half_sum);
/* Replaces the shipped choices by a file that `bench comm --tune` wrote. */
ls_status algorithm_load_choices(const char *path);

ls_status steps_push(struct step_list *l, struct step s);  /* drops steps that move and do nothing */
void      steps_free(struct step_list *l);
size_t    steps_sent(const struct step_list *l);           /* elements that leave this rank */
/* Block i of count elements split n ways as evenly as can be: starts at count * i / n, for i = 0 .. n. */
static inline size_t block_at(size_t count, int i, int n)
{
    return (size_t)((unsigned __int128)count * (unsigned)i / (unsigned)n);
}

#endif
