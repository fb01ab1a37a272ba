/* schedule_orders.c - the order in which each rank runs its actions: pure functions of (rank, P, v, M).
 *
 * gpipe        all forwards, then all backwards (Huang et al. 2019).
 * 1f1b         P-1-r warm-up forwards, then one forward and one backward alternately (Narayanan et al. 2019, 2021: PipeDream-Flush).
 * interleaved  the same over v chunks. Micro-batches are processed in rounds of about P; within a round, chunk 0 runs all of it, then
 *              chunk 1, and so on; backwards start with the last chunk. Warm-up: (v-1) rounds and 2 (P-1-r) forwards (Narayanan et al.
 *              2021b). M does not need to be a multiple of P: M / P rounds (at least one) share M as evenly as possible. The larger
 *              rounds come first: the warm-up is computed from the first round, so a larger later round would wait for itself.
 * zb-h1        1f1b with the backward in two: B computes input gradients, W weight gradients. Rank r defers r of the W and runs them
 *              where it would wait (Qi et al. 2023, the handcrafted schedule 1). In flight, W counted: min(M, P) on every rank.
 * zb-v         two chunks placed in a V: down the ranks and up again, so the last stage is on rank 0 and backwards start early
 *              (Qi et al. 2024). Rank r: 2 (P-r) - 1 forwards of chunk 0, then r times F1 F0, then P-r times F1 B1 W1, then F0 B0 W0
 *              F1 B1 W1 alternately; at the end the last r pairs B0 B1 precede their weights. Written for M >= 2P-1; with fewer
 *              micro-batches the list is that of 2P-1 without the actions that do not exist.
 * forward      the forwards of interleaved (forward-v: of zb-v), for evaluation.
 */
#include "parallel/pipeline/schedule.h"

#include "base/base.h"

static void schedule_orders_forward(ls_pipeline_schedule *s, int r, int chunk, int micro)
{
    schedule_put(s, r, LS_ACTION_FORWARD, chunk, micro);
}
static void backward(ls_pipeline_schedule *s, int r, int chunk, int micro) { schedule_put(s, r, LS_ACTION_BACKWARD, chunk, micro); }
static void weights(ls_pipeline_schedule *s, int r, int chunk, int micro) { schedule_put(s, r, LS_ACTION_WEIGHTS, chunk, micro); }

void order_gpipe(ls_pipeline_schedule *s)
{
    for (int r = 0; r < s->stages; r++) {
        for (int m = 0; m < s->micro; m++) schedule_orders_forward(s, r, 0, m);
        for (int m = 0; m < s->micro; m++) backward(s, r, 0, m);
    }
}

void order_1f1b(ls_pipeline_schedule *s)
{
    for (int r = 0; r < s->stages; r++) {
        int f = 0;

        while (f < MIN(s->micro, s->stages - 1 - r)) schedule_orders_forward(s, r, 0, f++);
        for (int b = 0; b < s->micro; b++) {
            if (f < s->micro) schedule_orders_forward(s, r, 0, f++);
            backward(s, r, 0, b);
        }
    }
}

void order_zb_h1(ls_pipeline_schedule *s)
{
    for (int r = 0; r < s->stages; r++) {
        int f = 0, w = 0;

        while (f < MIN(s->micro, s->stages - 1 - r)) schedule_orders_forward(s, r, 0, f++);
        for (int b = 0; b < s->micro; b++) {
            if (f < s->micro) schedule_orders_forward(s, r, 0, f++);
            backward(s, r, 0, b);
            if (b >= r) weights(s, r, 0, w++);
        }
        while (w < s->micro) weights(s, r, 0, w++);
    }
}

/* ---- interleaved ---- */

int interleaved_round(const ls_pipeline_schedule *s, int micro, int *first)
{
    int rounds = MAX(1, s->micro / s->stages), size = s->micro / rounds, larger = s->micro % rounds;

    if (micro < larger * (size + 1)) {
        *first = micro - micro % (size + 1);
        return size + 1;
    }
    *first = micro - (micro - larger * (size + 1)) % size;
    return size;
}

/* The k-th of v M forwards (with turned: backwards), ordered by rounds. */
static ls_action kth(const ls_pipeline_schedule *s, int k, bool turned)
{
    int begin, size = interleaved_round(s, k / s->chunks, &begin); /* a round has v times as many actions as micro-batches */
    int at = k - begin * s->chunks, chunk = at / size;

    return (ls_action){ turned ? LS_ACTION_BACKWARD : LS_ACTION_FORWARD, turned ? s->chunks - 1 - chunk : chunk, begin + at % size };
}

static void schedule_orders_put(ls_pipeline_schedule *s, int r, ls_action a) { schedule_put(s, r, a.kind, a.chunk, a.micro); }

void order_interleaved(ls_pipeline_schedule *s)
{
    int all = s->chunks * s->micro, none, round = interleaved_round(s, 0, &none);

    for (int r = 0; r < s->stages; r++) {
        int f = 0, hops = s->stages - 1 - r, ahead = s->chunks == 1 ? hops : (s->chunks - 1) * round + 2 * hops;

        while (f < MIN(all, ahead)) schedule_orders_put(s, r, kth(s, f++, false));
        for (int b = 0; b < all; b++) {
            if (f < all) schedule_orders_put(s, r, kth(s, f++, false));
            schedule_orders_put(s, r, kth(s, b, true));
        }
    }
}

void order_forward(ls_pipeline_schedule *s)
{
    for (int r = 0; r < s->stages; r++)
        for (int k = 0; k < s->chunks * s->micro; k++) schedule_orders_put(s, r, kth(s, k, false));
}

/* ---- V ---- */

/* The next action of each kind and chunk of a rank; actions beyond the last micro-batch are omitted. */
struct turn {
    ls_pipeline_schedule *s;
    int r, next[3][2];
};

static void schedule_orders_take(struct turn *t, ls_action_kind kind, int chunk)
{
    int micro = t->next[kind][chunk]++;

    if (micro < t->s->micro) schedule_put(t->s, t->r, kind, chunk, micro);
}

static void take_both(struct turn *t, int chunk)
{
    schedule_orders_take(t, LS_ACTION_BACKWARD, chunk);
    schedule_orders_take(t, LS_ACTION_WEIGHTS, chunk);
}

static void zb_v_rank(struct turn *t, int P, int M)
{
    int *f = t->next[LS_ACTION_FORWARD], r = t->r;

    while (f[0] < 2 * (P - r) - 1) schedule_orders_take(t, LS_ACTION_FORWARD, 0);
    while (f[1] < r) {
        schedule_orders_take(t, LS_ACTION_FORWARD, 1);
        schedule_orders_take(t, LS_ACTION_FORWARD, 0);
    }
    while (f[1] < P) {
        schedule_orders_take(t, LS_ACTION_FORWARD, 1);
        take_both(t, 1);
    }
    while (f[1] < M) {
        if (f[0] < M) schedule_orders_take(t, LS_ACTION_FORWARD, 0);
        take_both(t, 0);
        schedule_orders_take(t, LS_ACTION_FORWARD, 1);
        take_both(t, 1);
    }
    for (int k = 0; k < r; k++) {
        schedule_orders_take(t, LS_ACTION_BACKWARD, 0);
        schedule_orders_take(t, LS_ACTION_BACKWARD, 1);
    }
    for (int k = 0; k < P - r; k++) take_both(t, 0);
    while (t->next[LS_ACTION_WEIGHTS][1] < M) schedule_orders_take(t, LS_ACTION_WEIGHTS, 1);
    while (t->next[LS_ACTION_WEIGHTS][0] < M) schedule_orders_take(t, LS_ACTION_WEIGHTS, 0);
}

void order_zb_v(ls_pipeline_schedule *s)
{
    for (int r = 0; r < s->stages; r++) zb_v_rank(&(struct turn){ .s = s, .r = r }, s->stages, MAX(s->micro, 2 * s->stages - 1));
}

void order_forward_v(ls_pipeline_schedule *s)
{
    for (int r = 0; r < s->stages; r++) {
        int f = 0, ahead = MIN(s->micro, 2 * (s->stages - 1 - r) + 1);

        while (f < ahead) schedule_orders_forward(s, r, 0, f++);
        for (int m = 0; m < s->micro; m++) {
            schedule_orders_forward(s, r, 1, m);
            if (f < s->micro) schedule_orders_forward(s, r, 0, f++);
        }
    }
}
