/* xent_parts.c - cross-entropy if each rank has some columns of the logits: statistics of a part, and the result of all parts. */
#include <math.h>
#include "kernels/cpu/simd/simd_math.h"

enum { STRIP = 1024 }; /* logits that are read twice while they are cached */

struct part {
    float most, sum;
};

/* Each lane's sum is relative to the largest logit of the strips so far. */
INLINE struct part part_of(ls_dtype T, const void *logits, size_t v)
{
    float most = -INFINITY;
    vf sum = vset(0);

    for (size_t s = 0; s < v; s += STRIP) {
        size_t end = MIN(v, s + STRIP);
        vf largest = vset(-INFINITY);

        EACH(i, n, s, end)
        largest = vmax(largest, vkeep(load(T, logits, i, n), n, -INFINITY));
        float larger = vlargest(largest);
        if (larger > most) {
            sum = sum * vset(expf(most - larger));
            most = larger;
        }
        EACH(i, n, s, end)
        sum += vkeep(vexp(load(T, logits, i, n) - vset(most)), n, 0);
    }
    return (struct part){ most, vsum(sum) };
}

/* See the reference: view_last(l) or more is not a column of this part. */
static size_t target_column(const struct call *c, size_t r)
{
    int32_t y = ((const int32_t *)c->in[1].data)[r];

    return y < 0 ? SIZE_MAX : (size_t)y - c->attr.embedding.first;
}

static void part_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    ls_dtype type = c->in[0].dtype;
    size_t v = view_last(&c->in[0]);
    float *stats = c->out[0].data;

    (void)thread;
    for (size_t r = begin; r < end; r++) {
        const char *logits = (const char *)c->in[0].data + r * v * ls_dtype_bytes(type);
        size_t y = target_column(c, r);
        struct part part = { 0, 0 };

        BY_TYPE(type, T, part = part_of(T, logits, v))
        stats[3 * r] = part.most;
        stats[3 * r + 1] = part.sum;
        stats[3 * r + 2] = y < v ? load_one(type, logits, y) : 0;
    }
}

static bool part_accepts(const struct call *c) { return is_plain(&c->in[0]) && is_i32(&c->in[1]) && is_f32(&c->out[0]); }

static void xent_part(const struct call *c) { threads_for(view_rows(&c->in[0]), row_grain(view_last(&c->in[0])), part_rows, (void *)c); }

static void whole_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    size_t n = c->in[0].size[0], R = view_count(&c->in[1]);
    const float *stats = c->in[0].data;
    float *lse = c->out[1].data;

    (void)thread;
    for (size_t r = begin; r < end; r++) {
        float most = -INFINITY, sum = 0;

        for (size_t k = 0; k < n; k++) most = MAX(most, stats[(k * R + r) * 3]);
        for (size_t k = 0; k < n; k++) sum += stats[(k * R + r) * 3 + 1] * expf(stats[(k * R + r) * 3] - most);
        lse[r] = most + logf(sum);
    }
}

static bool whole_accepts(const struct call *c)
{
    return is_f32(&c->in[0]) && is_i32(&c->in[1]) && is_f32(&c->in[2]) && is_f32(&c->out[0]) && is_f32(&c->out[1]);
}

/* The loss is summed in order of the rows. */
static void xent_combine(const struct call *c)
{
    size_t n = c->in[0].size[0], R = view_count(&c->in[1]);
    const float *stats = c->in[0].data, *lse = c->out[1].data;
    const int32_t *y = c->in[1].data;
    double sum = 0;

    threads_for(R, row_grain(3 * n), whole_rows, (void *)c);
    for (size_t r = 0; r < R; r++) {
        float target = 0;

        for (size_t k = 0; k < n; k++) target += stats[(k * R + r) * 3 + 2];
        if (y[r] >= 0) sum += (double)(lse[r] - target);
    }
    *(float *)c->out[0].data += (float)(sum / (double)*(const float *)c->in[2].data);
}

INLINE void dlogits_of(ls_dtype T, ls_dtype D, const void *logits, void *dlogits, size_t v, float lse, size_t y, float factor)
{
    float target = y < v ? factor * (expf(load_one(T, logits, y) - lse) - 1) : 0;

    EACH(i, n, 0, v)
    store(D, dlogits, i, n, vset(factor) * vexp(load(T, logits, i, n) - vset(lse)));
    if (y < v) store_one(D, dlogits, y, target);
}

static void dlogits_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    ls_dtype type = c->in[0].dtype, dtype = c->out[0].dtype;
    size_t v = view_last(&c->in[0]);
    const float *lse = c->in[2].data;
    float factor = *(const float *)c->in[4].data / *(const float *)c->in[3].data;

    (void)thread;
    for (size_t r = begin; r < end; r++) {
        const char *logits = (const char *)c->in[0].data + r * v * ls_dtype_bytes(type);
        char *dlogits = (char *)c->out[0].data + r * v * ls_dtype_bytes(dtype);

        if (((const int32_t *)c->in[1].data)[r] < 0)
            memset(dlogits, 0, v * ls_dtype_bytes(dtype));
        else
            BY_TYPE(type, T, BY_TYPE(dtype, D, dlogits_of(T, D, logits, dlogits, v, lse[r], target_column(c, r), factor)))
    }
}

static bool dlogits_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_i32(&c->in[1]) && is_f32(&c->in[2]) && is_f32(&c->in[3]) && is_f32(&c->in[4]) && is_plain(&c->out[0]);
}

static void xent_dlogits(const struct call *c)
{
    threads_for(view_rows(&c->in[0]), row_grain(view_last(&c->in[0])), dlogits_rows, (void *)c);
}

static bool count_accepts(const struct call *c) { return is_i32(&c->in[0]) && is_f32(&c->out[0]); }

static void xent_count(const struct call *c)
{
    const int32_t *y = c->in[0].data;
    size_t valid = 0;

    for (size_t r = 0; r < view_count(&c->in[0]); r++) valid += y[r] >= 0;
    *(float *)c->out[0].data = (float)MAX(valid, (size_t)1);
}

const struct kernel SIMD_TABLE(xent_parts)[] = {
    SIMD_ROW(XENT_COUNT, count_accepts, NULL, xent_count),
    SIMD_ROW(XENT_PART, part_accepts, NULL, xent_part),
    SIMD_ROW(XENT_COMBINE, whole_accepts, NULL, xent_combine),
    SIMD_ROW(XENT_DLOGITS, dlogits_accepts, NULL, xent_dlogits),
    KERNELS_END,
};
