/* emulator_mma.h - tensor cores and ldmatrix under the emulator: the functions of src/kernels/cuda/mma.h that are PTX under nvcc.
 *
 * All lanes of the warp hand over their registers and wait for each other; the last one computes for all, from the layouts of the PTX ISA
 * ("Matrix fragments for mma.m16n8k16 with floating point type", "ldmatrix"). A lane that does not take part, or calls from elsewhere in
 * the kernel, is reported as for shuffles.
 */
#ifndef LS_TESTS_CUDA_EMULATOR_MMA_H
#define LS_TESTS_CUDA_EMULATOR_MMA_H

/* The call in the kernel, as a default argument. */
struct mma_site {
    const char *file;
    int line;

    mma_site(const char *f = __builtin_FILE(), int l = __builtin_LINE()) : file(f), line(l) {}
};

void emulator_mma(bool half, float *c, const uint32_t *a, const uint32_t *b, struct mma_site at);
void emulator_ldmatrix(bool transposed, uint32_t *r, const void *row, struct mma_site at);

inline constexpr bool mma_is_half(const __half *) { return true; }
inline constexpr bool mma_is_half(const __nv_bfloat16 *) { return false; }

template <typename T> void mma_16x8x16(struct mma_c *c, const struct mma_a<T> &a, const struct mma_b<T> &b, struct mma_site at = mma_site())
{
    emulator_mma(mma_is_half((const T *)nullptr), c->v, a.r, b.r, at);
}

template <bool TRANSPOSED, typename T> void mma_ldmatrix(uint32_t *r, shared<const T> row, struct mma_site at)
{
    emulator_ldmatrix(TRANSPOSED, r, emulator_touch(row.region, row.at, 16, 16, EMULATOR_READ), at);
}

inline uint32_t mma_pair(__nv_bfloat16 low, __nv_bfloat16 high) { return low.bits | (uint32_t)high.bits << 16; }
inline uint32_t mma_pair(__half low, __half high) { return low.bits | (uint32_t)high.bits << 16; }

#endif
