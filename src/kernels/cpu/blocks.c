/* blocks.c - splits a dim into blocks stored one after another in a flat buffer, and joins them again, at the speed of memory.
 *
 * A block is a strided view on one side and contiguous on the other. Trailing dims without gaps form one run: runs without a stride are
 * copied by memcpy, others element by element. Threads share the elements of a block.
 */
#include <string.h>
#include "base/base.h"
#include "base/threads.h"
#include "kernels/kernel.h"

enum { GRAIN = 1 << 15 }; /* minimum of elements for another thread */

struct block {
    struct view x; /* the strided side */
    char *flat;
    size_t bytes; /* bytes of an element */
    size_t run;   /* elements that are `stride` apart, in row-major order */
    ptrdiff_t stride;
    int outer;   /* dims before the run */
    bool unpack; /* flat -> x */
};

/* The longest run at the end of x's dims. */
static void find_run(struct block *b)
{
    int d = b->x.ndim;

    b->run = 1;
    b->stride = 1;
    while (d > 0) {
        size_t size = b->x.size[d - 1];
        ptrdiff_t stride = b->x.stride[d - 1];

        if (size != 1 && b->run != 1 && stride != (ptrdiff_t)b->run * b->stride) break;
        if (size != 1 && b->run == 1) b->stride = stride;
        b->run *= size;
        d--;
    }
    b->outer = d;
}

/* Offset of run r, in elements. */
static ptrdiff_t run_at(const struct block *b, size_t r)
{
    ptrdiff_t at = 0;

    for (int d = b->outer - 1; d >= 0; d--) {
        at += (ptrdiff_t)(r % b->x.size[d]) * b->x.stride[d];
        r /= b->x.size[d];
    }
    return at;
}

#define COPY_EACH(type)                                                \
    for (size_t i = 0; i < n; i++)                                     \
        if (b->unpack)                                                 \
            ((type *)x)[(ptrdiff_t)i * b->stride] = ((type *)flat)[i]; \
        else                                                           \
            ((type *)flat)[i] = ((type *)x)[(ptrdiff_t)i * b->stride];

static void copy_run(const struct block *b, char *x, char *flat, size_t n)
{
    if (b->stride == 1)
        memcpy(b->unpack ? x : flat, b->unpack ? flat : x, n * b->bytes);
    else if (b->bytes == 8) {
        COPY_EACH(uint64_t)
    } else if (b->bytes == 4) {
        COPY_EACH(uint32_t)
    } else if (b->bytes == 2) {
        COPY_EACH(uint16_t)
    } else {
        COPY_EACH(uint8_t)
    }
}

static void copy_elements(void *ctx, size_t begin, size_t end, int thread)
{
    const struct block *b = ctx;

    (void)thread;
    for (size_t i = begin, n; i < end; i += n) {
        size_t in = i % b->run;
        ptrdiff_t at = run_at(b, i / b->run) + (ptrdiff_t)in * b->stride;

        n = MIN(b->run - in, end - i);
        copy_run(b, (char *)b->x.data + at * (ptrdiff_t)b->bytes, b->flat + i * b->bytes, n);
    }
}

static void copy_blocks(const struct call *c, const struct view *x, const struct view *flat, bool unpack)
{
    int dim = c->attr.blocks.dim, n = c->attr.blocks.n;
    struct block b = { .flat = flat->data, .bytes = ls_dtype_bytes(x->dtype), .unpack = unpack };

    for (int k = 0; k < n; k++) {
        size_t grain = c->attr.blocks.grain;
        size_t begin = shard_begin(x->size[dim], grain, k, n), end = shard_begin(x->size[dim], grain, k + 1, n);

        b.x = view_narrow(x, dim, begin, end - begin);
        size_t count = view_count(&b.x);
        find_run(&b);
        threads_for(count, GRAIN, copy_elements, &b);
        b.flat += count * b.bytes;
    }
}

static bool blocks_accepts(const struct view *x, const struct view *flat) { return x->dtype == flat->dtype && view_is_contiguous(flat); }

static bool blocks_pack_accepts(const struct call *c) { return blocks_accepts(&c->in[0], &c->out[0]); }
static bool blocks_unpack_accepts(const struct call *c) { return blocks_accepts(&c->out[0], &c->in[0]); }
static void blocks_pack(const struct call *c) { copy_blocks(c, &c->in[0], &c->out[0], false); }
static void blocks_unpack(const struct call *c) { copy_blocks(c, &c->out[0], &c->in[0], true); }

#define BLOCKS_ROW(id, function)                                                                                                     \
    {                                                                                                                                \
        .op = OP_##id, .name = "runs", .device = "cpu", .priority = PRIORITY_BLOCKED, .accepts = function##_accepts, .run = function \
    }

const struct kernel kernels_blocks[] = { BLOCKS_ROW(PACK_BLOCKS, blocks_pack), BLOCKS_ROW(UNPACK_BLOCKS, blocks_unpack), KERNELS_END };
