/* tape.h - a rank's program as the list of what takes time in it: kernels with their seconds, collectives with their group and bytes.
 *
 * A tape is made once and played for groups of any size and place, so a search need not compile the program again for every number of
 * ranks. Played, the kernels run one after the other. A collective runs beside them from where the program starts it, after those of the
 * same group that were started before, and is exposed as far as the program waits for it; an exchange of routed rows is waited for at once.
 * Loads and saves of what is offloaded follow each other in the same way.
 * What interleaved chunks of a rank reduce runs beside each other's backwards: tape_hide_chunks(). Gathers that an update starts for the
 * next step (parallel/zero/carry.c) are in flight when a step begins.
 */
#ifndef LS_TRAIN_PLAN_TAPE_H
#define LS_TRAIN_PLAN_TAPE_H

#include "base/hash.h"
#include "plan/seconds.h"
#include "train/run/step.h"

/* Seconds of a list of instructions, by what they are. */
struct tape_parts {
    double all; /* from the first instruction to the end of the last */
    double kernels[SECONDS_KINDS];
    double recomputed;             /* of the kernels: forward instructions that are repeated for the backward */
    double exposed[SECONDS_WAITS]; /* what is waited for */
    double hidden[SECONDS_WAITS];  /* what runs beside kernels; not part of `all` */
};
void tape_parts_add(struct tape_parts *to, const struct tape_parts *x, double times);

/* What programs of one rank take. */
struct tape_seconds {
    struct tape_parts micro;     /* a micro-batch before the last */
    struct tape_parts last;      /* what the last one takes in addition */
    struct tape_parts optimizer; /* once a step */
    double action[3], final[3];  /* of a micro-batch before the last, and of the last: forward, backward, weight gradients */
    double message;              /* of the activation that a stage sends to the next */
    double sent, late;           /* of the communication over dp that a chunk starts in its last micro-batch: all of it, and what its end
                                    waits for if the rank does nothing else */
};
void tape_seconds_add(struct tape_seconds *to, const struct tape_seconds *x, double times);

/* A quantity of a program by the samples of a micro-batch and the ranks that share a parameter's optimizer state:
 * fixed + sample * samples + shared / ranks. */
struct tape_quantity {
    double fixed, sample, shared;
};

enum tape_kind { TAPE_KERNEL, TAPE_START, TAPE_WAIT, TAPE_SHUFFLE };
/* Where exchanges follow each other: a queue for each group, and one for all copies of what is offloaded. */
enum { TAPE_COPIES = LS_GROUPS, TAPE_QUEUES };
struct tape_entry {
    enum tape_kind kind;
    ls_when when;
    struct tape_quantity moved;              /* seconds of a kernel's bytes; bytes of an exchange, as in seconds_of_collective() */
    struct tape_quantity computed, launches; /* of a kernel: seconds of its FLOPs, and how many it is */
    struct tape_quantity rows, columns;      /* of a matmul's output (struct seconds_work) */
    enum seconds_kind work;
    bool recomputed;
    bool issued; /* with the kernel after it, by the same call of the host */
    int queue;   /* of an exchange: ls_group, or TAPE_COPIES */
    ls_collective op;
    struct seconds_copy copy;
    int wait; /* ls_axis, or SECONDS_OFFLOAD */
    int slot;
    bool inside;  /* in a block of the model */
    bool carried; /* the start of a gather that the next step waits for */
    bool later;   /* a load that the first micro-batch of a step does not need: gradients, which are zeros then */
};

struct tape {
    struct tape_entry *entry;
    int begin[SEGMENTS + 1]; /* the entries of a segment: begin[s] .. begin[s + 1] */
    int slots;
    bool chunk;                   /* it is one of a rank's chunks: what it reduces at the end of a step runs beside the others */
    bool carries;                 /* some gathers of its update are carried */
    bool later;                   /* some loads are not those of a first micro-batch */
    double *end;                  /* [slots] while it is played: when an exchange is over */
    struct tape_quantity message; /* bytes that a stage sends to the next in a micro-batch; 0: none */
};

/* The tape of a program of the step. Free it with tape_free(); a zeroed one is a no-op. */
ls_status tape_make(const struct cluster *c, const struct step *s, const ls_program *p, struct tape *out);
void tape_free(struct tape *t);

/* Where the groups of a rank are, and what quantities depend on. */
struct tape_place {
    struct seconds_group group[LS_GROUPS], neighbour;
    double samples, ranks;
};
/* Equal for equal places, and for no others: 128 bits tell them apart. */
struct hash_words tape_place_words(const struct tape_place *place);
double tape_quantity_at(const struct tape_quantity *q, const struct tape_place *place);
/* Seconds of a kernel, or of an exchange, whose group, if it has one, is in `group`. */
double tape_kernel_seconds(const struct cluster *c, const struct tape_entry *x, const struct tape_place *place);
double tape_exchange_seconds(const struct cluster *c, const struct tape_entry *x, const struct tape_place *place,
                             const struct seconds_group *group);
/* What kernels of so many seconds take beside collectives that are in flight for `busy` more, on a machine with channels: these take
 * some of the processor's units. */
double tape_beside(const struct cluster *c, double seconds, double busy);
struct tape_place tape_place_of(const struct cluster *c, const ls_layout *l, int rank);

/* Adds what the program takes to *out. */
void tape_play(struct tape *t, const struct cluster *c, const struct tape_place *place, struct tape_seconds *out);

/* What matters of a rank's chunks at the end of a step: `round` is a chunk's backward before its last one. */
struct tape_chunk {
    double sent, late, round, last;
};
struct tape_chunk tape_chunk_of(const struct tape_seconds *x);
/* Of interleaved chunks, whose last backwards come round by round, the first chunk's last: what a chunk reduces runs beside the rounds of
 * those before it. Takes from *rank, the sum of all, what is hidden so, and adds by how much the kernels beside it are slower. */
void tape_hide_chunks(const struct cluster *c, const ls_layout *l, const struct tape_chunk *chunk, struct tape_seconds *rank);

#endif
