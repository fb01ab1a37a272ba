/* E2 - a capacity factor limits how many tokens an expert takes and drops the rest (they pass through the residual stream); an
 * auxiliary loss (Fedus et al. 2021), or a bias on the scores (DeepSeek-V3), balances the load.
 *
 * First routing alone, with scores that favor two experts: tokens that chose an expert compared with those that it got. Then a Mixtral
 * of one layer, trained three times from the same weights on tokens of which a few are frequent: the load of each expert by step, and
 * the imbalance, the largest load / the mean. */
#include "lab_mesh.h"

enum { EXPERTS_MOST = 32, CHOSEN = 2, TOKENS = 64, SAMPLES = 8, STEPS = 100, EVERY = 25 };

static int experts(void) { return (int)lab_size("experts"); }

/* ---- capacity ---- */

struct routed { double load[EXPERTS_MOST], got[EXPERTS_MOST], most, lost, score; }; /* score: mean score of the choices that were kept */

/* capacity: tokens of a sample that an expert takes; 0: all */
static struct routed capacity_route(size_t capacity, int by_probability)
{
    static float logits[TOKENS * EXPERTS_MOST], weight[TOKENS * CHOSEN];
    ls_route_options o = { .chosen = CHOSEN, .capacity = capacity, .by_probability = by_probability };
    static int32_t rows[TOKENS * CHOSEN];
    int32_t counts[EXPERTS_MOST];
    struct routed out = { 0 };
    unsigned n = (unsigned)experts();
    ls_program *p;
    ls_store *s;

    for (unsigned t = 0; t < TOKENS; t++)
        for (unsigned e = 0; e < n; e++)
            logits[t * n + e] = (float)(mixed(7, t, e) % 1000) / 500 + (e == 1 ? 1.0f : e == 4 ? 0.6f : 0);
    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_routing r = ls_route(p, ls_input(p, "logits", LS_F32, SIZES(1, TOKENS, experts())), LS_NONE, LS_NONE, &o);
    ls_output(p, "counts", r.counts);
    ls_output(p, "load", ls_route_load(p, &r, 0));
    ls_output(p, "rows", r.rows);
    ls_output(p, "weight", r.weight);  /* not normalized: the scores */
    TRY(ls_program_compile(p, NULL));
    TRY(ls_program_write(p, "logits", logits, LS_F32, TOKENS * experts()));
    TRY(ls_program_run(p, LS_FORWARD));
    TRY(ls_program_read(p, "counts", counts, LS_I32, experts()));
    TRY(ls_program_read(p, "load", out.load, LS_F64, experts()));
    TRY(ls_program_read(p, "rows", rows, LS_I32, TOKENS * CHOSEN));
    TRY(ls_program_read(p, "weight", weight, LS_F32, TOKENS * CHOSEN));
    for (int e = 0; e < experts(); e++) {
        out.got[e] = counts[e];
        out.most = fmax(out.most, counts[e]);
    }
    for (int k = 0; k < TOKENS * CHOSEN; k++) {
        out.lost += rows[k] < 0;
        out.score += rows[k] < 0 ? 0 : weight[k];
    }
    out.score /= TOKENS * CHOSEN - out.lost;
    ls_program_release(&p);
    ls_store_release(&s);
    return out;
}

static void capacities(void)
{
    static const double factors[] = { 0, 2, 1.25, 1, 0.5 };
    double before = -1;
    int more = 0;

    for (int i = 0; i < 5; i++) {
        size_t capacity = (size_t)ceil(factors[i] * TOKENS * CHOSEN / experts());
        struct routed r = capacity_route(capacity, 0), best = capacity_route(capacity, 1);
        double over = 0, load = 0;
        char what[80];

        lab_say("\ncapacity factor %g, %zu tokens an expert: chosen by, taken\n", factors[i], capacity);
        for (int e = 0; e < experts(); e++) lab_say(" %4.0f", r.load[e]);
        lab_say("\n");
        for (int e = 0; e < experts(); e++) {
            lab_say(" %4.0f", r.got[e]);
            over += capacity ? fmax(0, r.load[e] - (double)capacity) : 0;
            load += r.load[e];
        }
        lab_say("\n");
        snprintf(what, sizeof what, "factor %g: choices of %d tokens", factors[i], TOKENS);
        lab_check(what, TOKENS * CHOSEN, load, 0);
        if (capacity) lab_below("        taken by the busiest expert, at most the capacity", (double)capacity + 1, r.most);
        lab_equal("        dropped: what is above the capacity", over, r.lost, 0);
        lab_check("        the same number where the smallest scores are dropped", over, best.lost, 0);
        if (over > 0) lab_check_above("        and then the mean score of those kept is above", r.score, best.score);
        more += r.lost >= before;
        before = r.lost;
    }
    lab_equal("smaller capacities drop no less", 5, more, 0);
}

/* ---- training ---- */

struct run { const char *name; double aux, bias_rate, first, last, start, loss; };  /* imbalance: first step, mean of the last EVERY */

static double imbalance(const double *load)
{
    double most = 0, sum = 0;

    for (int e = 0; e < experts(); e++) {
        most = fmax(most, load[e]);
        sum += load[e];
    }
    return most * experts() / sum;
}

static void feed(ls_program *p, int step)
{
    static int32_t x[SAMPLES * TOKENS], y[SAMPLES * TOKENS];
    float tokens = SAMPLES * TOKENS;

    for (unsigned i = 0; i < SAMPLES * TOKENS; i++) {
        double u = (mixed((unsigned)step, i, 5) % 1000) / 1000.0;

        x[i] = (int32_t)(u * u * u * VOCAB);
        y[i] = (5 * x[i] + 7) % VOCAB;
    }
    TRY(ls_program_write(p, "x", x, LS_I32, SAMPLES * TOKENS));
    TRY(ls_program_write(p, "y", y, LS_I32, SAMPLES * TOKENS));
    TRY(ls_program_write(p, "tokens", &tokens, LS_F32, 1));
}

static void capacity_train(struct run *r)
{
    struct net n = net_experts(1, 4, TOKENS, experts(), CHOSEN);
    double load[EXPERTS_MOST];
    struct distributed s;

    n.samples = SAMPLES;
    n.sharded = 0;
    n.model.aux_coef = r->aux;
    n.model.router_bias_rate = r->bias_rate;
    distributed_open(&n, NULL, 0, &s);
    lab_say("%s\n", r->name);
    for (int step = 0; step < STEPS; step++) {
        feed(s.program, step);
        ls_store_zero_grad(s.store);
        TRY(ls_program_run(s.program, LS_FORWARD | LS_BACKWARD | LS_LAST));
        TRY(ls_program_read(s.program, "loss", &r->loss, LS_F64, 1));
        TRY(ls_program_read(s.program, "model.layers.0.expert_load", load, LS_F64, experts()));
        TRY(ls_optimizer_set(s.program, &n.optimizer, 3e-3, (uint64_t)step + 1));
        TRY(ls_program_run(s.program, LS_OPTIMIZER_STEP));
        if (step == 0) r->first = imbalance(load);
        if (step == 0) r->start = r->loss;
        if (step >= STEPS - EVERY) r->last += imbalance(load) / EVERY;
        if (step % EVERY && step != STEPS - 1) continue;
        lab_say("%6d", step);
        for (int e = 0; e < experts(); e++) lab_say(" %6.0f", load[e]);
        lab_say("   imbalance %5.2f, loss %.4f\n", imbalance(load), r->loss);
    }
    distributed_close(&s);
}

LAB(e2_capacity, "capacity of experts", { "experts", "experts of a layer", 8, 5, EXPERTS_MOST })
{
    struct run none = { .name = "nothing evens the load" }, aux = { .name = "auxiliary loss, coefficient 0.02", .aux = 0.02 };
    struct run bias = { .name = "bias, steps of 0.005", .bias_rate = 0.005 };

    lab_open("E2");
    capacities();
    lab_say("\nload of %d experts by step\n", experts());
    capacity_train(&none);
    capacity_train(&aux);
    capacity_train(&bias);
    lab_say("\n");
    lab_check("the three begin alike: imbalance", none.first, fmax(aux.first, bias.first), 0);
    lab_below("auxiliary loss: imbalance of the last steps, of its beginning", 1, aux.last / aux.first);
    lab_below("        of what it is without", 1, aux.last / none.last);
    lab_below("bias: imbalance of the last steps, of its beginning", 1, bias.last / bias.first);
    lab_below("        of what it is without", 1, bias.last / none.last);
    lab_check_below("all three learn: loss of the last step, of the first, at most", 0.5,
                    fmax(none.loss / none.start, fmax(aux.loss / aux.start, bias.loss / bias.start)));
    return lab_close();
}
