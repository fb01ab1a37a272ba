/* xent.c - rows of logits: log-sum-exp, and the gradient in place. */
#include "kernels/cpu/xent.h"

#include <math.h>
#include "kernels/cpu/simd/simd_math.h"

enum { STRIP = 1024 }; /* logits that are read twice while they are cached */

/* Each lane's sum is relative to the largest logit of the strips so far. */
static float row_lse(const float *logits, size_t V)
{
    float most = -INFINITY;
    vf sum = vset(0);

    for (size_t s = 0; s < V; s += STRIP) {
        size_t end = MIN(V, s + STRIP);
        vf largest = vset(-INFINITY);

        EACH(i, n, s, end)
        largest = vmax(largest, vkeep(vload_f32(logits + i, n), n, -INFINITY));
        float larger = vlargest(largest);
        if (larger > most) {
            sum = sum * vset(expf(most - larger));
            most = larger;
        }
        EACH(i, n, s, end)
        sum += vkeep(vexp(vload_f32(logits + i, n) - vset(most)), n, 0);
    }
    return most + logf(vsum(sum));
}

/* A bf16 row ends up in the first half of its floats: elements are read before they are overwritten. */
INLINE void gradient_as(ls_dtype type, float *logits, size_t V, float lse, size_t y, float factor)
{
    float target = factor * (expf(logits[y] - lse) - 1);

    EACH(i, n, 0, V)
    store(type, logits, i, n, vset(factor) * vexp(vload_f32(logits + i, n) - vset(lse)));
    store_one(type, logits, y, target);
}

static void row_gradient(float *logits, size_t V, float lse, size_t y, float factor, bool bf16)
{
    if (bf16)
        gradient_as(LS_BF16, logits, V, lse, y, factor);
    else
        gradient_as(LS_F32, logits, V, lse, y, factor);
}

const struct xent_rows SIMD_PASTE(xent_, rows, SIMD_ISA) = { .lse = row_lse, .gradient = row_gradient };
