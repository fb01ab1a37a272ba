/* total.cu - sums over all elements: the mean squared error, the squares of gradients, and what is made of them. */
#include "kernels/cuda/total.h"

/* Of (a - b)^2, or of a^2 if there is no b. */
static __global__ void __launch_bounds__(TOTAL_THREADS) square_parts(struct array a, struct array b, size_t count, global<double> parts)
{
    double sum = 0;

    EACH_TOTAL(i, count)
    {
        float4s x = array_load4(a, i, count - i, true), y = { { 0, 0, 0, 0 } };

        if (b.given) y = array_load4(b, i, count - i, true);
        for (int k = 0; k < 4; k++) sum += ((double)x.v[k] - y.v[k]) * ((double)x.v[k] - y.v[k]);
    }
    total_leave(parts, 1, 0, sum);
}

static size_t square_scratch(const struct call *c) { return total_bytes(view_count(&c->in[0]), 1); }

static void run_squares(const struct call *c)
{
    size_t count = view_count(&c->in[0]);
    unsigned blocks = total_blocks(count);
    struct total t = total_none();

    launch(c, KERNEL(square_parts), blocks, TOTAL_THREADS, 0, array_in(c, 0), array_in(c, 1), count, global_of<double>(c->scratch));
    if (c->op == OP_MSE) {
        t.y = array_out(c, 0);
        t.factor = count ? 1 / (double)count : 0;
    } else {
        t.sums = global_of<double>(c->out[0].data);
    }
    total_finish(c, t, c->scratch, blocks);
}

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
    CUDA_ROW(MSE, all_arrays, square_scratch, run_squares),
    CUDA_ROW(SUM_SQUARES, sum_squares_accepts, square_scratch, run_squares),
    CUDA_ROW(CLIP_FACTOR, clip_accepts, NULL, run_clip),
    CUDA_ROWS_END,
};
