/* steps.h - collective algorithms as data: the list of steps of one rank, made before anything is sent.
 *
 * A list is made by a pure function of (rank, n, sizes); tests run lists on virtual ranks, the runtime runs them over any
 * transport, the cost model prices them, the command line prints them. Positions are in elements.
 *
 * A step sends `out` to rank `to` and receives `in` from rank `from`, concurrently (-1: none), and then
 *     STEP_COPY          `in` holds what was received
 *     STEP_REDUCE        `in` = op(`in`, what was received), in this order of operands
 *     STEP_LOCAL         no message: in = out on this rank (to == from == -1)
 *     STEP_LOCAL_REDUCE  no message: in = op(in, out) on this rank (to == from == -1)
 * A step begins when the one before it has ended. A runtime may begin one earlier if its spans overlap nothing that the running steps
 * write, and its `in` nothing that they read. Within one step, in and out never overlap.
 * `done`: this step completes the sum in `in`; an average divides it there, before anything rounds it further.
 *
 * Spans are in one of three buffers: the call's send, the call's recv, and scratch (of list->scratch elements, undefined before the first
 * step). list->wide: scratch holds f32 where the type is a half type (else the type itself): data received or copied into scratch is
 * widened, data copied out of it is rounded, and nothing is sent from it. Lists that sum half types accurately are wide: each sum is formed
 * on one rank, in scratch, and rounded once.
 *
 * In place. A list is correct both for separate buffers and for these aliases, without knowing which it has (only all_to_all knows):
 *     all_reduce, broadcast   IN_SEND[x] is IN_RECV[x]
 *     all_gather              IN_SEND[x] is IN_RECV[at[rank] + x]
 *     reduce_scatter          IN_RECV[x] is IN_SEND[at[rank] + x]
 * because no step reads an element of IN_SEND whose alias an earlier step, or the same one, has written; a LOCAL of an element onto its own
 * alias does not count as a write, and the runtime drops it (the addresses are equal). IN_SEND is never written; broadcast uses IN_RECV
 * alone.
 */
#ifndef LS_COMM_ALGORITHMS_STEPS_H
#define LS_COMM_ALGORITHMS_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include "lockstep/comm.h"

enum place { IN_SEND, IN_RECV, IN_SCRATCH };
struct span {
    enum place in;
    size_t at, len;
}; /* elements [at, at + len) */
enum step_kind { STEP_COPY, STEP_REDUCE, STEP_LOCAL, STEP_LOCAL_REDUCE };
struct step {
    int to, from;
    struct span out, in;
    enum step_kind kind;
    bool done;
};
struct step_list {
    struct step *step;
    int n, room;
    size_t scratch;
    bool wide;
};

/* The parameters of a call. Block i of the large buffer is [at[i], at[i + 1]), at[n + 1] ascending from 0. all_reduce: the blocks that it
 * is split into, as evenly as possible. For all_to_all, at is for send and recv_at for recv; else recv_at is NULL.
 * broadcast: one block, at[n] elements. barrier: at is NULL. chunk: elements that one step should move where the sums of a
 * step can overlap the next one's transfer; 0: complete blocks; the same on all ranks. in_place: all_to_all with send == recv. */
struct shape_of_call {
    int rank, n, root;
    const size_t *at, *recv_at;
    size_t chunk;
    bool in_place;
};

/* One algorithm of one collective. make() appends to an empty list; LS_ENOMEM is its only failure. Every algorithm supports any n >= 1. */
struct algorithm {
    ls_collective op;
    const char *name; /* "ring", "halving_doubling", "tree", "direct" */
    bool half;        /* sums half types accurately: every sum is rounded once */
    ls_status (*make)(const struct shape_of_call *c, struct step_list *out);
    const char *about; /* one line of description and cost */
};
const struct algorithm *algorithm_at(int i);                                 /* the table; NULL past the end */
const struct algorithm *algorithm_named(ls_collective op, const char *name); /* NULL: none */
/* Chooses by op, bytes of the complete buffer and ranks, from the tuned table or the shipped one, an algorithm that supports the call.
 * Never NULL for an op that has algorithms (send and recv have none). */
const struct algorithm *algorithm_choose(ls_collective op, size_t bytes, int n, bool half_sum);
/* True if a list is used even where the transport has a native collective: by the tuned table, or forced. */
bool algorithm_list_first(ls_collective op, size_t bytes, int n, bool half_sum);
/* Forces this algorithm wherever it supports the call, until the next call of this function. name: of the table, ALGORITHM_NATIVE, or NULL:
 * use the table. */
#define ALGORITHM_NATIVE "native" /* the transport's own collective */
ls_status algorithm_force(ls_collective op, const char *name);
#define COMM_TABLE_HEADER "lockstep comm table 1" /* the first line of a comm table */
/* Replaces the shipped table by a file that `bench comm --tune` wrote (format: algorithms.c); NULL: back to the shipped one. */
ls_status algorithm_load_table(const char *path);

ls_status steps_push(struct step_list *l, struct step s); /* drops steps that have no effect */
void steps_free(struct step_list *l);
size_t steps_sent(const struct step_list *l); /* elements that this rank sends */
/* Block i of count elements split n ways as evenly as can be: starts at count * i / n, for i = 0 .. n. */
static inline size_t block_at(size_t count, int i, int n) { return (size_t)((unsigned __int128)count * (unsigned)i / (unsigned)n); }

#endif
