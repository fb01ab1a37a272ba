/* route.c - reference: the experts of a token, their weights, and the load-balancing losses.
 *
 * Scores s of a token: softmax of its logits, or the sigmoid of each. The K experts with the largest s + bias are chosen; ties go to the
 * lower index. weight = s, divided by the sum of the K chosen ones with route.normalize. With route.capacity an expert takes at most that
 * many tokens of one sample (the groups of GShard, Lepikhin et al. 2020): the first ones, or those with the largest s. The others are
 * dropped: their index is ~expert and their weight 0. Tokens after the real samples have the index ROUTE_PADDING and are not counted.
 *
 *   ds[k] = (dweight[k] - sum_j dweight[j] weight[j]) / sum s      with normalize, else dweight[k]; 0 where dropped
 *   dlogit[e] = s[e] (ds[e] - sum_k ds[k] s[k])                    softmax
 *   dlogit[e] = s[e] (1 - s[e]) ds[e]                              sigmoid
 *
 * Losses (Fedus et al. 2021; Zoph et al. 2022; ops.h compares the definitions). Tokens are in G groups, each sample its own or all in one.
 * P[g,e] is the sum over this rank's tokens of the scores, divided by their sum for each token; n[g] = sum_e load[g,e] / K are the group's
 * tokens on all ranks that have some of them; N are those of the step (samples[1] * tokens; sum n without samples):
 *
 *   loss = aux E / N sum_g sum_e load[g,e] P[g,e] / n[g]  +  z / N sum_tokens (log sum exp logits)^2
 */
#include "kernels/cpu/ref/ref.h"

#include <math.h>
#include "kernels/cpu/route.h"

/* Real rows of logits[B,T,E]: those of the first samples[0] samples. */
static size_t real_rows(const struct view *logits, const struct call *c, int samples)
{
    size_t rows = view_rows(logits);

    return call_has_in(c, samples) ? MIN(rows, (size_t)ref_get(&c->in[samples], 0) * (rows / MAX(logits->size[0], 1))) : rows;
}

static void scores(const struct view *logits, size_t row, int sigmoid, double *s)
{
    size_t E = view_last(logits);
    double most = -INFINITY, sum = 0;

    for (size_t e = 0; e < E; e++) most = fmax(most, s[e] = ref_get(logits, row * E + e));
    for (size_t e = 0; e < E; e++) sum += s[e] = sigmoid ? 1 / (1 + exp(-s[e])) : exp(s[e] - most);
    for (size_t e = 0; e < E && !sigmoid; e++) s[e] /= sum;
}

static size_t bytes_of_scores(const struct call *c) { return view_last(&c->in[c->op == OP_ROUTE_GRAD ? 1 : 0]) * 2 * sizeof(double); }

/* The K largest of s + bias, in falling order. */
static void ref_route_choose(const struct call *c, size_t row, const double *s, double *open)
{
    size_t E = view_last(&c->in[0]), K = view_last(&c->out[0]);

    for (size_t e = 0; e < E; e++) {
        open[e] = s[e] + (call_has_in(c, 1) ? ref_get(&c->in[1], e) : 0);
        open[e] = ROUTE_ORDER(open[e]);
    }
    for (size_t k = 0; k < K; k++) {
        size_t best = E;

        for (size_t e = 0; e < E; e++)
            if (ROUTE_IS_OPEN(open[e]) && (best == E || open[e] > open[best])) best = e;
        open[best] = ROUTE_CHOSEN;
        ref_put(&c->out[0], row * K + k, s[best]);
        ref_put_int(&c->out[1], row * K + k, (int64_t)best);
    }
}

static double score_order(const struct call *c, size_t i)
{
    double s = ref_get(&c->out[0], i);

    return ROUTE_ORDER(s);
}

/* Of the entries [begin, end) for expert e, the one that is dropped first if there are too many. */
static size_t first_to_go(const struct call *c, size_t begin, size_t end, size_t e)
{
    size_t worst = end;

    for (size_t i = begin; i < end; i++)
        if (ref_int(&c->out[1], i) == (int64_t)e &&
            (worst == end || !c->attr.route.by_probability || score_order(c, i) <= score_order(c, worst)))
            worst = i;
    return worst;
}

static void drop(const struct call *c, size_t begin, size_t end)
{
    size_t E = view_last(&c->in[0]);

    for (size_t e = 0; e < E; e++) {
        size_t n = 0;

        for (size_t i = begin; i < end; i++) n += ref_int(&c->out[1], i) == (int64_t)e;
        for (; n > c->attr.route.capacity; n--) ref_put_int(&c->out[1], first_to_go(c, begin, end, e), ~(int64_t)e);
    }
}

/* Scores to weights. */
static void weigh(const struct call *c, size_t row, size_t K)
{
    double sum = 0;

    for (size_t k = 0; k < K; k++) sum += ref_get(&c->out[0], row * K + k);
    for (size_t i = row * K; i < (row + 1) * K; i++)
        ref_put(&c->out[0], i,
                ref_int(&c->out[1], i) < 0 ? 0
                : c->attr.route.normalize  ? ref_get(&c->out[0], i) / sum
                                           : ref_get(&c->out[0], i));
}

static void route(const struct call *c)
{
    const struct view *logits = &c->in[0];
    size_t E = view_last(logits), K = view_last(&c->out[0]), rows = view_rows(logits), real = real_rows(logits, c, 2);
    size_t T = rows / MAX(logits->size[0], 1);
    double *s = c->scratch;

    for (size_t i = real * K; i < rows * K; i++) {
        ref_put(&c->out[0], i, 0);
        ref_put_int(&c->out[1], i, ROUTE_PADDING);
    }
    for (size_t row = 0; row < real; row++) {
        scores(logits, row, c->attr.route.sigmoid, s);
        ref_route_choose(c, row, s, s + E);
    }
    for (size_t row = 0; row < real && c->attr.route.capacity; row += T) drop(c, row * K, MIN(row + T, real) * K);
    for (size_t row = 0; row < real; row++) weigh(c, row, K);
}

static size_t expert_of(int64_t index) { return (size_t)(index < 0 ? ~index : index); }

static void route_grad_row(const struct call *c, size_t row, double *s, double *ds)
{
    const struct view *dw = &c->in[0], *logits = &c->in[1], *index = &c->in[2];
    size_t E = view_last(logits), K = view_last(dw);
    double sum = 0, mean = 0, inner = 0;

    scores(logits, row, c->attr.route.sigmoid, s);
    for (size_t e = 0; e < E; e++) ds[e] = 0;
    for (size_t k = 0; k < K; k++) {
        size_t e = expert_of(ref_int(index, row * K + k));

        sum += s[e];
        ds[e] = ref_int(index, row * K + k) < 0 ? 0 : ref_get(dw, row * K + k);
        mean += ds[e] * s[e];
    }
    for (size_t k = 0; k < K; k++) {
        size_t e = expert_of(ref_int(index, row * K + k));

        if (c->attr.route.normalize) ds[e] = (ds[e] - mean / sum) / sum;
        inner += ds[e] * s[e];
    }
    for (size_t e = 0; e < E; e++)
        ref_put(&c->out[0], row * E + e, c->attr.route.sigmoid ? ds[e] * s[e] * (1 - s[e]) : s[e] * (ds[e] - inner));
}

static void route_grad(const struct call *c)
{
    size_t E = view_last(&c->in[1]), K = view_last(&c->in[0]);
    double *s = c->scratch;

    for (size_t row = 0; row < view_rows(&c->in[1]); row++)
        if (ref_int(&c->in[2], row * K) != ROUTE_PADDING)
            route_grad_row(c, row, s, s + E);
        else
            for (size_t e = 0; e < E; e++) ref_put(&c->out[0], row * E + e, 0);
}

/* ---- losses ---- */

static void route_load(const struct call *c)
{
    size_t E = view_last(&c->out[0]), G = view_rows(&c->out[0]), n = view_count(&c->in[0]), each = n / MAX(G, 1);

    for (size_t i = 0; i < G * E; i++) ref_put(&c->out[0], i, 0);
    for (size_t i = 0; i < n; i++)
        if (ref_int(&c->in[0], i) != ROUTE_PADDING) ref_add(&c->out[0], i / each * E + expert_of(ref_int(&c->in[0], i)), 1);
}

struct factors {
    double aux, z;
}; /* aux: of load[g,e] P[g,e]; z: of a token's square */

static double load_sum(const struct call *c, size_t group)
{
    size_t E = view_last(&c->in[0]);
    double n = 0;

    for (size_t e = 0; e < E; e++) n += ref_get(&c->in[1], group * E + e);
    return n / (double)c->attr.router_loss.chosen;
}

static struct factors factors_of(const struct call *c, size_t group)
{
    double n = load_sum(c, group), N = 0;

    for (size_t g = 0; g < view_rows(&c->in[1]); g++) N += load_sum(c, g);
    if (call_has_in(c, 2)) N = ref_get(&c->in[2], 1) * (double)c->attr.router_loss.tokens;
    if (n == 0 || N == 0) return (struct factors){ 0, 0 };
    return (struct factors){ c->attr.router_loss.aux * (double)view_last(&c->in[0]) / (n * N), c->attr.router_loss.z / N };
}

/* The coefficients for the group of this row; *load: the start of the group's loads. */
static struct factors row_factors(const struct call *c, size_t row, size_t *load)
{
    size_t group = row * view_rows(&c->in[1]) / MAX(view_rows(&c->in[0]), 1);

    *load = group * view_last(&c->in[0]);
    return factors_of(c, group);
}

static double log_sum_exp(const struct view *logits, size_t row)
{
    size_t E = view_last(logits);
    double most = -INFINITY, sum = 0;

    for (size_t e = 0; e < E; e++) most = fmax(most, ref_get(logits, row * E + e));
    for (size_t e = 0; e < E; e++) sum += exp(ref_get(logits, row * E + e) - most);
    return most + log(sum);
}

/* The sum of all scores. */
static double route_total(const double *s, size_t E)
{
    double sum = 0;

    for (size_t e = 0; e < E; e++) sum += s[e];
    return sum;
}

static void router_loss(const struct call *c)
{
    const struct view *logits = &c->in[0];
    size_t E = view_last(logits), real = real_rows(logits, c, 2), load;
    double *s = c->scratch, loss = 0;

    for (size_t row = 0; row < real; row++) {
        struct factors f = row_factors(c, row, &load);
        double lse = log_sum_exp(logits, row);

        scores(logits, row, c->attr.router_loss.sigmoid, s);
        double sum = route_total(s, E);
        for (size_t e = 0; e < E; e++) loss += f.aux * ref_get(&c->in[1], load + e) * s[e] / sum;
        loss += f.z * lse * lse;
    }
    ref_put(&c->out[0], 0, loss);
}

/* With p = s / sum s and g[e] = aux load[g,e]: dp/dlogit as for a softmax; for sigmoids ds[e] = (g[e] - sum g p) / sum s. */
static void router_loss_grad(const struct call *c)
{
    const struct view *logits = &c->in[0];
    size_t E = view_last(logits), real = real_rows(logits, c, 2), load;
    double *s = c->scratch, dloss = ref_get(&c->in[3], 0);

    for (size_t i = real * E; i < view_count(logits); i++) ref_put(&c->out[0], i, 0);
    for (size_t row = 0; row < real; row++) {
        struct factors f = row_factors(c, row, &load);
        double lse = log_sum_exp(logits, row), mean = 0;

        scores(logits, row, c->attr.router_loss.sigmoid, s);
        double sum = route_total(s, E);
        for (size_t e = 0; e < E; e++) mean += f.aux * ref_get(&c->in[1], load + e) * s[e] / sum;
        for (size_t e = 0; e < E; e++) {
            double d = (f.aux * ref_get(&c->in[1], load + e) - mean) * s[e] / sum * (c->attr.router_loss.sigmoid ? 1 - s[e] : 1);

            d += 2 * f.z * lse * exp(ref_get(logits, row * E + e) - lse);
            ref_put(&c->out[0], row * E + e, dloss * d);
        }
    }
}

/* ---- balance without a loss ---- */

/* Integers: an even load gives exactly 0, in whatever order ranks and micro-batches are added. */
static void route_excess(const struct call *c)
{
    size_t E = view_count(&c->out[0]), K = view_last(&c->in[0]), T = view_rows(&c->in[0]) / MAX(c->in[0].size[0], 1);
    size_t shares = (size_t)MAX(c->attr.route_excess.shares, 1), share = (size_t)c->attr.route_excess.share;
    double *load = c->scratch, all = 0;

    for (size_t e = 0; e < E; e++) load[e] = 0;
    for (size_t i = 0; i < view_count(&c->in[0]); i++) {
        size_t t = i / K % T;

        if (t < T * share / shares || t >= T * (share + 1) / shares || ref_int(&c->in[0], i) == ROUTE_PADDING) continue;
        load[expert_of(ref_int(&c->in[0], i))]++;
        all++;
    }
    for (size_t e = 0; e < E; e++) ref_add(&c->out[0], e, (double)E * load[e] - all);
}

static size_t excess_scratch(const struct call *c) { return view_count(&c->out[0]) * sizeof(double); }

/* With a master copy, the master is updated and p is its rounding. */
static void sign_step(const struct call *c)
{
    for (size_t i = 0; i < view_count(&c->in[0]); i++) {
        const struct view *exact = &c->out[call_has_out(c, 1) ? 1 : 0];
        double g = ref_get(&c->in[0], i);

        ref_add(exact, i, g > 0 ? -c->attr.optim.sign_rate : g < 0 ? c->attr.optim.sign_rate : 0);
        if (call_has_out(c, 1)) ref_put(&c->out[0], i, ref_get(exact, i));
    }
}

const struct kernel kernels_ref_route[] = {
    REF_ROW(ROUTE, route, bytes_of_scores),
    REF_ROW(ROUTE_GRAD, route_grad, bytes_of_scores),
    REF_ROW(ROUTER_LOSS, router_loss, bytes_of_scores),
    REF_ROW(ROUTER_LOSS_GRAD, router_loss_grad, bytes_of_scores),
    REF_ROW(ROUTE_LOAD, route_load, NULL),
    REF_ROW(ROUTE_EXCESS, route_excess, excess_scratch),
    REF_ROW(SIGN_STEP, sign_step, NULL),
    KERNELS_END,
};
