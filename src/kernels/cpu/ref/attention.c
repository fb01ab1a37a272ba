/* attention.c - reference: rotary positions and attention.
 *
 * Attention of head h reads key/value head h / (H/G). Query t sees keys [0, visible(t)): all S of them, or
 * t + S - T + 1 when causal; with len, len[0] stands for S. A query that sees no key gives o = 0, lse = -inf.
 *   score(t,s) = scale q[t].k[s];  lse(t) = ln sum exp score;  p(t,s) = exp(score - lse);  o[t] = sum p v[s]
 *   dv[s] += p do[t];  dscore = p (do[t].v[s] - do[t].o[t]);  dq[t] += scale dscore k[s];  dk[s] += scale dscore q[t]
 * With step, probabilities are dropped: w(t,s) is 0 or 1 / (1 - drop.p), lse is that without dropout,
 *   o[t] = sum w p v[s];  dv[s] += w p do[t];  dscore = p (w do[t].v[s] - do[t].o[t])
 */
#include "kernels/cpu/ref/ref.h"

#include <math.h>
#include "base/rng.h"

/* Angles pos theta^(-2i/D). Llama 3: frequencies whose wavelength is longer than original / low_freq_factor are
 * divided by factor, shorter than original / high_freq_factor unchanged, in between interpolated linearly in original / wavelength. */
static double rope_frequency(const struct rope *rope, size_t i, size_t D)
{
    double f = pow(rope->theta, -2.0 * (double)i / (double)D);

    if (rope->factor == 1) return f;
    double turns = (double)rope->original * f / (2 * M_PI);
    if (turns < rope->low_freq_factor) return f / rope->factor;
    if (turns > rope->high_freq_factor) return f;
    double blend = (turns - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - blend) * f / rope->factor + blend * f;
}

static void rope_table(const struct call *c)
{
    const struct view *table = &c->out[0];
    size_t T = view_count(&c->in[0]), D = view_last(table);

    for (size_t i = 0; i < D / 2; i++) {
        double frequency = rope_frequency(&c->attr.rope, i, D);

        for (size_t t = 0; t < T; t++) {
            double angle = (double)ref_int(&c->in[0], t) * frequency;

            ref_put(table, t * D + i, cos(angle));
            ref_put(table, t * D + D / 2 + i, sin(angle));
        }
    }
}

static void rope(const struct call *c)
{
    const struct view *x = &c->in[0], *table = &c->in[1], *y = &c->out[0];
    size_t T = x->size[1], H = x->size[2], D = x->size[3], half = D / 2;
    double sign = c->attr.rotate.inverse ? -1 : 1;

    for (size_t row = 0; row < view_rows(x); row++)
        for (size_t i = 0; i < half; i++) {
            size_t t = row / H % T;
            double cosine = ref_get(table, t * D + i), sine = sign * ref_get(table, t * D + half + i);
            double a = ref_get(x, row * D + i), b = ref_get(x, row * D + half + i);

            ref_put(y, row * D + i, a * cosine - b * sine);
            ref_put(y, row * D + half + i, b * cosine + a * sine);
        }
}

struct sizes {
    size_t B, T, S, H, G, D, keys;
};

static struct sizes sizes_of(const struct call *c)
{
    const struct view *q = &c->in[0], *k = &c->in[1];
    struct sizes z = { q->size[0], q->size[1], k->size[1], q->size[2], k->size[2], q->size[3], k->size[1] };

    if (c->op == OP_ATTENTION && call_has_in(c, 3)) {
        int64_t keys = ref_int(&c->in[3], 0);

        ASSERT(keys >= 0 && (size_t)keys <= z.S);
        z.keys = (size_t)keys;
    }
    return z;
}

static size_t visible(const struct call *c, const struct sizes *z, size_t t)
{
    if (!c->attr.attention.causal) return z->keys;
    return t + 1 + z->keys > z->T ? t + 1 + z->keys - z->T : 0;
}

/* Row-major index of element 0 of a head at (b, t, h); for k and v at (b, s, h / (H/G)). */
static size_t at_query(const struct sizes *z, size_t b, size_t t, size_t h) { return ((b * z->T + t) * z->H + h) * z->D; }

static size_t at_key(const struct sizes *z, size_t b, size_t s, size_t h) { return ((b * z->S + s) * z->G + h / (z->H / z->G)) * z->D; }

static double dot(const struct view *a, size_t i, const struct view *b, size_t j, size_t D)
{
    double sum = 0;

    for (size_t d = 0; d < D; d++) sum += ref_get(a, i + d) * ref_get(b, j + d);
    return sum;
}

/* w of one (query, key) pair. */
static double drop_weight(const struct call *c, size_t b, size_t h, size_t t, size_t s)
{
    const struct attention_drop *d = &c->attr.attention.drop;
    int at = c->op == OP_ATTENTION ? 4 : 6;
    uint64_t sample = b;

    if (!call_has_in(c, at)) return 1;
    if (view_count(&c->in[at]) > 1) sample += (uint64_t)ref_int(&c->in[at], 1);
    uint64_t index = attention_drop_index(d, sample, h, t, s);
    return rng_u32(d->seed, d->stream ^ (uint64_t)ref_int(&c->in[at], 0), index) >= attention_drop_threshold(d->p) ? 1 / (1 - d->p) : 0;
}

static size_t attention_scratch(const struct call *c) { return c->in[1].size[1] * sizeof(double); }

static void attend(const struct call *c, const struct sizes *z, size_t b, size_t t, size_t h)
{
    const struct view *q = &c->in[0], *k = &c->in[1], *v = &c->in[2];
    size_t n = visible(c, z, t);
    double *score = c->scratch, most = -INFINITY, sum = 0;

    for (size_t s = 0; s < n; s++) {
        score[s] = c->attr.attention.scale * dot(q, at_query(z, b, t, h), k, at_key(z, b, s, h), z->D);
        most = fmax(most, score[s]);
    }
    for (size_t s = 0; s < n; s++) {
        score[s] = exp(score[s] - most);
        sum += score[s];
        score[s] *= drop_weight(c, b, h, t, s);
    }
    for (size_t d = 0; d < z->D; d++) {
        double o = 0;

        for (size_t s = 0; s < n; s++) o += score[s] / sum * ref_get(v, at_key(z, b, s, h) + d);
        ref_put(&c->out[0], at_query(z, b, t, h) + d, o);
    }
    ref_put(&c->out[1], (b * z->H + h) * z->T + t, n ? most + log(sum) : -INFINITY);
}

static void attention(const struct call *c)
{
    struct sizes z = sizes_of(c);

    for (size_t b = 0; b < z.B; b++)
        for (size_t t = 0; t < z.T; t++)
            for (size_t h = 0; h < z.H; h++) attend(c, &z, b, t, h);
}

/* w p and dscore of one (query, key) pair. */
static void pair(const struct call *c, const struct sizes *z, size_t b, size_t t, size_t s, size_t h, double *p, double *dscore)
{
    const struct view *q = &c->in[0], *k = &c->in[1], *v = &c->in[2];
    const struct view *o = &c->in[3], *lse = &c->in[4], *dout = &c->in[5];
    size_t query = at_query(z, b, t, h), key = at_key(z, b, s, h);
    double w = drop_weight(c, b, h, t, s);

    *p = exp(c->attr.attention.scale * dot(q, query, k, key, z->D) - ref_get(lse, (b * z->H + h) * z->T + t));
    *dscore = *p * (w * dot(dout, query, v, key, z->D) - dot(dout, query, o, query, z->D));
    *p *= w;
}

static size_t ref_attention_grad_scratch(const struct call *c)
{
    return (view_count(&c->in[0]) + 2 * view_count(&c->in[1])) * sizeof(double);
}

/* The sums are formed in scratch, so that gradients of half types are rounded once. */
static void attention_grad(const struct call *c)
{
    struct sizes z = sizes_of(c);
    size_t nq = view_count(&c->in[0]), nk = view_count(&c->in[1]);
    double *dq = c->scratch, *dk = dq + nq, *dv = dk + nk, p, dscore;

    for (size_t i = 0; i < nq + 2 * nk; i++) dq[i] = 0;
    for (size_t row = 0; row < z.B * z.H * z.T; row++) {
        size_t b = row / (z.H * z.T), h = row / z.T % z.H, t = row % z.T, query = at_query(&z, b, t, h);

        for (size_t s = 0; s < visible(c, &z, t); s++) {
            size_t key = at_key(&z, b, s, h);

            pair(c, &z, b, t, s, h, &p, &dscore);
            for (size_t d = 0; d < z.D; d++) {
                dq[query + d] += c->attr.attention.scale * dscore * ref_get(&c->in[1], key + d);
                dk[key + d] += c->attr.attention.scale * dscore * ref_get(&c->in[0], query + d);
                dv[key + d] += p * ref_get(&c->in[5], query + d);
            }
        }
    }
    for (size_t i = 0; i < nq; i++) ref_put(&c->out[0], i, dq[i]);
    for (size_t i = 0; i < nk; i++) {
        ref_put(&c->out[1], i, dk[i]);
        ref_put(&c->out[2], i, dv[i]);
    }
}

/* With lse = ln(exp lse + exp lse2) of both sets of keys: o = o exp(lse_old - lse) + o2 exp(lse2 - lse). */
static void attention_merge(const struct call *c)
{
    const struct view *o2 = &c->in[0], *o = &c->out[0];
    size_t T = o->size[1], H = o->size[2], D = o->size[3];

    for (size_t row = 0; row < view_rows(o); row++) {
        size_t stat = (row / (T * H) * H + row % H) * T + row / H % T;
        double a = ref_get(&c->out[1], stat), b = ref_get(&c->in[1], stat), most = fmax(a, b);

        if (most == -INFINITY) continue; /* no key yet */
        double sum = exp(a - most) + exp(b - most);
        for (size_t d = 0; d < D; d++)
            ref_put(o, row * D + d, (ref_get(o, row * D + d) * exp(a - most) + ref_get(o2, row * D + d) * exp(b - most)) / sum);
        ref_put(&c->out[1], stat, most + log(sum));
    }
}

const struct kernel kernels_ref_attention[] = {
    REF_ROW(ROPE_TABLE, rope_table, NULL),
    REF_ROW(ROPE, rope, NULL),
    REF_ROW(ATTENTION, attention, attention_scratch),
    REF_ROW(ATTENTION_GRAD, attention_grad, ref_attention_grad_scratch),
    REF_ROW(ATTENTION_MERGE, attention_merge, NULL),
    KERNELS_END,
};
