/* optim.cu - the updates; cpu/ref/optim.c has the formulas. A thread updates four elements. What changes from step to step (lr, bias
 * corrections, the clip factor, the norms) is read from the device.
 *
 * A launch works on many parameters (multi-tensor): they are a list in its arguments, each with blocks of its own. Every element and every
 * sum is computed as by a launch for that parameter alone.
 */
#include "kernels/cuda/philox.h"
#include "kernels/cuda/total_list.h"

enum { GRADIENT, PARAMETER, FIRST, SECOND, MASTER, ARRAYS };
enum { PARAMETERS = 35 }; /* parameters of one launch: they fit into the 4 KB of arguments that every GPU accepts */

struct parameter {
    global<byte> data[ARRAYS]; /* null: absent */
    global<double> sums;       /* the norms that LAMB and LARS read, or where norm_parts leaves its sums; null: none */
    size_t count;
    unsigned first; /* its first block */
    float scale;    /* weight decay; SIGN_STEP: the step */
    unsigned char type[ARRAYS];
    unsigned long long stream; /* for stochastic rounding: the fields of struct rounding */
    size_t at, begin, run, stride;
};

struct update {
    int op, items;
    float beta1, beta2, rest1, rest2, eps, momentum, trust; /* rest: 1 - beta */
    int nesterov, decoupled;
    struct array hyper, factor;
    unsigned long long seed; /* seed of stochastic rounding */
    struct parameter of[PARAMETERS];
};
LAUNCH_ARGUMENTS_FIT(struct update);

/* Values that all elements of a parameter share. */
struct rates {
    float lr, c1, c2, factor, ratio, decay;
};

static __device__ inline struct rates update_rates(const struct update &u, const struct parameter &x)
{
    struct rates r = { 0, 0, 0, 1, 1, x.scale };

    if (u.hyper.given) {
        r.lr = array_get(u.hyper, 0);
        r.c1 = array_get(u.hyper, 1);
        r.c2 = array_get(u.hyper, 2);
    }
    if (u.factor.given) r.factor = array_get(u.factor, 0);
    if ((u.op == OP_LAMB || u.op == OP_LARS) && x.sums) {
        double pp = x.sums[0], other = x.sums[1];

        if (pp > 0 && other > 0)
            r.ratio = u.op == OP_LAMB ? (float)(sqrt(pp) / sqrt(other)) : (float)(u.trust * sqrt(pp) / (sqrt(other) + r.decay * sqrt(pp)));
    }
    return r;
}

/* Four elements of an array of x, zeros if it is absent; and back. */
static __device__ inline float4s parameter_load(const struct parameter &x, int k, size_t i)
{
    float4s zeros = { { 0, 0, 0, 0 } };

    return x.data[k] ? array_load4(array_at(x.data[k], x.type[k]), i, x.count - i, true) : zeros;
}

static __device__ inline void parameter_store(const struct parameter &x, int k, size_t i, float4s v)
{
    if (x.data[k]) array_store4(array_at(x.data[k], x.type[k]), i, x.count - i, true, v);
}

static __device__ inline float adam_moments(const struct update &u, const struct rates &r, float g, float *m, float *v)
{
    *m = u.beta1 * *m + u.rest1 * g;
    *v = u.beta2 * *v + u.rest2 * g * g;
    return r.c1 * *m / (sqrtf(r.c2 * *v) + u.eps);
}

static __device__ inline float momentum_step(const struct update &u, const struct parameter &x, float g, float *m)
{
    if (!x.data[FIRST]) return g;
    *m = u.momentum * *m + g;
    return u.nesterov ? g + u.momentum * *m : *m;
}

static __device__ inline float update_one(const struct update &u, const struct parameter &x, const struct rates &r, float p, float g,
                                          float *m, float *v)
{
    float decay = r.decay * p;

    g *= r.factor;
    switch (u.op) {
    case OP_SGD:
        if (!u.decoupled) g += decay;
        return p - (u.decoupled ? r.lr * decay : 0) - r.lr * momentum_step(u, x, g, m);
    case OP_ADAM:
        if (!u.decoupled) g += decay;
        return p - (u.decoupled ? r.lr * decay : 0) - r.lr * adam_moments(u, r, g, m, v);
    case OP_LAMB: return p - r.lr * r.ratio * (r.c1 * *m / (sqrtf(r.c2 * *v) + u.eps) + decay);
    case OP_LARS: return p - r.lr * momentum_step(u, x, r.ratio * (g + decay), m);
    default: return p + (g > 0 ? -r.decay : g < 0 ? r.decay : 0);
    }
}

/* Elements i .. i + 3 of x, as struct rounding of kernel.h says. t: the step. */
static __device__ inline float4s round_stochastically(const struct update &u, const struct parameter &x, unsigned t, size_t i, float4s p)
{
    size_t row = (x.at + i) / x.run, in_row = (x.at + i) % x.run;
    unsigned long long done = ~0ull;
    unsigned word[4] = {};

    for (int k = 0; k < 4; k++) {
        unsigned long long index = x.begin + row * x.stride + in_row;

        if (index / 4 != done) philox(u.seed, x.stream ^ t, done = index / 4, word);
        if (p.v[k] == p.v[k])
            p.v[k] = __uint_as_float((__float_as_uint(p.v[k]) + (philox_word(word, (unsigned)(index % 4)) >> 16)) & 0xffff0000u);
        if (++in_row == x.run) {
            in_row = 0;
            row++;
        }
    }
    return p;
}

static __global__ void __launch_bounds__(BLOCK_THREADS) update_packs(const __grid_constant__ struct update u)
{
    const struct parameter &x = u.of[list_find(u.of, u.items)];
    size_t i = ((size_t)(blockIdx.x - x.first) * BLOCK_THREADS + threadIdx.x) * 4;
    float4s m;

    if (i >= x.count) return;
    struct rates r = update_rates(u, x);
    float4s p = parameter_load(x, x.data[MASTER] ? MASTER : PARAMETER, i);
    float4s g = parameter_load(x, GRADIENT, i);
    m = parameter_load(x, FIRST, i);
    float4s v = parameter_load(x, SECOND, i);
    for (int k = 0; k < 4; k++) p.v[k] = update_one(u, x, r, p.v[k], g.v[k], &m.v[k], &v.v[k]);
    if (x.run) p = round_stochastically(u, x, (unsigned)array_get(u.hyper, 3), i, p);
    parameter_store(x, MASTER, i, p);
    parameter_store(x, PARAMETER, i, p);
    if (u.op == OP_LAMB) return;
    parameter_store(x, FIRST, i, m);
    parameter_store(x, SECOND, i, v);
}

/* LAMB_MOMENTS updates m and v; it and LARS_NORMS leave sums of squares: of p, and of the step or the gradient. */
static __global__ void __launch_bounds__(TOTAL_THREADS) norm_parts(const __grid_constant__ struct update u)
{
    int at = list_find(u.of, u.items);
    const struct parameter &x = u.of[at];
    unsigned block = blockIdx.x - x.first, blocks = list_end(u.of, u.items, at) - x.first;
    struct rates r = update_rates(u, x);
    double pp = 0, other = 0;

    EACH_TOTAL_OF(i, x.count, block, blocks)
    {
        float4s g = parameter_load(x, GRADIENT, i), p = parameter_load(x, PARAMETER, i), m = parameter_load(x, FIRST, i),
                v = parameter_load(x, SECOND, i);

        for (int k = 0; k < 4; k++) {
            float step = r.factor * g.v[k];

            if (u.op == OP_LAMB_MOMENTS) step = adam_moments(u, r, step, &m.v[k], &v.v[k]) + r.decay * p.v[k];
            if (i + k >= x.count) continue;
            pp += (double)p.v[k] * p.v[k];
            other += (double)step * step;
        }
        parameter_store(x, FIRST, i, m);
        parameter_store(x, SECOND, i, v);
    }
    if (!x.sums) return;
    total_leave_of(block, x.sums, 2, 0, pp);
    total_leave_of(block, x.sums, 2, 1, other);
}

/* ---- lists ---- */

/* The roles of an op's operands; -1: it has none. */
struct places {
    int hyper, factor, norms; /* inputs */
    int array[ARRAYS];        /* inputs, or OUT + outputs */
};
enum { OUT = 100 };

static struct places update_places(int op)
{
    switch (op) {
    case OP_SGD: return { 1, 2, -1, { 0, OUT, OUT + 1, -1, OUT + 2 } };
    case OP_ADAM: return { 1, 2, -1, { 0, OUT, OUT + 1, OUT + 2, OUT + 3 } };
    case OP_LAMB: return { 2, -1, 3, { -1, OUT, 0, 1, OUT + 1 } };
    case OP_LARS: return { 1, 2, 3, { 0, OUT, OUT + 1, -1, OUT + 2 } };
    case OP_SIGN_STEP: return { -1, -1, -1, { 0, OUT, -1, -1, OUT + 1 } };
    case OP_LAMB_MOMENTS: return { 1, 2, -1, { 0, 3, OUT, OUT + 1, -1 } };
    default: return { -1, 1, -1, { 0, 2, -1, -1, -1 } }; /* LARS_NORMS */
    }
}

/* NULL: the call does not have it. */
static const struct view *place_view(const struct call *c, int place)
{
    if (place >= OUT) return call_has_out(c, place - OUT) ? &c->out[place - OUT] : NULL;
    return place >= 0 && call_has_in(c, place) ? &c->in[place] : NULL;
}

static struct array place_array(const struct call *c, int place)
{
    const struct view *v = place_view(c, place);

    return v ? array_of(v) : array_none();
}

static struct update update_of(const struct call *c)
{
    const struct optimizer_attr *a = &c->attr.optim;
    struct places at = update_places(c->op);
    struct update u = {};

    u.op = c->op;
    u.hyper = place_array(c, at.hyper);
    u.factor = place_array(c, at.factor);
    if (c->op == OP_SIGN_STEP) return u;
    u.beta1 = a->beta1;
    u.beta2 = a->beta2;
    u.rest1 = (float)(1 - (double)a->beta1);
    u.rest2 = (float)(1 - (double)a->beta2);
    u.eps = a->eps;
    u.momentum = a->momentum;
    u.trust = a->trust;
    u.nesterov = a->nesterov;
    u.decoupled = a->decoupled;
    u.seed = a->rounding.seed;
    return u;
}

static bool same_bytes(const struct call *a, const struct call *b, int place)
{
    const struct view *x = place_view(a, place), *y = place_view(b, place);

    return x && y ? x->data == y->data && x->dtype == y->dtype : !x && !y;
}

/* The calls differ in their parameters alone. */
static bool update_joins(const struct call *a, const struct call *b)
{
    const struct optimizer_attr *x = &a->attr.optim, *y = &b->attr.optim;
    struct places at = update_places(a->op);

    if (a->op == OP_SIGN_STEP) return true;
    return x->beta1 == y->beta1 && x->beta2 == y->beta2 && x->eps == y->eps && x->momentum == y->momentum && x->trust == y->trust &&
           x->nesterov == y->nesterov && x->decoupled == y->decoupled && x->rounding.seed == y->rounding.seed &&
           same_bytes(a, b, at.hyper) && same_bytes(a, b, at.factor);
}

static void update_add_rounding(struct parameter *x, const struct call *c)
{
    const struct rounding *r = &c->attr.optim.rounding;

    x->stream = r->stream;
    x->at = r->first;
    x->begin = r->begin;
    x->run = r->run;
    x->stride = r->stride;
}

/* first: its first block. */
static struct parameter *update_add(struct update *u, const struct call *c, unsigned first)
{
    struct places at = update_places(c->op);
    struct parameter *x = &u->of[u->items++];
    const struct view *v;

    for (int k = 0; k < ARRAYS; k++)
        if ((v = place_view(c, at.array[k]))) {
            x->data[k] = global_of<byte>(v->data);
            x->type[k] = (unsigned char)v->dtype;
        }
    if ((v = place_view(c, at.norms))) x->sums = global_of<double>(v->data);
    x->count = view_count(place_view(c, at.array[PARAMETER]));
    x->scale = c->op == OP_SIGN_STEP ? (float)c->attr.optim.sign_rate : c->attr.optim.weight_decay;
    x->first = first;
    update_add_rounding(x, c);
    return x;
}

/* Chooses the calls, of n, that one launch takes; returns how many. */
typedef int update_list_fn(const struct call *const *c, int n);

static int run_update_list(const struct call *const *c, int n)
{
    struct update u = update_of(c[0]);
    unsigned blocks = 0;

    while (u.items < n && u.items < PARAMETERS && update_joins(c[0], c[u.items]))
        blocks += blocks_of(update_add(&u, c[u.items], blocks)->count, 4 * BLOCK_THREADS);
    launch(c[0], KERNEL(update_packs), blocks, BLOCK_THREADS, 0, u);
    return u.items;
}

static size_t norms_scratch(const struct call *c) { return total_bytes(view_count(&c->in[0]), 2); }

static int run_norms_list(const struct call *const *c, int n)
{
    int out = c[0]->op == OP_LAMB_MOMENTS ? 2 : 0;
    struct update u = update_of(c[0]);
    struct total_list t = {};
    const void *before = NULL;
    unsigned blocks = 0;

    t.n = 2;
    while (u.items < n && u.items < PARAMETERS && update_joins(c[0], c[u.items])) {
        const struct call *one = c[u.items];
        struct parameter *x = update_add(&u, one, blocks);

        blocks += total_blocks(x->count);
        if (!call_has_out(one, out)) continue;
        x->sums = global_of<double>(one->scratch);
        total_list_add(&t, one->scratch, one->out[out].data, before, blocks - x->first);
        before = one->out[out].data;
    }
    launch(c[0], KERNEL(norm_parts), blocks, TOTAL_THREADS, 0, u);
    if (t.items) total_list_launch(c[0], &t);
    return u.items;
}

static void run_lists(update_list_fn *run, const struct call *const *c, int n)
{
    for (int k = 0; k < n;) k += run(c + k, n - k);
}

static void run_update(const struct call *c) { run_update_list(&c, 1); }
static void run_update_many(const struct call *const *c, int n) { run_lists(run_update_list, c, n); }
static void run_norms(const struct call *c) { run_norms_list(&c, 1); }
static void run_norms_many(const struct call *const *c, int n) { run_lists(run_norms_list, c, n); }

/* Everything is an array, except the norms. */
static bool update_accepts(const struct call *c)
{
    for (int i = 0; i < c->nin; i++)
        if (view_given(&c->in[i]) && !is_array(&c->in[i]) && !(is_array_of(&c->in[i], LS_F64))) return false;
    for (int i = 0; i < c->nout; i++)
        if (view_given(&c->out[i]) && !is_array(&c->out[i]) && !(is_array_of(&c->out[i], LS_F64))) return false;
    return true;
}

const struct kernel kernels_cuda_optim[] = {
    CUDA_MANY_ROW(SGD, update_accepts, NULL, run_update, run_update_many),
    CUDA_MANY_ROW(ADAM, update_accepts, NULL, run_update, run_update_many),
    CUDA_MANY_ROW(LAMB, update_accepts, NULL, run_update, run_update_many),
    CUDA_MANY_ROW(LARS, update_accepts, NULL, run_update, run_update_many),
    CUDA_MANY_ROW(SIGN_STEP, update_accepts, NULL, run_update, run_update_many),
    CUDA_MANY_ROW(LAMB_MOMENTS, update_accepts, norms_scratch, run_norms, run_norms_many),
    CUDA_MANY_ROW(LARS_NORMS, update_accepts, norms_scratch, run_norms, run_norms_many),
    CUDA_ROWS_END,
};
