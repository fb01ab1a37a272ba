/* test_router.c - routing alone: which tokens go to which experts, which are dropped, how padding counts; and the losses of a router
 * compared with their definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "helper_check.h"
#include "lockstep/dtype.h"
#include "lockstep/ops.h"
#include "kernels/cpu/route.h"

/* ---- choices ---- */

enum { B = 2, T = 4, E = 3, K = 2 };

/* The routing of B x T tokens with these logits. */
struct routed { int32_t index[B * T * K], rows[B * T * K], counts[E]; float weight[B * T * K], load[E], out[B * T]; };

/* Each token's row is its number, from 1 on; out is the weighted sum over the experts that took it. */
static void run_route(const float *logits, const float *samples, const ls_route_options *o, struct routed *out)
{
    float x[B * T];
    ls_store *s;
    ls_program *p;

    for (int i = 0; i < B * T; i++)
        x[i] = (float)(i + 1);
    OK(ls_store_new(NULL, &s));
    OK(ls_program_new(s, &p));
    ls_value in = ls_input(p, "logits", LS_F32, 3, (size_t[]){ B, T, E });
    ls_value real = ls_input(p, "samples", LS_F32, 1, (size_t[]){ 2 });
    ls_value tokens = ls_input(p, "x", LS_F32, 3, (size_t[]){ B, T, 1 });
    ls_routing r = ls_route(p, in, LS_NONE, samples ? real : LS_NONE, o);
    ls_output(p, "out", ls_rows_unpermute(p, ls_rows_permute(p, tokens, &r), &r));
    ls_output(p, "index", r.index);
    ls_output(p, "rows", r.rows);
    ls_output(p, "counts", r.counts);
    ls_output(p, "weight", r.weight);
    ls_output(p, "load", ls_route_load(p, &r, 0));
    OK(ls_program_compile(p, NULL));
    OK(ls_program_write(p, "logits", logits, LS_F32, B * T * E));
    OK(ls_program_write(p, "samples", samples ? samples : (float[]){ 0, 0 }, LS_F32, 2));
    OK(ls_program_write(p, "x", x, LS_F32, B * T));
    OK(ls_program_run(p, LS_FORWARD));
    OK(ls_program_read(p, "index", out->index, LS_I32, B * T * K));
    OK(ls_program_read(p, "rows", out->rows, LS_I32, B * T * K));
    OK(ls_program_read(p, "counts", out->counts, LS_I32, E));
    OK(ls_program_read(p, "weight", out->weight, LS_F32, B * T * K));
    OK(ls_program_read(p, "load", out->load, LS_F32, E));
    OK(ls_program_read(p, "out", out->out, LS_F32, B * T));
    ls_program_release(&p);
    ls_store_release(&s);
}

/* All tokens want expert 0 first, ever more so, and expert 1 second; in the second sample they want 2 and 1. */
static const float eager[B * T * E] = {
    1, 0, -9,  2, 0, -9,  4, 0, -9,  3, 0, -9,
    -9, 0, 4,  -9, 0, 3,  -9, 0, 2,  -9, 0, 1,
};

static void test_dropless(void **state)
{
    static const int32_t rows[B * T * K] = { 0, 4, 1, 5, 2, 6, 3, 7, 12, 8, 13, 9, 14, 10, 15, 11 };
    struct routed r;

    (void)state;
    run_route(eager, NULL, &(ls_route_options){ .chosen = K, .normalize = 1 }, &r);
    for (int i = 0; i < B * T; i++) {
        assert_int_equal(r.index[i * K], i < T ? 0 : 2);
        assert_int_equal(r.index[i * K + 1], 1);
        assert_true(fabsf(r.weight[i * K] + r.weight[i * K + 1] - 1) < 1e-6f && r.weight[i * K] > 0.5f);
        assert_true(fabsf(r.out[i] - (float)(i + 1)) < 1e-5f);
    }
    assert_memory_equal(r.rows, rows, sizeof rows);
    assert_true(r.counts[0] == 4 && r.counts[1] == 8 && r.counts[2] == 4);
    assert_true(r.load[0] == 4 && r.load[1] == 8 && r.load[2] == 4);
}

/* Two tokens of each sample per expert. Dropped tokens keep their expert's number, with weight 0. */
static void test_dropped_by_position(void **state)
{
    struct routed r;

    (void)state;
    run_route(eager, NULL, &(ls_route_options){ .chosen = K, .normalize = 1, .capacity = 2 }, &r);
    for (int i = 0; i < B * T; i++) {
        bool kept = i % T < 2;

        assert_int_equal(r.index[i * K], kept ? (i < T ? 0 : 2) : (i < T ? ~0 : ~2));
        assert_int_equal(r.index[i * K + 1], kept ? 1 : ~1);
        assert_true(kept ? r.rows[i * K] >= 0 : r.rows[i * K] == -1 && r.weight[i * K] == 0 && r.weight[i * K + 1] == 0);
        assert_true(fabsf(r.out[i] - (kept ? (float)(i + 1) : 0)) < 1e-5f);
    }
    assert_true(r.counts[0] == 2 && r.counts[1] == 4 && r.counts[2] == 2);
    assert_true(r.load[0] == 4 && r.load[1] == 8 && r.load[2] == 4); /* what the tokens chose */
}

/* The largest scores stay: of the first sample tokens 2 and 3 at expert 0; at expert 1, where score falls as expert 0's rises, 0 and 1. */
static void test_dropped_by_probability(void **state)
{
    static const int first[B * T] = { 0, 0, 1, 1, 1, 1, 0, 0 }, second[B * T] = { 1, 1, 0, 0, 0, 0, 1, 1 };
    struct routed r;

    (void)state;
    run_route(eager, NULL, &(ls_route_options){ .chosen = K, .normalize = 1, .capacity = 2, .by_probability = 1 }, &r);
    for (int i = 0; i < B * T; i++) {
        assert_int_equal(r.index[i * K] >= 0, first[i]);
        assert_int_equal(r.index[i * K + 1] >= 0, second[i]);
        assert_true(fabsf(r.out[i] - (float)(i + 1) * (r.weight[i * K] + r.weight[i * K + 1])) < 1e-5f);
    }
    assert_true(r.counts[0] == 2 && r.counts[1] == 4 && r.counts[2] == 2);
}

static void test_padding(void **state)
{
    struct routed r;

    (void)state;
    run_route(eager, (float[]){ 1, 1 }, &(ls_route_options){ .chosen = K, .normalize = 1 }, &r);
    for (int i = T; i < B * T; i++)
        assert_true(r.index[i * K] == ROUTE_PADDING && r.rows[i * K] == -1 && r.out[i] == 0);
    assert_true(r.counts[0] == 4 && r.counts[1] == 4 && r.counts[2] == 0 && r.load[2] == 0);
    run_route(eager, (float[]){ 0, 1 }, &(ls_route_options){ .chosen = K, .normalize = 1 }, &r);
    for (int i = 0; i < B * T; i++)
        assert_true(r.index[i * K] == ROUTE_PADDING && r.out[i] == 0);
    assert_true(r.counts[0] + r.counts[1] + r.counts[2] == 0);
}

/* With equal scores, the lower numbers are chosen. */
static void test_ties(void **state)
{
    float logits[B * T * E] = { 0 };
    struct routed r;

    (void)state;
    run_route(logits, NULL, &(ls_route_options){ .chosen = K, .sigmoid = 1 }, &r);
    for (int i = 0; i < B * T; i++)
        assert_true(r.index[i * K] == 0 && r.index[i * K + 1] == 1 && r.weight[i * K] == 0.5f);
}

/* ---- losses ---- */

/* A router's losses in double, straight from the definition: a mean over the sequences of a step, or over one micro-batch. */
static double plain_router_loss(const float *logits, size_t samples, const ls_router_loss_options *o, size_t chosen)
{
    size_t groups = o->over_micro_batch ? 1 : samples, each = samples * T / groups;
    double loss = 0;

    for (size_t g = 0; g < groups; g++) {
        double f[E] = { 0 }, P[E] = { 0 }, z = 0, aux = 0;

        for (size_t t = g * each; t < (g + 1) * each; t++) {
            double s[E], all = 0, sum = 0;
            const float *x = logits + t * E;

            for (int e = 0; e < E; e++) {
                size_t better = 0;

                for (int k = 0; k < E; k++)
                    better += x[k] > x[e];
                f[e] += better < chosen ? 1.0 / (double)each : 0;
                s[e] = o->sigmoid ? 1 / (1 + exp(-x[e])) : exp(x[e]);
                sum += s[e];
                all += exp(x[e]);
            }
            for (int e = 0; e < E; e++)
                P[e] += s[e] / sum / (double)each;
            z += log(all) * log(all) / (double)each;
        }
        for (int e = 0; e < E; e++)
            aux += f[e] * P[e];
        loss += (o->aux * E * aux + o->z * z) / (double)groups;
    }
    return loss;
}

/* The loss of the first `real` of B samples, which are a step's `all`. */
static double router_loss_of(const float *logits, const ls_router_loss_options *o, size_t chosen, float real, float all)
{
    ls_store *s;
    ls_program *p;
    double loss;

    OK(ls_store_new(NULL, &s));
    OK(ls_program_new(s, &p));
    ls_value in = ls_input(p, "logits", LS_F32, 3, (size_t[]){ B, T, E });
    ls_value samples = ls_input(p, "samples", LS_F32, 1, (size_t[]){ 2 });
    ls_routing r = ls_route(p, in, LS_NONE, samples, &(ls_route_options){ .chosen = chosen, .sigmoid = o->sigmoid });
    ls_output(p, "loss", ls_router_loss(p, in, &r, samples, o));
    OK(ls_program_compile(p, NULL));
    OK(ls_program_write(p, "logits", logits, LS_F32, B * T * E));
    OK(ls_program_write(p, "samples", (float[]){ real, all }, LS_F32, 2));
    OK(ls_program_run(p, LS_FORWARD));
    OK(ls_program_read(p, "loss", &loss, LS_F64, 1));
    ls_program_release(&p);
    ls_store_release(&s);
    return loss;
}

/* The samples of eager go to different experts: each is uneven by itself, and both together are less so. */
static void test_router_loss_definition(void **state)
{
    double apart[2];

    (void)state;
    for (int k = 0; k < 8; k++) {
        ls_router_loss_options o = { k & 1, 0.3, k & 2 ? 0.2 : 0, k >> 2 };
        double both = router_loss_of(eager, &o, K, B, B), first = router_loss_of(eager, &o, K, 1, B);

        assert_true(fabs(both - plain_router_loss(eager, B, &o, K)) < 1e-6 * both);
        assert_true(fabs(first - plain_router_loss(eager, 1, &o, K) / B) < 1e-6 * first);
        if (k % 4 == 0)
            apart[k / 4] = both;
    }
    assert_true(apart[0] > 1.2 * apart[1]);
    /* an even load of K = 1: E * E * 1/E * 1/E = 1 (Switch) */
    for (int k = 0; k < 2; k++) {
        float even[B * T * E];
        ls_router_loss_options o = { 0, 1, 0, k };

        for (int i = 0; i < B * T * E; i++)
            even[i] = i % E == i / E % E ? 1e-4f : 0;
        assert_true(fabs(router_loss_of(even, &o, 1, B, B) - 1) < 1e-3);
    }
}

/* ---- why choices in bf16 depend on the layout ---- */

static float router_rounded(float x)
{
    uint16_t half;
    float y;

    ls_convert(&half, LS_BF16, &x, LS_F32, 1);
    ls_convert(&y, LS_F32, &half, LS_BF16, 1);
    return y;
}

static float random_bf16(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return router_rounded((float)(*state >> 8) / (1 << 23) - 1);
}

/* The input of a router is rounded to bf16. If a sum over tp = 2 is formed from halves that were rounded to bf16 before they are sent, most
 * elements differ from those of one rank. With halves in f32 few differ, but always some, since the order of a sum decides its last bit,
 * and that bit decides a rounding. A token has as many elements as the width, so choices cannot be equal under all layouts. */
static void test_sums_in_other_orders(void **state)
{
    enum { SUMS = 20000, LENGTH = 4096 };
    int f32 = 0, bf16 = 0;
    uint32_t seed = 7;

    (void)state;
    for (int n = 0; n < SUMS; n++) {
        float all = 0, part[2] = { 0, 0 };

        for (int k = 0; k < LENGTH; k++) {
            float x = random_bf16(&seed) * random_bf16(&seed);

            all += x;
            part[k >= LENGTH / 2] += x;
        }
        f32 += router_rounded(all) != router_rounded(part[0] + part[1]);
        bf16 += router_rounded(all) != router_rounded(router_rounded(part[0]) + router_rounded(part[1]));
    }
    print_message("of %d sums of %d, rounded to bf16, %d differ when halves are added in f32, %d when they are rounded before\n", SUMS,
                  LENGTH, f32, bf16);
    assert_true(f32 > 0 && f32 < SUMS / 100);
    assert_true(bf16 > SUMS / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropless), cmocka_unit_test(test_dropped_by_position), cmocka_unit_test(test_dropped_by_probability),
        cmocka_unit_test(test_padding),  cmocka_unit_test(test_ties),                cmocka_unit_test(test_router_loss_definition),
        cmocka_unit_test(test_sums_in_other_orders),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
