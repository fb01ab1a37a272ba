/* shape.cu - copies: strided and converted, joined, padded, in blocks, into the cache.
 *
 * A copy moves four elements a thread where the last dim of both sides allows it, else one. Between equal types the bits are copied, so
 * that integers and NaNs stay what they are.
 */
#include "kernels/cuda/array.h"

/* y[at stride + ..] = x, where `at` is a position on the device that is known at run time, or no pointer. rows: positions of y's dim from
 * which x's `need` are taken; a position that does not fit writes nothing. */
struct moved {
    global<const int> at;
    long long stride;
    int need, rows;
};

static __device__ inline bool moved_by(const struct moved &m, long long *offset)
{
    *offset = 0;
    if (!m.at) return true;
    int at = m.at[0];
    *offset = at * m.stride;
    return at >= 0 && at <= m.rows - m.need;
}

/* count elements, or groups of four of them: x and y then have sizes and strides in groups. */
template <typename T>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    copy_bits(const __grid_constant__ struct strided x, const __grid_constant__ struct strided y, size_t count, struct moved m)
{
    size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    long long offset;

    if (i >= count || !moved_by(m, &offset)) return;
    global_as<T>(y.data)[strided_at(y, i) + offset] = global_as<const T>(x.data)[strided_at(x, i)];
}

template <typename T>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    copy_bits4(const __grid_constant__ struct strided x, const __grid_constant__ struct strided y, size_t count, struct moved m)
{
    size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    long long offset;

    if (i >= count || !moved_by(m, &offset)) return;
    pack_store(global_as<T>(y.data), 4 * strided_at(y, i) + offset, pack_load<4>(global_as<const T>(x.data), 4 * strided_at(x, i)));
}

static __global__ void __launch_bounds__(BLOCK_THREADS)
    copy_converted(const __grid_constant__ struct strided x, const __grid_constant__ struct strided y, size_t count, struct moved m)
{
    size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    long long offset;

    if (i >= count || !moved_by(m, &offset)) return;
    type_put(y.data, y.type, strided_at(y, i) + offset, strided_get(x, i));
}

static __global__ void __launch_bounds__(BLOCK_THREADS) copy_converted4(struct array x, struct array y, size_t count)
{
    size_t i = 4 * ((size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x);

    if (i < count) array_store4(y, i, count - i, true, array_load4(x, i, count - i, true));
}

static __global__ void __launch_bounds__(BLOCK_THREADS) fill_zero(const __grid_constant__ struct strided y, size_t count)
{
    size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;

    if (i < count) strided_put(y, i, 0);
}

/* Dims of both that follow each other in memory become one; dims of size 1 go. */
static void merge_dims(struct strided *x, struct strided *y)
{
    int n = 0;

    for (int d = 0; d < x->ndim; d++) {
        if (x->size[d] == 1) continue;
        if (n && x->stride[n - 1] == x->stride[d] * (long long)x->size[d] && y->stride[n - 1] == y->stride[d] * (long long)x->size[d]) {
            x->size[n - 1] *= x->size[d];
        } else {
            x->size[n++] = x->size[d];
        }
        x->stride[n - 1] = x->stride[d];
        y->stride[n - 1] = y->stride[d];
    }
    x->ndim = y->ndim = n;
    for (int d = 0; d < n; d++) y->size[d] = x->size[d];
}

/* Rewrites both in groups of four elements, if the last dim allows it. */
static bool group_by_four(struct strided *x, struct strided *y, const struct view *from, const struct view *to, long long move)
{
    size_t bytes = 4 * bytes_of_type(x->type);
    int last = x->ndim - 1;

    if (last < 0 || bytes > 16 || bytes < 8 || x->stride[last] != 1 || y->stride[last] != 1 || x->size[last] % 4 || move % 4) return false;
    if ((uintptr_t)from->data % bytes || (uintptr_t)to->data % bytes) return false;
    for (int d = 0; d < last; d++)
        if (x->stride[d] % 4 || y->stride[d] % 4) return false;
    for (int d = 0; d < last; d++) {
        x->stride[d] /= 4;
        y->stride[d] /= 4;
    }
    x->size[last] /= 4;
    y->size[last] /= 4;
    return true;
}

static void copy_same(const struct call *c, const struct view *from, const struct view *to, struct moved m)
{
    struct strided x = strided_of(from), y = strided_of(to);
    size_t count = view_count(from);
    unsigned blocks = blocks_of(count, BLOCK_THREADS);

    merge_dims(&x, &y);
    if (group_by_four(&x, &y, from, to, m.at ? m.stride : 0)) {
        blocks = blocks_of(count / 4, BLOCK_THREADS);
        if (bytes_of_type(x.type) == 4)
            launch(c, KERNEL(copy_bits4<unsigned>), blocks, BLOCK_THREADS, 0, x, y, count / 4, m);
        else
            launch(c, KERNEL(copy_bits4<unsigned short>), blocks, BLOCK_THREADS, 0, x, y, count / 4, m);
        return;
    }
    switch (bytes_of_type(x.type)) {
    case 8: launch(c, KERNEL(copy_bits<unsigned long long>), blocks, BLOCK_THREADS, 0, x, y, count, m); break;
    case 4: launch(c, KERNEL(copy_bits<unsigned>), blocks, BLOCK_THREADS, 0, x, y, count, m); break;
    case 2: launch(c, KERNEL(copy_bits<unsigned short>), blocks, BLOCK_THREADS, 0, x, y, count, m); break;
    default: launch(c, KERNEL(copy_bits<byte>), blocks, BLOCK_THREADS, 0, x, y, count, m);
    }
}

static void copy_moved(const struct call *c, const struct view *from, const struct view *to, struct moved m)
{
    size_t count = view_count(from);

    if (from->dtype == to->dtype) {
        copy_same(c, from, to, m);
        return;
    }
    if (!m.at && view_is_contiguous(from) && view_is_contiguous(to)) {
        launch(c, KERNEL(copy_converted4), blocks_of(count, 4 * BLOCK_THREADS), BLOCK_THREADS, 0, array_of(from), array_of(to), count);
        return;
    }
    struct strided x = strided_of(from);
    struct strided y = strided_of(to);
    merge_dims(&x, &y);
    launch(c, KERNEL(copy_converted), blocks_of(count, BLOCK_THREADS), BLOCK_THREADS, 0, x, y, count, m);
}

static void copy_view(const struct call *c, const struct view *from, const struct view *to)
{
    struct moved m = { global<const int>(nullptr), 0, 0, 0 };

    if (view_count(from)) copy_moved(c, from, to, m);
}

static bool can_copy(const struct view *from, const struct view *to)
{
    return from->dtype == to->dtype || (is_half_or_float(from) && is_half_or_float(to));
}

/* ---- ops ---- */

static bool copy_accepts(const struct call *c)
{
    for (int i = 0; i < c->nin; i++)
        if (!can_copy(&c->in[i], &c->out[0])) return false;
    return true;
}

static void run_copy(const struct call *c) { copy_view(c, &c->in[0], &c->out[0]); }

static void run_concat(const struct call *c)
{
    int dim = c->attr.concat.dim;
    size_t start = 0;

    for (int i = 0; i < c->nin; i++) {
        struct view y = view_narrow(&c->out[0], dim, start, c->in[i].size[dim]);

        copy_view(c, &c->in[i], &y);
        start += c->in[i].size[dim];
    }
}

static void fill_part(const struct call *c, size_t start, size_t size)
{
    struct view part = view_narrow(&c->out[0], c->attr.pad.dim, start, size);

    launch(c, KERNEL(fill_zero), blocks_of(view_count(&part), BLOCK_THREADS), BLOCK_THREADS, 0, strided_of(&part), view_count(&part));
}

static void run_pad(const struct call *c)
{
    const struct view *x = &c->in[0], *y = &c->out[0];
    int dim = c->attr.pad.dim;
    size_t start = c->attr.pad.start, end = start + x->size[dim];
    struct view inside = view_narrow(y, dim, start, x->size[dim]);

    fill_part(c, 0, start);
    copy_view(c, x, &inside);
    fill_part(c, end, y->size[dim] - end);
}

static bool pad_accepts(const struct call *c) { return is_half_or_float(&c->in[0]) && is_half_or_float(&c->out[0]); }

static bool cache_write_accepts(const struct call *c)
{
    return can_copy(&c->in[0], &c->out[0]) && is_array_of(&c->in[1], LS_I32) && c->out[0].size[1] <= INT32_MAX;
}

static void run_cache_write(const struct call *c)
{
    const struct view *x = &c->in[0], *cache = &c->out[0];
    struct moved m = { global_of<const int>(c->in[1].data), cache->stride[1], (int)x->size[1], (int)cache->size[1] };

    if (!view_count(x) || x->size[1] > cache->size[1]) return;
    struct view first = view_narrow(cache, 1, 0, x->size[1]);
    copy_moved(c, x, &first, m);
}

/* Block b of x along blocks.dim, and the part of the flat buffer from *at on that holds it, in the same shape. */
static struct view block_of(const struct call *c, const struct view *x, const struct view *flat, int b, size_t *at, struct view *part)
{
    int dim = c->attr.blocks.dim, n = c->attr.blocks.n;
    size_t begin = shard_begin(x->size[dim], c->attr.blocks.grain, b, n), end = shard_begin(x->size[dim], c->attr.blocks.grain, b + 1, n);
    struct view block = view_narrow(x, dim, begin, end - begin);

    *part = view_of((char *)flat->data + *at * bytes_of_type(flat->dtype), flat->dtype, block.ndim, block.size);
    *at += view_count(&block);
    return block;
}

static void run_blocks(const struct call *c)
{
    bool pack = c->op == OP_PACK_BLOCKS;
    size_t at = 0;

    for (int b = 0; b < c->attr.blocks.n; b++) {
        struct view part, block = block_of(c, pack ? &c->in[0] : &c->out[0], pack ? &c->out[0] : &c->in[0], b, &at, &part);

        if (pack)
            copy_view(c, &block, &part);
        else
            copy_view(c, &part, &block);
    }
}

static bool blocks_accepts(const struct call *c)
{
    return can_copy(&c->in[0], &c->out[0]) && view_is_contiguous(c->op == OP_PACK_BLOCKS ? &c->out[0] : &c->in[0]);
}

const struct kernel kernels_cuda_shape[] = {
    CUDA_ROW(COPY, copy_accepts, NULL, run_copy),
    CUDA_ROW(CONCAT, copy_accepts, NULL, run_concat),
    CUDA_ROW(PAD, pad_accepts, NULL, run_pad),
    CUDA_ROW(CACHE_WRITE, cache_write_accepts, NULL, run_cache_write),
    CUDA_ROW(PACK_BLOCKS, blocks_accepts, NULL, run_blocks),
    CUDA_ROW(UNPACK_BLOCKS, blocks_accepts, NULL, run_blocks),
    CUDA_ROWS_END,
};
