/* helper_virtual.h - step lists on virtual ranks: no processes, no transport, any order of events.
 *
 * Elements are doubles; each store rounds to the buffer's type. While a list runs, every rule of steps.h is checked: spans
 * are inside their buffers, messages have the expected size, none is left over, no rank is stuck.
 */
#ifndef LS_HELPER_VIRTUAL_H
#define LS_HELPER_VIRTUAL_H

#include "comm/algorithms/steps.h"

enum { VIRTUAL_RANKS = 17 };
enum virtual_type { VIRTUAL_EXACT, VIRTUAL_F32, VIRTUAL_BF16 };
/* RENDEZVOUS: a send ends when its receive takes it. EAGER: sends end at once; messages queue in order of each pair. */
enum virtual_mode { VIRTUAL_RENDEZVOUS, VIRTUAL_EAGER };

struct virtual_case {
    const struct algorithm *algorithm;
    int      n, root;
    size_t at[VIRTUAL_RANKS][VIRTUAL_RANKS + 1];      /* [rank]: the same for all ops except all_to_all */
    size_t recv_at[VIRTUAL_RANKS][VIRTUAL_RANKS + 1]; /* all_to_all */
    size_t   chunk;
    bool     in_place, average;
    enum virtual_type type;
    enum virtual_mode mode;
    unsigned seed;
};

/* The results of the ranks. */
struct virtual_run {
    struct step_list list[VIRTUAL_RANKS];
    double *send[VIRTUAL_RANKS], *recv[VIRTUAL_RANKS], *scratch[VIRTUAL_RANKS];
    double *memory[VIRTUAL_RANKS];                       /* holds send and recv */
    size_t  sends[VIRTUAL_RANKS], recvs[VIRTUAL_RANKS];  /* elements */
};

double virtual_round(enum virtual_type t, double x);
double virtual_value(enum virtual_type t, int rank, size_t i); /* element of `send` before the call */
/* Fails the test when a rule is broken. */
void virtual_run(const struct virtual_case *c, struct virtual_run *out);
void virtual_free(struct virtual_run *r);

#endif
