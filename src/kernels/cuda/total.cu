/* total.cu - sums over all elements: the mean squared error, the squares of gradients, and what is made of them. */
#include "kernels/cuda/total_list.h"

/* Sums of (a - b)^2. */
static __global__ void __launch_bounds__(TOTAL_THREADS) error_parts(struct array a, struct array b, size_t count, global<double> parts)
{
    double sum = 0;

    EACH_TOTAL(i, count)
    {
        float4s x = array_load4(a, i, count - i, true), y = array_load4(b, i, count - i, true);

        for (int k = 0; k < 4; k++) sum += ((double)x.v[k] - y.v[k]) * ((double)x.v[k] - y.v[k]);
    }
    total_leave(parts, 1, 0, sum);
}

static size_t total_scratch(const struct call *c) { return total_bytes(view_count(&c->in[0]), 1); }

static void run_mse(const struct call *c)
{
    size_t count = view_count(&c->in[0]);
    unsigned blocks = total_blocks(count);
    struct total t = total_none();

    launch(c, KERNEL(error_parts), blocks, TOTAL_THREADS, 0, array_in(c, 0), array_in(c, 1), count, global_of<double>(c->scratch));
    t.y = array_out(c, 0);
    t.factor = count ? 1 / (double)count : 0;
    total_finish(c, t, c->scratch, blocks);
}

/* ---- squares of many arrays ---- */

struct squares_item {
    global<byte> data;
    global<double> parts;
    size_t count;
    unsigned first; /* its first block */
    int type;
};

struct squares {
    int items;
    struct squares_item of[TOTALS];
};
LAUNCH_ARGUMENTS_FIT(struct squares);

static __global__ void __launch_bounds__(TOTAL_THREADS) square_parts(const __grid_constant__ struct squares s)
{
    int k = list_find(s.of, s.items);
    struct array x = array_at(s.of[k].data, s.of[k].type);
    unsigned first = s.of[k].first;
    size_t count = s.of[k].count;
    double sum = 0;

    EACH_TOTAL_OF(i, count, blockIdx.x - first, list_end(s.of, s.items, k) - first)
    {
        float4s v = array_load4(x, i, count - i, true);

        for (int e = 0; e < 4; e++) sum += (double)v.v[e] * v.v[e];
    }
    total_leave_of(blockIdx.x - first, s.of[k].parts, 1, 0, sum);
}

static void run_squares_list(const struct call *const *c, int n)
{
    struct squares s = {};
    struct total_list t = {};
    unsigned blocks = 0;

    t.n = 1;
    for (int k = 0; k < n; k++) {
        struct squares_item *x = &s.of[s.items++];

        x->data = global_of<byte>(c[k]->in[0].data);
        x->parts = global_of<double>(c[k]->scratch);
        x->count = view_count(&c[k]->in[0]);
        x->first = blocks;
        x->type = c[k]->in[0].dtype;
        blocks += total_blocks(x->count);
        total_list_add(&t, c[k]->scratch, c[k]->out[0].data, k ? c[k - 1]->out[0].data : NULL, blocks - x->first);
    }
    launch(c[0], KERNEL(square_parts), blocks, TOTAL_THREADS, 0, s);
    total_list_launch(c[0], &t);
}

static void run_squares_many(const struct call *const *c, int n)
{
    for (int k = 0; k < n; k += TOTALS) run_squares_list(c + k, n - k < TOTALS ? n - k : TOTALS);
}

static void run_squares(const struct call *c) { run_squares_list(&c, 1); }

static bool sum_squares_accepts(const struct call *c) { return is_array(&c->in[0]) && is_array_of(&c->out[0], LS_F64); }

static __global__ void clip_one(global<const double> squares, struct array norm, struct array factor, double most)
{
    double n = sqrt((double)squares[0]);

    array_put(norm, 0, (float)n);
    array_put(factor, 0, most > 0 && n > most ? (float)(most / n) : 1);
}

static void run_clip(const struct call *c)
{
    launch(c, KERNEL(clip_one), 1, 1, 0, global_of<const double>(c->in[0].data), array_out(c, 0), array_out(c, 1), c->attr.clip.most);
}

static bool clip_accepts(const struct call *c) { return is_array_of(&c->in[0], LS_F64) && is_array(&c->out[0]) && is_array(&c->out[1]); }

const struct kernel kernels_cuda_total[] = {
    CUDA_ROW(MSE, all_arrays, total_scratch, run_mse),
    CUDA_MANY_ROW(SUM_SQUARES, sum_squares_accepts, total_scratch, run_squares, run_squares_many),
    CUDA_ROW(CLIP_FACTOR, clip_accepts, NULL, run_clip),
    CUDA_ROWS_END,
};
