/* normals.c - see normals.h. */
#include "kernels/cpu/normals.h"

#include "base/rng.h"
#include "kernels/kernel.h"

static void normals_scalar(uint64_t seed, uint64_t stream, uint64_t from, size_t n, double scale, double *out)
{
    rng_normals(seed, stream, from, n, out);
    for (size_t i = 0; i < n; i++) out[i] *= scale;
}

void normals(uint64_t seed, uint64_t stream, uint64_t from, size_t n, double scale, double *out)
{
    enum isa best = isa_best();
    normals_fn *fn = best >= ISA_AVX512 ? normals_range_avx512 : best >= ISA_AVX2 ? normals_range_avx2 : normals_scalar;

    fn(seed, stream, from, n, scale, out);
}
