/* conv.cu - convolutions as matmuls on the plain tile of gemm.h, whose operands are elements of the images: no copy of the windows
 * is made.
 *
 *   y    [B OH OW, O]     x's windows [B OH OW, C KH KW]   times w^T
 *   dx   [B H W, C]       dy's elements that the window positions reach [B H W, O KH KW]   times w
 *   dw   [O, C KH KW]     dy^T [O, B OH OW]   times x's windows
 */
#include "kernels/cuda/gemm.h"

struct images {
    size_t B, C, H, W, O, KH, KW, OH, OW, stride, padding;
};

/* An image operand by (batch, channel, row, column). */
static __device__ inline float image_get(struct array a, size_t channels, size_t H, size_t W, size_t b, size_t c, size_t i, size_t j)
{
    return array_get(a, ((b * channels + c) * H + i) * W + j);
}

/* x's windows [B OH OW, C KH KW]: the first operand of y, the second of dw. */
struct windows {
    struct array x;
    struct images z;
    bool across;

    __device__ float get(size_t position, size_t tap) const
    {
        size_t l = tap % z.KW, k = tap / z.KW % z.KH, c = tap / z.KW / z.KH;
        size_t j = position % z.OW, i = position / z.OW % z.OH, b = position / z.OW / z.OH;
        size_t h = i * z.stride + k - z.padding, w = j * z.stride + l - z.padding; /* before the edge: wraps to beyond it */

        return h < z.H && w < z.W ? image_get(x, z.C, z.H, z.W, b, c, h, w) : 0;
    }
};

/* dy at the windows whose position `tap` is the pixel: [B H W, O KH KW]. */
struct reached {
    struct array dy;
    struct images z;
    bool across;

    __device__ float get(size_t pixel, size_t tap) const
    {
        size_t l = tap % z.KW, k = tap / z.KW % z.KH, o = tap / z.KW / z.KH;
        size_t w = pixel % z.W + z.padding, h = pixel / z.W % z.H + z.padding, b = pixel / z.W / z.H;

        if (h < k || w < l || (h - k) % z.stride || (w - l) % z.stride) return 0;
        h = (h - k) / z.stride;
        w = (w - l) / z.stride;
        return h < z.OH && w < z.OW ? image_get(dy, z.O, z.OH, z.OW, b, o, h, w) : 0;
    }
};

/* w as [O KH KW, C]. */
struct taps {
    struct array w;
    struct images z;
    bool across;

    __device__ float get(size_t tap, size_t c) const
    {
        size_t l = tap % z.KW, k = tap / z.KW % z.KH, o = tap / z.KW / z.KH;

        return image_get(w, z.C, z.KH, z.KW, o, c, k, l);
    }
};

/* dy^T: [O, B OH OW]. */
struct outputs {
    struct array dy;
    struct images z;
    bool across;

    __device__ float get(size_t o, size_t position) const
    {
        size_t in = position % (z.OH * z.OW), b = position / (z.OH * z.OW);

        return array_get(dy, (b * z.O + o) * z.OH * z.OW + in);
    }
};

static __global__ void __launch_bounds__(GEMM_THREADS)
    conv_forward(const __grid_constant__ struct windows x, const __grid_constant__ struct matrix w, struct array bias, struct array y)
{
    const struct images &z = x.z;
    size_t m0 = (size_t)blockIdx.x * TILE, n0 = (size_t)blockIdx.y * TILE, plane = z.OH * z.OW, M = z.B * plane;
    struct tile t;

    tile_clear(&t);
    tile_multiply(&t, x, w, m0, M, n0, z.O, 0, z.C * z.KH * z.KW);
    EACH_OF_TILE(t, m0, M, n0, z.O, r, s, v)
    array_put(y, (r / plane * z.O + s) * plane + r % plane, bias.given ? v + array_get(bias, s) : v);
}

static __global__ void __launch_bounds__(GEMM_THREADS)
    conv_dx(const __grid_constant__ struct reached dy, const __grid_constant__ struct taps w, struct array dx)
{
    const struct images &z = dy.z;
    size_t m0 = (size_t)blockIdx.x * TILE, n0 = (size_t)blockIdx.y * TILE, plane = z.H * z.W, M = z.B * plane;
    struct tile t;

    tile_clear(&t);
    tile_multiply(&t, dy, w, m0, M, n0, z.C, 0, z.O * z.KH * z.KW);
    EACH_OF_TILE(t, m0, M, n0, z.C, r, s, v) array_put(dx, (r / plane * z.C + s) * plane + r % plane, v);
}

static __global__ void __launch_bounds__(GEMM_THREADS)
    conv_dw(const __grid_constant__ struct outputs dy, const __grid_constant__ struct windows x, struct array dw)
{
    const struct images &z = x.z;
    size_t m0 = (size_t)blockIdx.x * TILE, n0 = (size_t)blockIdx.y * TILE, N = z.C * z.KH * z.KW;
    struct tile t;

    tile_clear(&t);
    tile_multiply(&t, dy, x, m0, z.O, n0, N, 0, z.B * z.OH * z.OW);
    EACH_OF_TILE(t, m0, z.O, n0, N, r, s, v) array_add(dw, r * N + s, v);
}

static struct images images_of(const struct call *c, const struct view *x, const struct view *w, const struct view *y)
{
    struct images z = { x->size[0], x->size[1], x->size[2], x->size[3],          w->size[0],          w->size[2],
                        w->size[3], y->size[2], y->size[3], c->attr.conv.stride, c->attr.conv.padding };

    return z;
}

static void run_conv(const struct call *c)
{
    struct images z = images_of(c, &c->in[0], &c->in[1], &c->out[0]);
    struct windows x = { array_in(c, 0), z, false };
    long long taps = (long long)(z.C * z.KH * z.KW);

    launch(c, KERNEL(conv_forward), dim3(blocks_of(z.B * z.OH * z.OW, TILE), blocks_of(z.O, TILE)), GEMM_THREADS, 0, x,
           matrix_of(global_of<byte>(c->in[1].data), c->in[1].dtype, 1, taps), array_in(c, 2), array_out(c, 0));
}

static void run_conv_dx(const struct call *c)
{
    struct images z = images_of(c, &c->out[0], &c->in[1], &c->in[0]);
    struct reached dy = { array_in(c, 0), z, false };
    struct taps w = { array_in(c, 1), z, false };

    launch(c, KERNEL(conv_dx), dim3(blocks_of(z.B * z.H * z.W, TILE), blocks_of(z.C, TILE)), GEMM_THREADS, 0, dy, w, array_out(c, 0));
}

static void run_conv_dw(const struct call *c)
{
    struct images z = images_of(c, &c->in[1], &c->out[0], &c->in[0]);
    struct outputs dy = { array_in(c, 0), z, true };
    struct windows x = { array_in(c, 1), z, false };

    launch(c, KERNEL(conv_dw), dim3(blocks_of(z.O, TILE), blocks_of(z.C * z.KH * z.KW, TILE)), GEMM_THREADS, 0, dy, x, array_out(c, 0));
}

static bool conv_accepts(const struct call *c)
{
    const struct view *to = &c->out[0];

    return all_arrays(c) && tiles_fit(c->op == OP_CONV2D_DW ? to->size[1] * to->size[2] * to->size[3] : to->size[1]);
}

const struct kernel kernels_cuda_conv[] = {
    CUDA_ROW(CONV2D, conv_accepts, NULL, run_conv),
    CUDA_ROW(CONV2D_DX, conv_accepts, NULL, run_conv_dx),
    CUDA_ROW(CONV2D_DW, conv_accepts, NULL, run_conv_dw),
    CUDA_ROWS_END,
};
