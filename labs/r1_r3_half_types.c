/* R1 - fp16 (5 exponent bits, 10 of mantissa, largest 65504) overflows to inf, and inf becomes NaN; at the other end small gradients
 * underflow to 0 and training stalls.
 *
 * R3 - bf16 (8 exponent bits, 7 of mantissa) has fp32's range: neither happens, no loss scaling is needed.
 *
 * One program for both types: 300 * 300 in forward, and a loss so small that the gradients are about 1e-8. Where a type ends is found by
 * trying all of its 65536 patterns of bits. */
#include "lab.h"
#include "lockstep/dtype.h"
#include "lockstep/ops.h"
#include "lockstep/optim.h"

/* y = 300 * 300, and y - y. The status is that of a run that checks every instruction. */
static ls_status overflow(ls_dtype type, double *y, double *difference)
{
    ls_compile_options careless = LS_COMPILE_DEFAULTS, careful = { .check_finite = 1 };
    ls_store_options options = { "cpu", type, 1, 0, 0 };
    double x = 300;
    ls_status st = LS_OK;

    for (int check = 0; check < 2; check++) {
        ls_store *s;
        ls_program *p;

        TRY(ls_store_new(&options, &s));
        TRY(ls_program_new(s, &p));
        ls_value w = ls_param(p, "w", (ls_init){ LS_INIT_ONES, 0 }, SIZES(1, 1));
        ls_value v = ls_linear(p, ls_input(p, "x", type, SIZES(1, 1)), w, LS_NONE);
        ls_output(p, "difference", ls_add(p, v, ls_scale(p, v, -1)));
        ls_output(p, "y", v);
        TRY(ls_program_compile(p, check ? &careful : &careless));
        TRY(ls_store_set(s, 0, &x, LS_F64, 1));
        TRY(ls_program_write(p, "x", &x, LS_F64, 1));
        st = ls_program_run(p, LS_FORWARD);
        if (!check) {
            TRY(st);
            TRY(ls_program_read(p, "y", y, LS_F64, 1));
            TRY(ls_program_read(p, "difference", difference, LS_F64, 1));
        }
        ls_program_release(&p);
        ls_store_release(&s);
    }
    return st;
}

/* Norm of the weight's gradient after 100 steps under a loss of |W x - y|^2 * 1e-7, and how far the weight has gone. */
static double underflow(ls_dtype type, double *moved)
{
    ls_store_options options = { "cpu", type, 1, 0, 0 };
    ls_optimizer sgd = { .kind = LS_SGD };
    double x[4] = { 1, -1, 0.5, 0.25 }, y = 2, w[4];
    ls_store *s;
    ls_program *p;

    TRY(ls_store_new(&options, &s));
    TRY(ls_program_new(s, &p));
    ls_value v = ls_linear(p, ls_input(p, "x", type, SIZES(1, 4)), ls_param(p, "w", (ls_init){ LS_INIT_ZEROS, 0 }, SIZES(1, 4)),
                  LS_NONE);
    v = ls_scale(p, v, 1);  /* the error passes through one more value of the type */
    ls_backward(p, ls_scale(p, ls_mse(p, v, ls_input(p, "y", type, SIZES(1, 1))), 2.5e-9));
    TRY(ls_optimizer_append(p, &sgd));
    TRY(ls_program_compile(p, NULL));
    TRY(ls_program_write(p, "x", x, LS_F64, 4));
    TRY(ls_program_write(p, "y", &y, LS_F64, 1));
    for (uint64_t t = 1; t <= 100; t++) {
        ls_store_zero_grad(s);
        TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
        TRY(ls_optimizer_set(p, &sgd, 1e6, t));
        TRY(ls_program_run(p, LS_OPTIMIZER_STEP));
    }
    double norm = ls_optimizer_norm(p);
    TRY(ls_tensor_read(ls_store_value(s, 0), w, LS_F64, 4));
    *moved = fabs(w[0]) + fabs(w[1]) + fabs(w[2]) + fabs(w[3]);
    ls_program_release(&p);
    ls_store_release(&s);
    return norm;
}

/* What the 65536 patterns of a type of 16 bits hold. */
struct half_range {
    double largest, smallest, next; /* largest finite number; smallest positive one; the next one after 1 */
};

static struct half_range half_range_of(ls_dtype type)
{
    struct half_range r = { 0, INFINITY, INFINITY };

    for (unsigned k = 0; k < 65536; k++) {
        uint16_t bits = (uint16_t)k;
        double x;

        ls_convert(&x, LS_F64, &bits, type, 1);
        if (isfinite(x) && x > r.largest) r.largest = x;
        if (x > 0 && x < r.smallest) r.smallest = x;
        if (x > 1 && x < r.next) r.next = x;
    }
    return r;
}

/* The largest finite number of 16 bits of which so many are the exponent: the largest exponent is for inf and NaN, as in IEEE 754. */
static double largest_of(int exponent_bits)
{
    int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    double largest = 0;

    for (int k = 0; k < 1 << 15; k++) {
        int exponent = k >> fraction_bits, part = k & ((1 << fraction_bits) - 1);
        double fraction = ldexp(part, -fraction_bits), x = exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias);

        if (exponent < top && x > largest) largest = x;
    }
    return largest;
}

/* The smallest whole number that fp16 rounds to infinity. */
static double first_infinite(void)
{
    float x = 60000;

    while (isfinite(ls_f16_to_f32(ls_f32_to_f16(x)))) x++;
    return x;
}

LAB(r1_r3_half_types, "fp16 and bf16", { "exponent-bits", "exponent bits of a format of 16 bits", 5, 2, 8 })
{
    int bits = (int)lab_size("exponent-bits");
    struct half_range f16 = half_range_of(LS_F16), bf16 = half_range_of(LS_BF16);
    double y, difference, moved, full;

    lab_open("R1");
    lab_equal("fp16: largest finite number", 65504, f16.largest, 0);
    lab_check("the chosen format: largest finite number", (2 - ldexp(1, bits - 15)) * ldexp(1, (1 << (bits - 1)) - 1), largest_of(bits), 0);
    lab_check("5 exponent bits: largest finite number / fp16's", 1, largest_of(5) / f16.largest, 0);
    lab_check("8 exponent bits: largest finite number / bf16's", 1, largest_of(8) / bf16.largest, 0);
    lab_check("fp16: first whole number that rounds to infinity", 65520, first_infinite(), 0);
    lab_check("fp16: smallest positive number", ldexp(1, -24), f16.smallest, 0);
    lab_check("fp16: distance from 1 to the next number", ldexp(1, -10), f16.next - 1, 0);
    ls_status st = overflow(LS_F16, &y, &difference);
    lab_equal("fp16: 300 * 300 is infinite", 1, isinf(y) != 0, 0);
    lab_equal("fp16: inf - inf is no number", 1, isnan(difference) != 0, 0);
    lab_equal("fp16: a run that checks refuses it", 1, st == LS_EINVAL, 0);
    lab_say("    \"%s\"\n", ls_errmsg());
    lab_equal("fp16: gradient norm under a tiny loss", 0, underflow(LS_F16, &moved), 0);
    lab_equal("fp16: distance that 100 steps move the weights", 0, moved, 0);

    lab_open("R3");
    lab_equal("bf16: largest finite number / fp32's", 1, bf16.largest / 3.4028234663852886e38, 1.0 / 256);
    lab_check("bf16: distance from 1 to the next number / fp16's", 8, (bf16.next - 1) / (f16.next - 1), 0);
    st = overflow(LS_BF16, &y, &difference);
    lab_equal("bf16: 300 * 300, to half of its last of 8 bits", 90000, y, 1.0 / 512);
    lab_equal("bf16: its difference with itself", 0, difference, 0);
    lab_equal("bf16: a run that checks accepts it", 1, st == LS_OK, 0);
    lab_equal("bf16: gradient norm under the same loss / fp32's", 1, underflow(LS_BF16, &moved) / underflow(LS_F32, &full), 1.0 / 128);
    lab_equal("bf16: distance that 100 steps move the weights / fp32's", 1, moved / full, 1.0 / 64);
    return lab_close();
}
