/* tape.h - a rank's program as the list of everything that takes time: kernels with their seconds, collectives with their group and bytes.
 *
 * A tape is made once and played for groups of any size and place, so a search need not compile the program again for every number of
 * ranks. When a tape is played, kernels run one after another. A collective overlaps them from where the program starts it, after earlier
 * ones of the same group, and is exposed as far as the program waits for it; an exchange of routed rows is waited for at once. Loads and
 * saves of what is offloaded follow each other in the same way. Reductions of interleaved chunks overlap the backwards of the rank's other
 * chunks: tape_hide_chunks(). Gathers that an update starts for the next step (parallel/zero/carry.c) are in flight when a step begins.
 */
#ifndef LS_TRAIN_PLAN_TAPE_H
#define LS_TRAIN_PLAN_TAPE_H

#include "base/hash.h"
#include "plan/seconds.h"
#include "train/run/step.h"

/* Seconds of a list of instructions, by kind. */
struct tape_parts {
    double all; /* from the first instruction to the end of the last */
    double kernels[SECONDS_KINDS];
    double recomputed;             /* part of `kernels`: forward instructions that are repeated for the backward */
    double exposed[SECONDS_WAITS]; /* waits for communication and offloading */
    double hidden[SECONDS_WAITS];  /* communication and offloading that overlap kernels; not part of `all` */
};
void tape_parts_add(struct tape_parts *to, const struct tape_parts *x, double times);

/* The seconds of the programs of one rank. */
struct tape_seconds {
    struct tape_parts micro;     /* a micro-batch before the last */
    struct tape_parts last;      /* additional seconds of the last one */
    struct tape_parts optimizer; /* the optimizer, once per step */
    double action[3], final[3];  /* forward, backward, weight gradients in a micro-batch before the last, and in the last */
    double message;              /* seconds of the activation that a stage sends to the next */
    double sent, late; /* communication over dp that a chunk starts in its last micro-batch: all of it, and the part that its end waits for
                          if nothing else overlaps it */
};
void tape_seconds_add(struct tape_seconds *to, const struct tape_seconds *x, double times);

/* A quantity of a program as a function of the samples of a micro-batch and the ranks that share a parameter's optimizer state:
 * fixed + sample * samples + shared / ranks. */
struct tape_quantity {
    double fixed, sample, shared;
};

enum tape_kind { TAPE_KERNEL, TAPE_START, TAPE_WAIT, TAPE_SHUFFLE };
/* Exchanges of a queue run one after another: there is one queue per group, and one for all copies of what is offloaded. */
enum { TAPE_COPIES = LS_GROUPS, TAPE_QUEUES };
struct tape_entry {
    enum tape_kind kind;
    ls_when when;
    struct tape_quantity moved;              /* seconds of a kernel's bytes; bytes of an exchange, as in seconds_of_collective() */
    struct tape_quantity computed, launches; /* for a kernel: seconds of its FLOPs, and number of kernels */
    struct tape_quantity rows, columns;      /* shape of a matmul's output (struct seconds_work) */
    enum seconds_kind work;
    bool recomputed;
    bool issued; /* it is issued together with the next kernel, by the same call of the host */
    int queue;   /* queue of an exchange: ls_group, or TAPE_COPIES */
    ls_collective op;
    struct seconds_copy copy;
    int wait;     /* ls_axis, or SECONDS_OFFLOAD */
    int transfer; /* number of the exchange, load or save that starts or is waited for */
    bool inside;  /* it is in a block of the model */
    bool carried; /* the start of a gather that the next step waits for */
    bool later;   /* a load that the first micro-batch of a step does not need: gradients, which are zeros then */
};

struct tape {
    struct tape_entry *entry;
    int begin[SEGMENTS + 1]; /* the entries of a segment: begin[s] .. begin[s + 1] */
    int transfers;
    bool chunk;                   /* it is one of a rank's chunks: its reductions at the end of a step overlap the others */
    bool carries;                 /* some gathers of its update are carried */
    bool later;                   /* some loads are skipped in the first micro-batch */
    double *end;                  /* [transfers] while it is played: when each ends */
    struct tape_quantity message; /* bytes that a stage sends to the next in a micro-batch; 0: none */
};

/* The tape of a program of the step. Free it with tape_free(); a zeroed one is a no-op. */
ls_status tape_make(const struct cluster *c, const struct step *s, const ls_program *p, struct tape *out);
void tape_free(struct tape *t);

/* Where the groups of a rank are, and the variables that quantities depend on. */
struct tape_place {
    struct seconds_group group[LS_GROUPS], neighbor;
    double samples, ranks;
};
/* A 128-bit hash of a place: equal for equal places only. */
struct hash_words tape_place_words(const struct tape_place *place);
double tape_quantity_at(const struct tape_quantity *q, const struct tape_place *place);
/* Seconds of a kernel, or of an exchange, whose group, if it has one, is in `group`. */
double tape_kernel_seconds(const struct cluster *c, const struct tape_entry *x, const struct tape_place *place);
double tape_exchange_seconds(const struct cluster *c, const struct tape_entry *x, const struct tape_place *place,
                             const struct seconds_group *group);
/* The time that kernels of so many seconds take while collectives are in flight for `busy` more seconds, on a machine with channels, which
 * occupy some of the processor's units. */
double tape_beside(const struct cluster *c, double seconds, double busy);
struct tape_place tape_place_of(const struct cluster *c, const ls_layout *l, int rank);

/* Adds the program's seconds to *out. */
void tape_play(struct tape *t, const struct cluster *c, const struct tape_place *place, struct tape_seconds *out);

/* What is needed to know about a rank's chunks at the end of a step. round: a chunk's backward before its last one. */
struct tape_chunk {
    double sent, late, round, last;
};
struct tape_chunk tape_chunk_of(const struct tape_seconds *x);
/* Interleaved chunks run their last backwards round by round, the first chunk's last, so the reductions of a chunk overlap the rounds of
 * earlier ones. Subtracts from *rank, the sum of all chunks, what is hidden in this way, and adds the slowdown of the kernels that overlap
 * it. */
void tape_hide_chunks(const struct cluster *c, const ls_layout *l, const struct tape_chunk *chunk, struct tape_seconds *rank);

#endif
