/* P4 - interleaving: v chunks of the model a rank divide the idle time by v and send v times as many messages (of the same size, and
 * those between the last rank and the first in addition). A zero-bubble schedule instead fills the time with deferred weight gradients
 * (backward is split into B and W): with F = B = W, 1F1B's idle time of 3 (P-1) becomes P-1 (ZB-H1, with no more micro-batches in
 * flight than 1F1B's first rank), and (P-1)/2 with two chunks in a V (ZB-V: also P in flight, and half a micro-batch more, since
 * each chunk has its own slots).
 *
 * Played from the lists with equal stages; a rank's whole work is F = 1, B = 2 (B = W = 1 where split), a chunk's 1/v of it. */
#include "lab.h"
#include "lockstep/pipeline.h"

struct seen { double idle, bubble; int messages, in_flight; }; /* idle: seconds per rank; in_flight: complete micro-batches on rank 0 */

static int sends(const ls_pipeline_schedule *s, int rank)
{
    int n = 0, all = s->stages * s->chunks;

    for (int i = 0; i < s->count[rank]; i++) {
        const ls_action *a = &s->list[rank][i];
        int stage = ls_pipeline_stage(s, rank, a->chunk), to = a->kind == LS_ACTION_FORWARD ? stage + 1 : stage - 1;

        n += a->kind != LS_ACTION_WEIGHTS && to >= 0 && to < all && ls_pipeline_rank(s, to, NULL) != rank;
    }
    return n;
}

static struct seen look(const char *name, int P, int v, int M)
{
    double f[512], b[512], w[512]; /* 64 stages of 8 chunks */
    ls_pipeline_times t = { .forward = f, .backward = b, .weights = w };
    ls_pipeline_schedule s;
    ls_pipeline_timeline p;
    struct seen out = { 0 };

    TRY(ls_pipeline_schedule_make(name, P, v, M, &s));
    for (int k = 0; k < P * v; k++) {
        f[k] = w[k] = 1.0 / v;
        b[k] = (s.split ? 1.0 : 2.0) / v;
    }
    TRY(ls_pipeline_play(&s, &t, &p));
    out.idle = p.seconds - 3.0 * M;
    out.bubble = p.bubble;
    for (int r = 0; r < P; r++) out.messages += sends(&s, r);
    for (int c = 0; c < v; c++) out.in_flight += ls_pipeline_schedule_slots(&s, 0, c);
    ls_pipeline_played_free(&s, &p);
    ls_pipeline_schedule_free(&s);
    return out;
}

static void interleaving_row(const char *name, int v, struct seen x)
{
    lab_say("%-12s %4d %12.4f %10.1f %% %12d %14.1f\n", name, v, x.idle, 100 * x.bubble, x.messages, (double)x.in_flight / v);
}

LAB(p4_interleaving, "interleaving and zero bubble", { "stages", "stages of the pipeline", 4, 2, 64 },
    { "micro-batches", "micro-batches of a step, a multiple of the stages", 16, 2, 1024 })
{
    int P = (int)lab_size("stages"), M = (int)lab_size("micro-batches");
    struct seen one = look("1f1b", P, 1, M), zb = look("zb-h1", P, 1, M), zbv = look("zb-v", P, 2, M);

    lab_say("P = %d, M = %d\n%-12s %4s %12s %12s %12s %14s\n", P, M, "schedule", "v", "idle", "bubble", "messages", "in flight, r 0");
    interleaving_row("1f1b", 1, one);
    for (int v = 2; v <= 8; v *= 2) interleaving_row("interleaved", v, look("interleaved", P, v, M));
    interleaving_row("zb-h1", 1, zb);
    interleaving_row("zb-v", 2, zbv);
    lab_say("\n");
    lab_open("P4");
    for (int v = 2; v <= 4; v++) {
        struct seen x = look("interleaved", P, v, M);
        char what[80];

        snprintf(what, sizeof what, "interleaved, v = %d: idle time of 1f1b / interleaved", v);
        lab_equal(what, v, one.idle / x.idle, 1e-12);
        snprintf(what, sizeof what, "interleaved, v = %d: bubble (share of the step) of 1f1b / interleaved", v);
        lab_corrected(what, '=', v, (double)(v * M + P - 1) / (M + P - 1), one.bubble / x.bubble, 1e-12,
                      "why: idle time is divided by v, but the step gets shorter too, so its share falls by (vM+P-1)/(M+P-1)");
        snprintf(what, sizeof what, "interleaved, v = %d: messages, 2 M (v P - 1)", v);
        lab_equal(what, 2.0 * M * (v * P - 1), x.messages, 0);
    }
    lab_equal("1f1b: messages, 2 M (P - 1)", 2.0 * M * (P - 1), one.messages, 0);
    lab_equal("zb-h1: its idle time / 1f1b's", 1.0 / 3, zb.idle / one.idle, 1e-12);
    lab_equal("zb-h1: messages / 1f1b's", 1, (double)zb.messages / one.messages, 0);
    lab_check("zb-h1: in flight on rank 0 / 1f1b's", 1, (double)zb.in_flight / one.in_flight, 0);
    lab_check("zb-v: room on rank 0, whole micro-batches, P + 1/2, or half of M and 1/2", fmin(P, M / 2.0) + 0.5,
              (double)zbv.in_flight / 2, 0);
    lab_equal("zb-v: its idle time / 1f1b's", 1.0 / 6, zbv.idle / one.idle, 1e-12);
    return lab_close();
}
