/* emulator_mma.cc - what a warp's tensor core and ldmatrix compute, from the registers of its 32 lanes. */
#include "emulator_state.h"
#include "kernels/cuda/mma.h"

struct mma_lane {
    float *c;
    const uint32_t *a, *b;
};

struct ldmatrix_lane {
    const void *row;
    uint32_t *r;
};

static float half_float(bool half, uint32_t pair, int i)
{
    uint16_t bits = (uint16_t)(i ? pair >> 16 : pair);

    return half ? ls_f16_to_f32(bits) : ls_bf16_to_f32(bits);
}

/* The matrices of the PTX ISA: a lane's group is lane / 4, its place in the group lane % 4. */
static void mma_compute(bool half, const struct mma_lane *lane)
{
    float a[16][16], b[16][8], sum;

    for (int l = 0; l < WARP; l++) {
        for (int i = 0; i < 8; i++) /* rows: group, +8 for elements 2 3 6 7; columns: place * 2 + i % 2, +8 from element 4 on */
            a[l / 4 + (i / 2 % 2 ? 8 : 0)][l % 4 * 2 + i % 2 + (i < 4 ? 0 : 8)] = half_float(half, lane[l].a[i / 2], i % 2);
        for (int i = 0; i < 4; i++) /* rows: place * 2 + i % 2, +8 from element 2 on; columns: group */
            b[l % 4 * 2 + i % 2 + (i < 2 ? 0 : 8)][l / 4] = half_float(half, lane[l].b[i / 2], i % 2);
    }
    for (int l = 0; l < WARP; l++)
        for (int i = 0; i < 4; i++) { /* rows: group, +8 from element 2 on; columns: place * 2 + i % 2 */
            int row = l / 4 + (i < 2 ? 0 : 8), column = l % 4 * 2 + i % 2;

            sum = 0;
            for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
            lane[l].c[i] += sum;
        }
}

/* Four 8 x 8 matrices: lanes 8 i .. 8 i + 7 have the addresses of the rows of matrix i, and register i of a lane gets two elements of it:
 * row group, columns place * 2 and + 1; transposed: column group, rows place * 2 and + 1. */
static void ldmatrix_compute(bool transposed, const struct ldmatrix_lane *lane)
{
    uint16_t m[8][8];

    for (int i = 0; i < 4; i++) {
        for (int row = 0; row < 8; row++) memcpy(m[row], lane[8 * i + row].row, sizeof m[row]);
        for (int l = 0; l < WARP; l++) {
            int group = l / 4, place = l % 4 * 2;
            uint16_t low = transposed ? m[place][group] : m[group][place], high = transposed ? m[place + 1][group] : m[group][place + 1];

            lane[l].r[i] = low | (uint32_t)high << 16;
        }
    }
}

/* The last lane that arrives calls this, while the others wait with their registers in place. */
void emulator_warp_compute(emulator_warp_op op, const uint64_t *value)
{
    struct mma_lane mma[WARP];
    struct ldmatrix_lane load[WARP];

    for (int l = 0; l < WARP; l++) {
        if (op == EMULATOR_MMA_BF16 || op == EMULATOR_MMA_F16)
            mma[l] = *(const struct mma_lane *)(uintptr_t)value[l];
        else
            load[l] = *(const struct ldmatrix_lane *)(uintptr_t)value[l];
    }
    if (op == EMULATOR_MMA_BF16 || op == EMULATOR_MMA_F16)
        mma_compute(op == EMULATOR_MMA_F16, mma);
    else
        ldmatrix_compute(op == EMULATOR_LDMATRIX_TRANSPOSED, load);
}

void emulator_mma(bool half, float *c, const uint32_t *a, const uint32_t *b, struct mma_site at)
{
    struct mma_lane mine = { c, a, b };

    emulator_warp(half ? EMULATOR_MMA_F16 : EMULATOR_MMA_BF16, 0xffffffffu, (uintptr_t)&mine, 0, at.file, at.line);
}

void emulator_ldmatrix(bool transposed, uint32_t *r, const void *row, struct mma_site at)
{
    struct ldmatrix_lane mine = { row, r };

    emulator_warp(transposed ? EMULATOR_LDMATRIX_TRANSPOSED : EMULATOR_LDMATRIX, 0xffffffffu, (uintptr_t)&mine, 0, at.file, at.line);
}
