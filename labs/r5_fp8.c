/* R5 - fp8: e4m3 ends at 448, e5m2 at 57344; so a scale per tensor, or per block; half of bf16's bytes.
 *
 * The library has no tensors of fp8, and this machine no unit that multiplies them: speed and training are not measurable. What the formats
 * can hold is: all 256 patterns are listed, and numbers are rounded to the nearest. A made-up gradient of 1e-6 vanishes without a scale,
 * fits with one, and vanishes again if one element of its tensor is 100,000 times larger, unless blocks have scales of their own.
 *
 * With 4 exponent bits all patterns but two are numbers (OCP e4m3); with 3 or 5 the largest exponent is for inf and NaN, as in IEEE 754. */
#include "lab.h"
#include "lockstep/dtype.h"

enum { NUMBERS = 128, ELEMENTS = 4096, BLOCK = 32 };

/* The finite numbers of a format that are not negative, in ascending order. */
struct fp8 {
    double number[NUMBERS];
    int count;
};

static struct fp8 fp8_of(int exponent_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, parts = 1 << (7 - exponent_bits), top = (1 << exponent_bits) - 1;
    struct fp8 f = { { 0 }, 0 };

    for (int k = 0; k < NUMBERS; k++) {
        int exponent = k / parts, part = k % parts;
        int special = exponent_bits == 4 ? k == NUMBERS - 1 : exponent == top;

        if (special) continue;
        f.number[f.count++] = exponent ? ldexp(1 + (double)part / parts, exponent - bias) : ldexp((double)part / parts, 1 - bias);
    }
    return f;
}

/* To nearest, ties to the pattern that ends in 0; beyond the end: the end. */
static double fp8_round(const struct fp8 *f, double x)
{
    double size = fabs(x);
    int k = 1;

    while (k < f->count - 1 && f->number[k] < size) k++;
    double low = f->number[k - 1], high = f->number[k], middle = (low + high) / 2;
    size = size < middle || (size == middle && k % 2) ? low : high;
    return x < 0 ? -size : size;
}

/* The share of the elements that are not 0 but become 0 if each block of so many is scaled to the end of the range. 0: no scale. */
static double fp8_lost(const struct fp8 *f, const double *x, int block)
{
    int lost = 0;

    for (int at = 0; at < ELEMENTS; at += block ? block : ELEMENTS) {
        int n = block ? block : ELEMENTS;
        double most = 0;

        for (int i = 0; i < n; i++) most = fabs(x[at + i]) > most ? fabs(x[at + i]) : most;
        double scale = block ? f->number[f->count - 1] / most : 1;
        for (int i = 0; i < n; i++) lost += x[at + i] != 0 && fp8_round(f, x[at + i] * scale) == 0;
    }
    return (double)lost / ELEMENTS;
}

/* The largest relative error of numbers that are not too small for full precision. */
static double fp8_error(const struct fp8 *f)
{
    double most = 0;

    for (double x = 1; x < 8; x += 1.0 / 512) {
        double error = fabs(fp8_round(f, x) - x) / x;

        most = error > most ? error : most;
    }
    return most;
}

LAB(r5_fp8, "what fp8 can hold", { "exponent-bits", "exponent bits of a format of 8 bits", 4, 3, 5 })
{
    static double gradient[ELEMENTS];
    int bits = (int)lab_size("exponent-bits");
    struct fp8 chosen = fp8_of(bits), e4m3 = fp8_of(4), e5m2 = fp8_of(5);

    for (int i = 0; i < ELEMENTS; i++) gradient[i] = 1e-6 * (0.5 + 0.5 * fabs(sin(i + 1))) * (i % 2 ? 1 : -1);
    lab_say("format of 1 + %d + %d bits: %d numbers from 0 to %g, the smallest positive one %g\n\n", bits, 7 - bits, chosen.count,
            chosen.number[chosen.count - 1], chosen.number[1]);
    lab_open("R5");
    lab_equal("e4m3: largest number", 448, e4m3.number[e4m3.count - 1], 0);
    lab_equal("e5m2: largest number", 57344, e5m2.number[e5m2.count - 1], 0);
    lab_check("the chosen format: largest number", bits == 4 ? 448 : bits == 5 ? 57344 : 15.5, chosen.number[chosen.count - 1], 0);
    lab_check("the chosen format: smallest positive number", ldexp(1, -5 - (bits == 4 ? 4 : bits == 5 ? 11 : 1)), chosen.number[1], 0);
    lab_check("the chosen format: largest relative rounding error", 1 / (1 + ldexp(1, 8 - bits)), fp8_error(&chosen), 0.01);
    lab_check("e4m3, gradient of 1e-6, no scale: share that becomes 0", 1, fp8_lost(&e4m3, gradient, 0), 0);
    lab_equal("e4m3, one scale for the tensor: share that becomes 0", 0, fp8_lost(&e4m3, gradient, ELEMENTS), 0);
    gradient[5] = 1;
    double with_outlier = fp8_lost(&e4m3, gradient, ELEMENTS);
    lab_corrected("e4m3, one scale for the tensor, one outlier: share that becomes 0", '=', 0, 1, with_outlier, 0.01,
                  "why: the outlier takes the end of the range, and the rest lands below its smallest number");
    lab_check("e4m3, a scale for each block of 32, one outlier: share that becomes 0", (BLOCK - 1.0) / ELEMENTS,
              fp8_lost(&e4m3, gradient, BLOCK), 0.01);
    lab_not_measurable("bytes and rate of matmuls in fp8",
                       "the library has no fp8 type, and it takes a GPU or processor that multiplies fp8");
    return lab_close();
}
