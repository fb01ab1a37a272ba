/* F2 - NaN in attention from fp16 logits: a query and a key of large elements have a product above 65504, which is inf in fp16, and softmax
 * makes NaN of inf - inf. The first such value is named by a run that checks.
 *
 * Attention as three ops with its scores in memory does so. Fused attention keeps its scores in f32, so the same queries and keys are
 * harmless in fp16; and bf16 has f32's range in either form. */
#include "lab.h"
#include "lockstep/ops.h"

enum { T = 4, D_MOST = 256 };

/* Runs attention over T tokens of one head whose queries and keys are all `element`. Returns the status of a run that checks. *score: the
 * first element of Q K^T where it is in memory. */
static ls_status attention_run(ls_dtype type, int fused, size_t D, double element, double *out, double *score)
{
    static double q[T * D_MOST], v[T * D_MOST], y[T * D_MOST], scores_of[T * T];
    ls_store_options options = { "cpu", type, 1, 0, 0 };
    ls_status st = LS_OK;

    for (size_t i = 0; i < T * D; i++) q[i] = element, v[i] = 1;
    for (int check = 0; check < 2; check++) {
        ls_compile_options compile = { .check_finite = check };
        ls_store *s;
        ls_program *p;
        ls_value o;

        TRY(ls_store_new(&options, &s));
        TRY(ls_program_new(s, &p));
        ls_value a = ls_input(p, "q", type, SIZES(1, T, 1, D));
        ls_value b = ls_input(p, "k", type, SIZES(1, T, 1, D));
        ls_value c = ls_input(p, "v", type, SIZES(1, T, 1, D));
        if (fused) {
            o = ls_attention(p, a, b, c, 0, LS_NONE);
        } else {
            ls_value rows = ls_reshape(p, a, SIZES(1, T, D)), keys = ls_reshape(p, b, SIZES(1, T, D));
            ls_value products = ls_matmul(p, rows, ls_contiguous(p, ls_transpose(p, keys, 1, 2)));
            ls_value scores = ls_scale(p, products, 1 / sqrt((double)D));

            ls_output(p, "products", products);
            o = ls_matmul(p, ls_softmax(p, scores), ls_reshape(p, c, SIZES(1, T, D)));
        }
        ls_output(p, "o", o);
        TRY(ls_program_compile(p, &compile));
        TRY(ls_program_write(p, "q", q, LS_F64, T * D));
        TRY(ls_program_write(p, "k", q, LS_F64, T * D));
        TRY(ls_program_write(p, "v", v, LS_F64, T * D));
        st = ls_program_run(p, LS_FORWARD);
        if (!check) {
            TRY(st);
            TRY(ls_program_read(p, "o", y, LS_F64, T * D));
            *out = y[0];
            if (!fused) TRY(ls_program_read(p, "products", scores_of, LS_F64, T * T));
            if (!fused) *score = scores_of[0];
        }
        ls_program_release(&p);
        ls_store_release(&s);
    }
    return st;
}

LAB(f2_logits, "attention in fp16", { "element", "each element of queries and keys", 40, 23, 200 },
    { "width", "channels of a head", 64, 16, D_MOST })
{
    size_t d = (size_t)lab_size("width");
    double x = (double)lab_size("element"), y, score, product = (double)d * x * x;
    int over = product >= 65520; /* rounds to infinity */
    ls_status st = attention_run(LS_F32, 0, d, x, &y, &score);

    lab_say("each score is %.0f before it is divided by sqrt(%zu); fp16 ends at 65504\n\n", product, d);
    lab_open("F2");
    lab_check("f32: a score before it is divided by the root of the width", product, score, 0);
    st = attention_run(LS_F16, 0, d, x, &y, &score);
    lab_check("fp16: such a score is infinite", over, isinf(score) != 0, 0);
    lab_equal("fp16, scores in memory: the output is NaN", over, isnan(y) != 0, 0);
    lab_equal("fp16, scores in memory: a run that checks refuses it and names the op", over,
              st == LS_EINVAL && strstr(ls_errmsg(), "matmul"), 0);
    if (over) lab_say("    \"%s\"\n", ls_errmsg());
    st = attention_run(LS_F16, 1, d, x, &y, &score);
    if (over)
        lab_corrected("fp16, fused attention: the output is NaN (1), or 1.0 as it should be (0)", '=', 1, 0, !(fabs(y - 1) <= 1e-3), 0,
                      "why: its scores are in f32 and are never stored");
    else
        lab_check("fp16, fused attention: the output", 1, y, 1e-3);
    lab_check("fp16, fused attention: a run that checks accepts it", 1, st == LS_OK, 0);
    st = attention_run(LS_BF16, 0, d, x, &y, &score);
    lab_check("bf16, scores in memory: the output", 1, y, 1.0 / 128);
    lab_check("bf16, scores in memory: a run that checks accepts it", 1, st == LS_OK, 0);
    return lab_close();
}
