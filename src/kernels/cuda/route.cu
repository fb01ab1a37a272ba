/* route.cu - the experts of a token, their weights, and the losses that balance them; cpu/ref/route.c has the formulas. A warp a token. */
#include "kernels/cuda/total.h"

#include "kernels/cpu/route.h"

enum { WARPS = ROWS_MOST };

/* This warp's token. */
static __device__ inline size_t token_index(void) { return (size_t)blockIdx.x * blockDim.y + threadIdx.y; }

/* Rows of the first samples[0] samples. */
static __device__ inline size_t real_rows(struct array samples, size_t rows, size_t T)
{
    size_t real = samples.given ? (size_t)array_get(samples, 0) * T : rows;

    return min(real, rows);
}

/* Of a token's logits: the largest one and the sum of exp(logit - it). */
static __device__ inline void token_statistics(struct array logits, size_t row, size_t E, float *most, float *sum)
{
    *most = -INFINITY;
    *sum = 0;
    for (size_t e = threadIdx.x; e < E; e += 32) *most = fmaxf(*most, array_get(logits, row * E + e));
    *most = warp_reduce<largest_of>(*most);
    for (size_t e = threadIdx.x; e < E; e += 32) *sum += expf(array_get(logits, row * E + e) - *most);
    *sum = warp_reduce<sum_of>(*sum);
}

static __device__ inline float token_score(float logit, int sigmoid, float most, float sum)
{
    return sigmoid ? 1 / (1 + expf(-logit)) : expf(logit - most) / sum;
}

/* ---- ROUTE ---- */

struct route {
    struct array logits, bias, samples, weight;
    global<int> index, dropped;
    global<float> score, open; /* scratch [rows, E]: a lane reads what it wrote */
    size_t rows, T, E, K, capacity;
    int sigmoid, normalize, by_probability;
};

/* The largest value over the warp, and of equal ones the one of the lowest index. */
static __device__ inline void warp_best(float *value, int *at)
{
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        float other = __shfl_xor_sync((unsigned)ALL_LANES, *value, lanes);
        int its = __shfl_xor_sync((unsigned)ALL_LANES, *at, lanes);

        if (other > *value || (other == *value && its < *at)) {
            *value = other;
            *at = its;
        }
    }
}

static __global__ void route_choose(const __grid_constant__ struct route z)
{
    size_t row = token_index();
    float most, sum;

    if (row >= z.rows) return;
    if (row >= real_rows(z.samples, z.rows, z.T)) {
        for (size_t k = threadIdx.x; k < z.K; k += 32) {
            array_put(z.weight, row * z.K + k, 0);
            z.index[row * z.K + k] = ROUTE_PADDING;
        }
        return;
    }
    token_statistics(z.logits, row, z.E, &most, &sum);
    for (size_t e = threadIdx.x; e < z.E; e += 32) {
        float s = token_score(array_get(z.logits, row * z.E + e), z.sigmoid, most, sum);
        float open = s + (z.bias.given ? array_get(z.bias, e) : 0);

        z.score[row * z.E + e] = s;
        z.open[row * z.E + e] = ROUTE_ORDER(open);
    }
    for (size_t k = 0; k < z.K; k++) {
        float best = -INFINITY;
        int at = INT32_MAX;

        for (size_t e = threadIdx.x; e < z.E; e += 32) {
            float value = z.open[row * z.E + e];

            if (!ROUTE_IS_OPEN(value) || (at != INT32_MAX && !(value > best))) continue;
            best = value;
            at = (int)e;
        }
        warp_best(&best, &at); /* one of the E > k experts */
        if (threadIdx.x != (unsigned)at % 32) continue;
        z.open[row * z.E + at] = ROUTE_CHOSEN;
        array_put(z.weight, row * z.K + k, z.score[row * z.E + at]);
        z.index[row * z.K + k] = at;
    }
}

/* A choice is dropped if its expert has already taken its capacity from this sample. */
static __global__ void __launch_bounds__(BLOCK_THREADS) route_drop(const __grid_constant__ struct route z)
{
    size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x, real = real_rows(z.samples, z.rows, z.T) * z.K, before = 0;

    if (i >= real) return;
    size_t begin = i / (z.T * z.K) * z.T * z.K;
    size_t end = min(begin + z.T * z.K, real);
    int e = z.index[i];
    float mine = array_get(z.weight, i);
    mine = ROUTE_ORDER(mine);
    for (size_t j = begin; j < (z.by_probability ? end : i); j++) {
        if (z.index[j] != e) continue;
        float its = array_get(z.weight, j);
        its = ROUTE_ORDER(its);
        before += z.by_probability ? its > mine || (its == mine && j < i) : 1;
    }
    z.dropped[i] = before >= z.capacity;
}

/* Scores to weights. A thread a token. */
static __global__ void __launch_bounds__(BLOCK_THREADS) route_weigh(const __grid_constant__ struct route z)
{
    size_t row = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    float sum = 0;

    if (row >= real_rows(z.samples, z.rows, z.T)) return;
    for (size_t i = row * z.K; i < (row + 1) * z.K; i++) sum += array_get(z.weight, i);
    float factor = 1 / sum;
    for (size_t i = row * z.K; i < (row + 1) * z.K; i++) {
        if (z.capacity && z.dropped[i]) {
            z.index[i] = ~z.index[i];
            array_put(z.weight, i, 0);
        } else if (z.normalize) {
            array_put(z.weight, i, array_get(z.weight, i) * factor);
        }
    }
}

static size_t route_scratch(const struct call *c)
{
    return 2 * view_count(&c->in[0]) * sizeof(float) + view_count(&c->out[1]) * sizeof(int);
}

static void run_route(const struct call *c)
{
    const struct view *logits = &c->in[0];
    struct route z = {};
    size_t E = view_last(logits);

    z.logits = array_in(c, 0);
    z.bias = array_in(c, 1);
    z.samples = array_in(c, 2);
    z.weight = array_out(c, 0);
    z.index = global_of<int>(c->out[1].data);
    z.rows = view_rows(logits);
    z.T = logits->size[1];
    z.E = E;
    z.K = view_last(&c->out[0]);
    z.score = global_of<float>(c->scratch);
    z.open = z.score + (ptrdiff_t)(z.rows * E);
    z.dropped = global_as<int>(z.open + (ptrdiff_t)(z.rows * E));
    z.capacity = c->attr.route.capacity;
    z.sigmoid = c->attr.route.sigmoid;
    z.normalize = c->attr.route.normalize;
    z.by_probability = c->attr.route.by_probability;
    launch(c, KERNEL(route_choose), blocks_of(z.rows, WARPS), dim3(32, WARPS), 0, z);
    if (z.capacity) launch(c, KERNEL(route_drop), blocks_of(z.rows * z.K, BLOCK_THREADS), BLOCK_THREADS, 0, z);
    if (z.capacity || z.normalize) launch(c, KERNEL(route_weigh), blocks_of(z.rows, BLOCK_THREADS), BLOCK_THREADS, 0, z);
}

/* ---- ROUTE_GRAD ---- */

static __device__ inline int expert_of(int index) { return index < 0 ? ~index : index; }

struct route_grad {
    struct array dweight, logits, dlogits;
    global<const int> index;
    size_t rows, E, K;
    int sigmoid, normalize;
};

static __device__ inline float score_at(const struct route_grad &z, size_t row, size_t e, float most, float sum)
{
    return token_score(array_get(z.logits, row * z.E + e), z.sigmoid, most, sum);
}

static __global__ void route_gradient(const __grid_constant__ struct route_grad z)
{
    size_t row = token_index();
    float most, total, sum = 0, mean = 0, inner = 0;

    if (row >= z.rows) return;
    if (z.index[row * z.K] == ROUTE_PADDING) {
        for (size_t e = threadIdx.x; e < z.E; e += 32) array_put(z.dlogits, row * z.E + e, 0);
        return;
    }
    token_statistics(z.logits, row, z.E, &most, &total);
    for (size_t k = row * z.K; k < (row + 1) * z.K; k++) {
        float s = score_at(z, row, (size_t)expert_of(z.index[k]), most, total);

        sum += s;
        mean += z.index[k] < 0 ? 0 : array_get(z.dweight, k) * s;
    }
    inner = z.normalize ? 0 : mean; /* sum of ds s; with normalize ds is its difference from the mean, and this is 0 */
    for (size_t e = threadIdx.x; e < z.E; e += 32) {
        float s = score_at(z, row, e, most, total), ds = 0;

        for (size_t k = row * z.K; k < (row + 1) * z.K; k++)
            if ((size_t)expert_of(z.index[k]) == e) {
                ds = z.index[k] < 0 ? 0 : array_get(z.dweight, k);
                if (z.normalize) ds = (ds - mean / sum) / sum;
            }
        array_put(z.dlogits, row * z.E + e, z.sigmoid ? ds * s * (1 - s) : s * (ds - inner));
    }
}

static void run_route_grad(const struct call *c)
{
    struct route_grad z = { array_in(c, 0),         array_in(c, 1),       array_out(c, 0),      global_of<const int>(c->in[2].data),
                            view_rows(&c->in[1]),   view_last(&c->in[1]), view_last(&c->in[0]), c->attr.route.sigmoid,
                            c->attr.route.normalize };

    launch(c, KERNEL(route_gradient), blocks_of(z.rows, WARPS), dim3(32, WARPS), 0, z);
}

/* ---- loads ---- */

/* load[g,e]: a block counts the tokens of group g that chose expert e. */
static __global__ void __launch_bounds__(BLOCK_THREADS) route_loads(global<const int> index, size_t each, struct array load)
{
    size_t begin = blockIdx.y * each;
    int e = (int)blockIdx.x, n = 0;

    for (size_t i = begin + threadIdx.x; i < begin + each; i += BLOCK_THREADS) n += index[i] != ROUTE_PADDING && expert_of(index[i]) == e;
    n = row_sum(n);
    if (threadIdx.x == 0) array_put(load, (size_t)blockIdx.y * gridDim.x + blockIdx.x, (float)n);
}

static void run_route_load(const struct call *c)
{
    size_t E = view_last(&c->out[0]), G = view_rows(&c->out[0]), n = view_count(&c->in[0]);

    launch(c, KERNEL(route_loads), dim3((unsigned)E, (unsigned)G), BLOCK_THREADS, 0, global_of<const int>(c->in[0].data), G ? n / G : 0,
           array_out(c, 0));
}

/* excess[e] += E load[e] - all loads, of tokens [begin, end) of each sample. */
static __global__ void __launch_bounds__(BLOCK_THREADS)
    route_excesses(global<const int> index, size_t n, size_t K, size_t T, size_t begin, size_t end, struct array excess)
{
    int e = (int)blockIdx.x, mine = 0, all = 0;

    for (size_t i = threadIdx.x; i < n; i += BLOCK_THREADS) {
        size_t t = i / K % T;

        if (t < begin || t >= end || index[i] == ROUTE_PADDING) continue;
        mine += expert_of(index[i]) == e;
        all++;
    }
    mine = row_sum(mine);
    all = row_sum(all);
    if (threadIdx.x == 0) array_add(excess, (size_t)e, (float)((double)gridDim.x * mine - all));
}

static void run_route_excess(const struct call *c)
{
    const struct view *index = &c->in[0];
    size_t E = view_count(&c->out[0]), n = view_count(index), T = index->size[1], share = (size_t)c->attr.route_excess.share;
    size_t shares = c->attr.route_excess.shares > 1 ? (size_t)c->attr.route_excess.shares : 1;

    launch(c, KERNEL(route_excesses), (unsigned)E, BLOCK_THREADS, 0, global_of<const int>(index->data), n, view_last(index), T,
           T * share / shares, T * (share + 1) / shares, array_out(c, 0));
}

/* ---- the losses ---- */

struct router_loss {
    struct array logits, load, samples, dloss, dlogits;
    global<double> factors; /* [2G]: factors of load P and of a token's square, by group */
    global<double> losses;  /* [rows] */
    size_t rows, T, E, G;
    double aux, z, chosen, tokens;
    int sigmoid;
};

/* One block: the coefficients of each group. */
static __global__ void __launch_bounds__(BLOCK_THREADS) router_factors(const __grid_constant__ struct router_loss l)
{
    double N = 0;

    for (size_t i = threadIdx.x; i < l.G * l.E; i += BLOCK_THREADS) N += array_get(l.load, i);
    N = row_sum(N) / l.chosen;
    if (l.samples.given) N = array_get(l.samples, 1) * l.tokens;
    for (size_t g = threadIdx.x; g < l.G; g += BLOCK_THREADS) {
        double n = 0;

        for (size_t e = 0; e < l.E; e++) n += array_get(l.load, g * l.E + e);
        n /= l.chosen;
        l.factors[2 * g] = n == 0 || N == 0 ? 0 : l.aux * (double)l.E / (n * N);
        l.factors[2 * g + 1] = n == 0 || N == 0 ? 0 : l.z / N;
    }
}

/* The loss of a token, and its gradient if there is one to write. */
static __global__ void router_rows(const __grid_constant__ struct router_loss l)
{
    size_t row = token_index(), group = row * l.G / max(l.rows, (size_t)1);
    bool real = row < real_rows(l.samples, l.rows, l.T);
    float most, sum, all = 0, mean = 0;

    if (row >= l.rows) return;
    if (!real) {
        if (l.losses && threadIdx.x == 0) l.losses[row] = 0;
        for (size_t e = threadIdx.x; l.dlogits.given && e < l.E; e += 32) array_put(l.dlogits, row * l.E + e, 0);
        return;
    }
    token_statistics(l.logits, row, l.E, &most, &sum);
    float lse = most + logf(sum);
    float aux = (float)l.factors[2 * group];
    float z = (float)l.factors[2 * group + 1];
    for (size_t e = threadIdx.x; e < l.E; e += 32) {
        float s = token_score(array_get(l.logits, row * l.E + e), l.sigmoid, most, sum);

        all += s;
        mean += aux * array_get(l.load, group * l.E + e) * s;
    }
    all = warp_reduce<sum_of>(all);
    mean = warp_reduce<sum_of>(mean) / all;
    if (l.losses && threadIdx.x == 0) l.losses[row] = (double)mean + (double)z * lse * lse;
    if (!l.dlogits.given) return;
    float dloss = array_get(l.dloss, 0);
    for (size_t e = threadIdx.x; e < l.E; e += 32) {
        float x = array_get(l.logits, row * l.E + e), s = token_score(x, l.sigmoid, most, sum);
        float d = (aux * array_get(l.load, group * l.E + e) - mean) * s / all * (l.sigmoid ? 1 - s : 1);

        array_put(l.dlogits, row * l.E + e, dloss * (d + 2 * z * lse * expf(x - lse)));
    }
}

static size_t padded_doubles(size_t n) { return (n * sizeof(double) + 63) / 64 * 64; }

static size_t router_scratch(const struct call *c)
{
    size_t rows = view_rows(&c->in[0]), G = view_rows(&c->in[1]);

    return padded_doubles(2 * G) + (c->op == OP_ROUTER_LOSS ? padded_doubles(rows) + total_bytes(rows, 1) : 0);
}

static void run_router_loss(const struct call *c)
{
    const struct view *logits = &c->in[0];
    bool forward = c->op == OP_ROUTER_LOSS;
    struct router_loss l = {};
    struct total t = total_none();
    char *scratch = (char *)c->scratch;

    l.logits = array_in(c, 0);
    l.load = array_in(c, 1);
    l.samples = array_in(c, 2);
    l.dloss = forward ? array_none() : array_in(c, 3);
    l.dlogits = forward ? array_none() : array_out(c, 0);
    l.rows = view_rows(logits);
    l.T = logits->size[1];
    l.E = view_last(logits);
    l.G = view_rows(&c->in[1]);
    l.aux = c->attr.router_loss.aux;
    l.z = c->attr.router_loss.z;
    l.chosen = (double)c->attr.router_loss.chosen;
    l.tokens = (double)c->attr.router_loss.tokens;
    l.sigmoid = c->attr.router_loss.sigmoid;
    l.factors = global_of<double>(scratch);
    l.losses = forward ? global_of<double>(scratch + padded_doubles(2 * l.G)) : global<double>(nullptr);
    launch(c, KERNEL(router_factors), l.G ? 1 : 0, BLOCK_THREADS, 0, l);
    launch(c, KERNEL(router_rows), blocks_of(l.rows, WARPS), dim3(32, WARPS), 0, l);
    if (!forward) return;
    t.y = array_out(c, 0);
    total_doubles(c, t, l.losses, l.rows, scratch + padded_doubles(2 * l.G) + padded_doubles(l.rows));
}

/* Floats are arrays, the index is i32; a grid takes 65535 groups. */
static bool route_accepts(const struct call *c)
{
    for (int i = 0; i < c->nin; i++)
        if (view_given(&c->in[i]) && !is_array(&c->in[i]) && !is_array_of(&c->in[i], LS_I32)) return false;
    for (int i = 0; i < c->nout; i++)
        if (!is_array(&c->out[i]) && !is_array_of(&c->out[i], LS_I32)) return false;
    return c->op != OP_ROUTE_LOAD || view_rows(&c->out[0]) <= 65535;
}

const struct kernel kernels_cuda_route[] = {
    CUDA_ROW(ROUTE, route_accepts, route_scratch, run_route),
    CUDA_ROW(ROUTE_GRAD, route_accepts, NULL, run_route_grad),
    CUDA_ROW(ROUTE_LOAD, route_accepts, NULL, run_route_load),
    CUDA_ROW(ROUTE_EXCESS, route_accepts, NULL, run_route_excess),
    CUDA_ROW(ROUTER_LOSS, route_accepts, router_scratch, run_router_loss),
    CUDA_ROW(ROUTER_LOSS_GRAD, route_accepts, router_scratch, run_router_loss),
    CUDA_ROWS_END,
};
