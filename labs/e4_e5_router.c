/* E4 - the capacity factor: an expert takes at most factor x tokens x K / experts, and what is above that is dropped, "whatever the
 * layout". Corrected: it matters over which tokens the share is counted. Two samples, each of which uses one half of the experts, are even
 * together: nothing is dropped if they count as one batch, and half of the choices if each sample counts alone.
 *
 * E5 - the auxiliary loss E sum f P (f the share of the tokens that chose an expert, P the mean of its scores) is 1 for an even load, and E
 * if one expert gets all tokens. Corrected: it depends on how a batch is divided as well; the same two samples have 2, not 1.
 *
 * Routing alone, with scores made for it: what the router counts and what the loss computes. */
#include "lab.h"
#include "lockstep/ops.h"

enum { MOST_EXPERTS = 64 };

/* Which expert token t of sample b prefers, and as the second choice. */
typedef size_t router_choice(size_t b, size_t t, int second);

static size_t E, T;

static size_t one_for_all(size_t b, size_t t, int second) { return second ? 1 + (b + t) % (E - 1) : 0; }
static size_t even(size_t b, size_t t, int second) { return (b + t + (size_t)second) % E; }
/* Sample 0 uses the lower half of the experts, sample 1 the upper one. */
static size_t halves(size_t b, size_t t, int second) { return b * (E / 2) + (t + (size_t)second) % (E / 2); }

struct routed { double most, lost, loss; }; /* tokens of the busiest expert; choices dropped; the auxiliary loss */

/* Routes two samples; parts 2: each counts alone, 1: one sample of twice as many tokens, 0: one sample only. */
static struct routed router_run(router_choice *choice, size_t chosen, size_t capacity, int parts, int over_micro_batch)
{
    ls_route_options o = { .chosen = chosen, .capacity = capacity };
    ls_router_loss_options lo = { .aux = 1, .over_micro_batch = over_micro_batch };
    size_t real = parts ? 2 : 1, B = parts == 2 ? 2 : 1, rows = real * T;
    float *logits = calloc(rows * E, sizeof *logits);
    int32_t counts[MOST_EXPERTS];
    struct routed out = { 0 };
    ls_program *p;
    ls_store *s;
    double taken = 0;

    if (!logits) exit(1);
    for (size_t i = 0; i < rows; i++) {
        logits[i * E + choice(i / T, i % T, 0)] = 80;
        if (chosen > 1) logits[i * E + choice(i / T, i % T, 1)] = 40;
    }
    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_value x = ls_input(p, "logits", LS_F32, SIZES(B, rows / B, E));
    ls_routing r = ls_route(p, x, LS_NONE, LS_NONE, &o);
    ls_output(p, "counts", r.counts);
    ls_output(p, "loss", ls_router_loss(p, x, &r, LS_NONE, &lo));
    TRY(ls_program_compile(p, NULL));
    TRY(ls_program_write(p, "logits", logits, LS_F32, rows * E));
    TRY(ls_program_run(p, LS_FORWARD));
    TRY(ls_program_read(p, "counts", counts, LS_I32, E));
    TRY(ls_program_read(p, "loss", &out.loss, LS_F64, 1));
    for (size_t e = 0; e < E; e++) {
        out.most = fmax(out.most, counts[e]);
        taken += counts[e];
    }
    out.lost = (double)(rows * chosen) - taken;
    ls_program_release(&p);
    ls_store_release(&s);
    free(logits);
    return out;
}

static void router_capacity(double factor)
{
    size_t share = 2 * T / E, capacity = (size_t)ceil(factor * 2 * (double)T / (double)E);
    struct routed hot = router_run(one_for_all, 2, capacity, 0, 0), alone = router_run(halves, 2, share, 2, 0);
    char what[100];

    lab_open("E4");
    snprintf(what, sizeof what, "%zu tokens, K = 2, E = %zu, factor %g: taken by a hot expert", T, E, factor);
    lab_equal(what, ceil(factor * 2 * (double)T / (double)E), hot.most, 0);
    lab_equal("        its choices that are dropped, tokens - capacity", (double)T - (double)capacity, hot.lost, 0);
    lab_equal("factor 1, an even load: dropped share of the choices", 0, router_run(even, 2, share, 0, 0).lost, 0);
    lab_equal("factor 1, samples even together, counted over both: dropped share", 0, router_run(halves, 2, 2 * share, 1, 0).lost, 0);
    lab_corrected("factor 1, samples even together, counted over each: dropped share", '=', 0, 0.5, alone.lost / (4 * (double)T), 1e-12,
                  "why: a share is of the tokens that are counted together: a sample, a micro-batch, or all ranks' batch");
}

static void router_loss(void)
{
    char what[80];

    lab_open("E5");
    snprintf(what, sizeof what, "E = %zu, top-1, an even load: E sum f P", E);
    lab_equal(what, 1, router_run(even, 1, 0, 0, 0).loss, 1e-6);
    snprintf(what, sizeof what, "E = %zu, top-1, one expert gets all tokens: E sum f P", E);
    lab_equal(what, (double)E, router_run(one_for_all, 1, 0, 0, 0).loss, 1e-6);
    lab_equal("samples even together, over the micro-batch", 1, router_run(halves, 1, 0, 2, 1).loss, 1e-6);
    lab_corrected("samples even together, over each sequence", '=', 1, 2, router_run(halves, 1, 0, 2, 0).loss, 1e-6,
                  "why: f and P are then means over one sequence, and each of the two sequences uses half of the experts");
}

LAB(e4_e5_router, "capacity and auxiliary loss of a router",
    { "seq-len", "tokens of a sample, a multiple of the experts", 1024, 128, 4096 },
    { "experts", "experts, an even number", 8, 4, MOST_EXPERTS },
    { "capacity-percent", "capacity of an expert, of its even share", 125, 75, 200 })
{
    E = (size_t)lab_size("experts");
    T = (size_t)lab_size("seq-len");
    if (E % 2 || T % E) {
        fprintf(stderr, "lab e4_e5_router: %zu tokens are not divisible by %zu experts, or these are odd\n", T, E);
        exit(1);
    }
    router_capacity((double)lab_size("capacity-percent") / 100);
    router_loss();
    return lab_close();
}
