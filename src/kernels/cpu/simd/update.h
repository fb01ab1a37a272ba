/* update.h - shared by the vector kernels of the optimizers. Formulas: ref/optim.c.
 *
 * Gradient and parameter may be of any floating type; m, v, master, hyper and factor are f32. An update moves about 30 bytes per element,
 * so it can afford to check the types for each vector.
 */
#ifndef LS_KERNELS_CPU_SIMD_UPDATE_H
#define LS_KERNELS_CPU_SIMD_UPDATE_H

#include <math.h>
#include "kernels/cpu/simd/philox.h"

enum { UPDATE_BLOCK = 65536 }; /* elements whose squares make one partial sum */

/* A call's operands by name; absent ones are NULL. */
struct update {
    const struct optimizer_attr *a;
    const void *g;
    void *p;
    ls_dtype gtype, ptype;
    float *m, *v, *master;
    float lr, c1, c2, factor, ratio; /* ratio: trust ratio of the layer-wise ones */
    uint64_t stream;                 /* random stream of stochastic rounding in this step */
    double *sums;                    /* scratch, [blocks, 2] */
    size_t count;
};

INLINE uint64_t update_stream(const struct optimizer_attr *a, const float *hyper) { return a->rounding.stream ^ (uint64_t)hyper[3]; }

INLINE struct update update_of(const struct call *c, bool second_moment)
{
    const float *hyper = c->in[1].data;
    int last = second_moment ? 3 : 2;

    return (struct update){
        .a = &c->attr.optim,
        .g = c->in[0].data,
        .p = c->out[0].data,
        .gtype = c->in[0].dtype,
        .ptype = c->out[0].dtype,
        .m = call_has_out(c, 1) ? c->out[1].data : NULL,
        .v = second_moment ? c->out[2].data : NULL,
        .master = call_has_out(c, last) ? c->out[last].data : NULL,
        .lr = hyper[0],
        .c1 = hyper[1],
        .c2 = hyper[2],
        .stream = update_stream(&c->attr.optim, hyper),
        .factor = *(const float *)c->in[2].data,
        .ratio = 1,
        .sums = c->scratch,
        .count = view_count(&c->in[0]),
    };
}

INLINE bool update_accepts(const struct call *c)
{
    for (int i = 1; i < c->nout; i++)
        if (call_has_out(c, i) && !is_f32(&c->out[i])) return false;
    return is_plain(&c->in[0]) && is_f32(&c->in[1]) && is_f32(&c->in[2]) && is_plain(&c->out[0]);
}

INLINE vf get_gradient(const struct update *u, size_t i, size_t n) { return vset(u->factor) * load(u->gtype, u->g, i, n); }

INLINE vf get_parameter(const struct update *u, size_t i, size_t n)
{
    return u->master ? load(LS_F32, u->master, i, n) : load(u->ptype, u->p, i, n);
}

/* Elements [i, i + n), rounded to bf16 as struct rounding says. */
INLINE vf round_stochastically(const struct update *u, size_t i, size_t n, vf p)
{
    uint32_t word[LANES] = { 0 };
    vw ordered = (vw)(p == p), random; /* not NaN */

    for (size_t k = 0, count; k < n; k += count) {
        uint64_t index = rounding_index(&u->a->rounding, i + k, &count);

        count = MIN(count, n - k);
        philox_u32(u->a->rounding.seed, u->stream, index, count, word + k);
    }
    memcpy(&random, word, sizeof random);
    return (vf)(((((vw)p + (random >> 16)) & 0xffff0000u) & ordered) | ((vw)p & ~ordered));
}

INLINE void put_parameter(const struct update *u, size_t i, size_t n, vf p)
{
    if (u->a->rounding.run) p = round_stochastically(u, i, n, p);
    if (u->master) store(LS_F32, u->master, i, n, p);
    store(u->ptype, u->p, i, n, p);
}

INLINE size_t update_blocks(size_t count) { return count / UPDATE_BLOCK + (count % UPDATE_BLOCK != 0); }

/* Squares summed in double lanes. */
INLINE vd squares(vd sum, vf x)
{
    vd low = vlow(x), high = vhigh(x);

    return sum + (low * low + high * high);
}

/* Bytes of u.sums for a call whose operand 0 is the gradient. */
INLINE size_t update_scratch(const struct call *c) { return update_blocks(view_count(&c->in[0])) * 2 * sizeof(double); }

/* norms[2] += the sums over all blocks, in their order. */
INLINE void update_fold(const struct update *u, double *norms)
{
    double a = 0, b = 0;

    for (size_t i = 0; i < update_blocks(u->count); i++) {
        a += u->sums[2 * i];
        b += u->sums[2 * i + 1];
    }
    norms[0] += a;
    norms[1] += b;
}

#endif
