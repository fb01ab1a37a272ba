/* test_kernels_ref.c - the reference itself compared with other sources: PyTorch 2.15's optimizers (three steps
 * in double), transformers 5.23's Llama 3 frequencies, and LAMB and LARS computed by hand.
 */
#include "helper_kernels.h"

#include <math.h>
#include "base/base.h"

#define CHECK_NEAR(got, want, tol)                                                          \
    do {                                                                                    \
        double g_ = (got), w_ = (want);                                                     \
        if (!(fabs(g_ - w_) <= (tol) * fmax(1, fabs(w_))))                                  \
            fail_msg("%s:%d: %.12g, expected %.12g", __FILE__, __LINE__, g_, w_);           \
    } while (0)

static struct view vector(double *data, size_t n) { return view_of(data, LS_F64, 1, &n); }

static void reference_run(enum op op, struct call *c)
{
    c->op = op;
    kernel_run(kernel_reference(op), c, 0xff, op_name(op));
}

/* Three steps on three parameters; want: the parameters then. */
static void check_updates(enum op op, struct optimizer_attr a, int moments, const double want[3])
{
    static double gradients[3][3] = { { 0.1, -0.2, 0.3 }, { -0.4, 0.25, 0.05 }, { 0.7, 0, -0.6 } };
    double p[3] = { 0.5, -1.25, 2 }, m[3] = { 0 }, v[3] = { 0 }, factor = 1;

    for (int t = 1; t <= 3; t++) {
        double hyper[4] = { 0.1, 1 / (1 - pow(0.9, t)), 1 / (1 - pow(0.95, t)), t };
        struct call c = { .nin = 3, .nout = 1 + moments, .attr.optim = a };

        c.in[0] = vector(gradients[t - 1], 3);
        c.in[1] = vector(hyper, 4);
        c.in[2] = vector(&factor, 1);
        c.out[0] = vector(p, 3);
        c.out[1] = vector(m, 3);
        c.out[2] = vector(v, 3);
        reference_run(op, &c);
    }
    for (int i = 0; i < 3; i++)
        CHECK_NEAR(p[i], want[i], 1e-6);
}

static void test_pytorch_optimizers(void **state)
{
    struct optimizer_attr a = { .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .momentum = 0.9f };

    (void)state;
    check_updates(OP_SGD, a, 0, (double[]){ 0.46, -1.255, 2.025 });
    check_updates(OP_LARS, a, 0, (double[]){ 0.46, -1.255, 2.025 });  /* without norms it is SGD */
    a.weight_decay = 0.01f;
    check_updates(OP_SGD, a, 1, (double[]){ 0.4760953895, -1.23634447875, 1.958108568 });
    check_updates(OP_ADAM, a, 2, (double[]){ 0.42082669459959, -1.16724711871009, 1.84246646108092 });
    a.nesterov = 1;
    check_updates(OP_SGD, a, 1, (double[]){ 0.4369509619805, -1.23904169924625, 1.981536586512 });
    a.decoupled = 1;
    check_updates(OP_ADAM, a, 2, (double[]){ 0.421468023040211, -1.17537282575096, 1.84419818539265 });
}

/* One step from m = v = 0: u = sign(g) + wd p = (2.5, 1), |p| = 5, |u| = sqrt(7.25). */
static void test_lamb_by_hand(void **state)
{
    double p[2] = { 3, 4 }, g[2] = { 0.5, -0.1 }, m[2] = { 0 }, v[2] = { 0 }, factor = 1;
    double hyper[4] = { 0.1, 1 / (1 - (double)0.9f), 1 / (1 - (double)0.95f), 1 };
    double norms[2] = { 0 };
    struct call c = { .nin = 4, .nout = 3 }, d = { .nin = 4, .nout = 1 };

    (void)state;
    c.attr.optim = d.attr.optim = (struct optimizer_attr){ .beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.5f };
    c.in[0] = vector(g, 2);
    c.in[1] = d.in[2] = vector(hyper, 4);
    c.in[2] = vector(&factor, 1);
    c.in[3] = d.out[0] = vector(p, 2);
    c.out[0] = d.in[0] = vector(m, 2);
    c.out[1] = d.in[1] = vector(v, 2);
    c.out[2] = d.in[3] = vector(norms, 2);
    reference_run(OP_LAMB_MOMENTS, &c);
    CHECK_NEAR(norms[0], 25, 1e-12);
    CHECK_NEAR(norms[1], 7.25, 1e-9);
    reference_run(OP_LAMB, &d);
    CHECK_NEAR(p[0], 3 - 0.1 * 5 / sqrt(7.25) * 2.5, 1e-9);
    CHECK_NEAR(p[1], 4 - 0.1 * 5 / sqrt(7.25), 1e-9);
}

/* |p| = 5, |g| = 1: ratio 0.02 5 / (1 + 0.1 5) = 1/15, g + wd p = (0.9, 1.2). The factor halves a doubled gradient. */
static void test_lars_by_hand(void **state)
{
    double p[2] = { 3, 4 }, g[2] = { 1.2, 1.6 }, factor = 0.5, hyper[4] = { 0.5, 0, 0, 1 };
    double norms[2] = { 0 };
    struct call c = { .nin = 4, .nout = 1, .attr.optim = { .weight_decay = 0.1f, .trust = 0.02f } };
    struct call d = { .nin = 3, .nout = 1 };

    (void)state;
    c.in[0] = d.in[0] = vector(g, 2);
    c.in[1] = vector(hyper, 4);
    c.in[2] = d.in[1] = vector(&factor, 1);
    c.in[3] = d.out[0] = vector(norms, 2);
    c.out[0] = d.in[2] = vector(p, 2);
    reference_run(OP_LARS_NORMS, &d);
    CHECK_NEAR(norms[0], 25, 1e-12);
    CHECK_NEAR(norms[1], 1, 1e-12);
    reference_run(OP_LARS, &c);
    CHECK_NEAR(p[0], 2.97, 1e-8);
    CHECK_NEAR(p[1], 3.96, 1e-8);
}

/* Without a master copy a bf16 parameter loses steps of less than 1/512 of its value; with one they add up. */
static void test_master_copy(void **state)
{
    for (int with_master = 0; with_master < 2; with_master++) {
        uint16_t p = ls_f32_to_bf16(1);
        float master = 1, g = 1, hyper[4] = { 1e-3f, 1, 1, 1 }, factor = 1;
        size_t one = 1, four = 4;
        struct call c = { .nin = 3, .nout = 3 };

        c.in[0] = view_of(&g, LS_F32, 1, &one);
        c.in[1] = view_of(hyper, LS_F32, 1, &four);
        c.in[2] = view_of(&factor, LS_F32, 1, &one);
        c.out[0] = view_of(&p, LS_BF16, 1, &one);
        c.out[1].ndim = VIEW_ABSENT;
        c.out[2] = view_of(&master, LS_F32, 1, &one);
        if (!with_master)
            c.out[2].ndim = VIEW_ABSENT;
        for (int t = 0; t < 100; t++)
            reference_run(OP_SGD, &c);
        if (with_master)
            CHECK_NEAR(ls_bf16_to_f32(p), 0.9, 4e-3);
        else
            assert_true(ls_bf16_to_f32(p) == 1);
    }
    (void)state;
}

static void test_llama3_frequencies(void **state)
{
    static const struct { size_t i; double frequency; } known[] = {
        { 0, 1 }, { 1, 0.663601279 }, { 10, 0.0165604409 }, { 14, 0.00321144611 }, { 15, 0.00137189368 },
        { 16, 0.000524846022 }, { 17, 0.000178507791 }, { 18, 7.78465546e-05 }, { 20, 3.42810235e-05 },
        { 31, 3.7673226e-07 },
    };
    int32_t pos = 1;
    double table[64];
    size_t one = 1;
    struct call c = { .nin = 1, .nout = 1, .attr.rope = { 500000, 8, 1, 4, 8192 } };

    (void)state;
    c.in[0] = view_of(&pos, LS_I32, 1, &one);
    c.out[0] = view_of(table, LS_F64, 2, (size_t[]){ 1, 64 });
    reference_run(OP_ROPE_TABLE, &c);
    for (size_t k = 0; k < COUNT_OF(known); k++) {
        double angle = atan2(table[32 + known[k].i], table[known[k].i]);

        if (fabs(angle / known[k].frequency - 1) > 1e-6)
            fail_msg("frequency %zu is %.9g, transformers has %.9g", known[k].i, angle, known[k].frequency);
    }
}

/* The operands' meaning at its edges: nothing visible, nothing valid. */
static void test_edges(void **state)
{
    double x[4] = { 1, 2, 3, 4 }, w[6] = { 1, 0, 0, 1, 1, 1 }, loss = 7, lse[2], o[4] = { 9, 9, 9, 9 }, attended[2];
    int32_t y[2] = { -1, -1 };
    struct call c = { .nin = 4, .nout = 2 };

    (void)state;
    c.in[0] = view_of(x, LS_F64, 2, (size_t[]){ 2, 2 });
    c.in[1] = view_of(w, LS_F64, 2, (size_t[]){ 3, 2 });
    c.in[2] = view_of(y, LS_I32, 1, (size_t[]){ 2 });
    c.in[3].ndim = VIEW_ABSENT;
    c.out[0] = vector(&loss, 1);
    c.out[1] = vector(lse, 2);
    reference_run(OP_LINEAR_XENT, &c);
    assert_true(loss == 0);
    CHECK_NEAR(lse[0], log(exp(1) + exp(2) + exp(3)), 1e-12);
    y[1] = 2;  /* the row (3, 4): logits 3, 4, 7 */
    reference_run(OP_LINEAR_XENT, &c);
    CHECK_NEAR(loss, log(exp(3) + exp(4) + exp(7)) - 7, 1e-12);
    /* T = 2, S = 1, causal: query 0 comes before every key */
    c = (struct call){ .nin = 3, .nout = 2, .attr.attention = { .causal = 1, .scale = 1 } };
    c.in[0] = view_of(x, LS_F64, 4, (size_t[]){ 1, 2, 1, 2 });
    c.in[1] = c.in[2] = view_of(w, LS_F64, 4, (size_t[]){ 1, 1, 1, 2 });
    c.out[0] = view_of(o, LS_F64, 4, (size_t[]){ 1, 2, 1, 2 });
    c.out[1] = view_of(attended, LS_F64, 3, (size_t[]){ 1, 1, 2 });
    reference_run(OP_ATTENTION, &c);
    assert_true(o[0] == 0 && o[1] == 0 && attended[0] == -INFINITY);
    assert_true(o[2] == 1 && o[3] == 0);
    CHECK_NEAR(attended[1], 3, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pytorch_optimizers),
        cmocka_unit_test(test_lamb_by_hand),
        cmocka_unit_test(test_lars_by_hand),
        cmocka_unit_test(test_master_copy),
        cmocka_unit_test(test_llama3_frequencies),
        cmocka_unit_test(test_edges),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
