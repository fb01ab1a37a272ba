/* test_experts.c - models with experts on one rank: losses over micro-batches, load balancing, routings kept for recomputation; and
 * refused settings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/json.h"
#include "checkpoint/model_json.h"
#include "helper_check.h"
#include "lockstep/nn.h"
#include "lockstep/optim.h"
#include "ir/program.h"

/* ---- models ---- */

static ls_model small_model(void)
{
    ls_model m;

    OK(ls_model_preset("mixtral-tiny", &m));
    m.width = 16;
    m.head_size = 4;
    m.vocab = 31;
    m.expert_ffn = 12;
    m.init_std = 0.2;
    m.aux_coef = 0;
    return m;
}

struct net { ls_store *s; ls_program *p; ls_optimizer o; ls_model m; size_t b, t; };

static void open_net(struct net *n, const ls_model *m, ls_dtype type, size_t b, size_t t, const ls_compile_options *co)
{
    ls_store_options so = { "cpu", type, 1, 5, 0 };

    *n = (struct net){ .o = LS_OPTIMIZER_DEFAULTS, .m = *m, .b = b, .t = t };
    OK(ls_store_new(&so, &n->s));
    OK(ls_program_new(n->s, &n->p));
    ls_value tokens = ls_input(n->p, "tokens", LS_I32, 2, (size_t[]){ b, t });
    ls_value targets = ls_input(n->p, "targets", LS_I32, 2, (size_t[]){ b, t });
    ls_value denominator = ls_input(n->p, "denominator", LS_F32, 1, (size_t[]){ 1 });
    ls_input(n->p, "samples", LS_F32, 1, (size_t[]){ 2 });
    ls_backward(n->p, ls_output(n->p, "loss", ls_model_loss(n->p, m, tokens, targets, denominator, LS_NONE)));
    OK(ls_optimizer_append(n->p, &n->o));
    OK(ls_program_compile(n->p, co));
}

static void close_net(struct net *n)
{
    ls_program_release(&n->p);
    ls_store_release(&n->s);
}

/* Samples [first, first + real) of a step of `all`, the rest of the micro-batch being padding. The sum of the routers' losses. */
static double micro_batch(struct net *n, size_t first, size_t real, size_t all)
{
    int32_t tokens[256] = { 0 }, targets[256];
    float samples[2] = { (float)real, (float)all }, denominator = (float)(all * n->t);
    double sum = 0, part;

    assert_true(n->b * n->t <= 256);
    for (size_t i = 0; i < n->b * n->t; i++) {
        size_t at = first * n->t + i;

        targets[i] = i < real * n->t ? (int32_t)((at * at + 3) % n->m.vocab) : -1;
        tokens[i] = i < real * n->t ? (int32_t)((at * 7 + at * at / 5) % n->m.vocab) : (int32_t)(i % 3);
    }
    OK(ls_program_write(n->p, "tokens", tokens, LS_I32, n->b * n->t));
    OK(ls_program_write(n->p, "targets", targets, LS_I32, n->b * n->t));
    OK(ls_program_write(n->p, "samples", samples, LS_F32, 2));
    OK(ls_program_write(n->p, "denominator", &denominator, LS_F32, 1));
    OK(ls_program_run(n->p, LS_FORWARD | LS_BACKWARD));
    for (size_t i = 0; i < n->m.layers && (n->m.aux_coef > 0 || n->m.z_coef > 0); i++) {
        char name[64];

        snprintf(name, sizeof name, "model.layers.%zu.router_loss", i);
        OK(ls_program_read(n->p, name, &part, LS_F64, 1));
        sum += part;
    }
    return sum;
}

/* How many tokens chose each expert of a layer in the last micro-batch. */
static void load_of(const struct net *n, size_t layer, double *load)
{
    char name[64];

    snprintf(name, sizeof name, "model.layers.%zu.expert_load", layer);
    OK(ls_program_read(n->p, name, load, LS_F64, n->m.experts));
}

static double grad_distance(const ls_store *a, const ls_store *b)
{
    double apart = 0, all = 0;

    for (size_t i = 0; i < ls_store_count(a); i++) {
        const float *x = ls_tensor_data(ls_store_grad(a, i)), *y = ls_tensor_data(ls_store_grad(b, i));

        for (size_t e = 0; e < ls_tensor_count(ls_store_grad(a, i)); e++) {
            apart += (double)(x[e] - y[e]) * (x[e] - y[e]);
            all += (double)x[e] * x[e];
        }
    }
    return sqrt(apart / all);
}

/* A mean over all sequences is the sum of micro-batches' parts, however many samples each has; padding adds nothing. */
static void test_micro_batches(void **state)
{
    ls_model m = small_model();
    struct net whole, parts;

    (void)state;
    m.z_coef = 0.1;
    m.aux_coef = 0.5;
    m.router_bias_rate = 0.01;
    open_net(&whole, &m, LS_F32, 5, 9, NULL);
    open_net(&parts, &m, LS_F32, 2, 9, NULL);
    double want = micro_batch(&whole, 0, 5, 5);
    double got = micro_batch(&parts, 0, 2, 5) + micro_batch(&parts, 2, 2, 5) + micro_batch(&parts, 4, 1, 5);
    assert_true(fabs(want - got) <= 1e-5 * want && want > 0);
    assert_true(grad_distance(whole.s, parts.s) < 1e-5);
    close_net(&whole);
    close_net(&parts);
    m.aux_over_micro_batch = 1;  /* that one depends on them */
    open_net(&whole, &m, LS_F32, 5, 9, NULL);
    open_net(&parts, &m, LS_F32, 2, 9, NULL);
    want = micro_batch(&whole, 0, 5, 5);
    got = micro_batch(&parts, 0, 2, 5) + micro_batch(&parts, 2, 2, 5) + micro_batch(&parts, 4, 1, 5);
    assert_true(fabs(want - got) > 1e-3 * want);
    close_net(&whole);
    close_net(&parts);
}

/* The loss that evens the load, one micro-batch of three real samples and one of padding, as without the padding. */
static void test_padded_losses(void **state)
{
    ls_model m = small_model();
    struct net padded, plain;
    double load[2][4];

    (void)state;
    m.aux_coef = 0.5;
    m.z_coef = 0.1;
    open_net(&padded, &m, LS_F32, 4, 9, NULL);
    open_net(&plain, &m, LS_F32, 3, 9, NULL);
    double a = micro_batch(&padded, 0, 3, 3);
    double b = micro_batch(&plain, 0, 3, 3);
    assert_true(fabs(a - b) <= 1e-6 * b && b > 0.5);
    assert_true(grad_distance(padded.s, plain.s) < 1e-5);
    load_of(&padded, 1, load[0]);
    load_of(&plain, 1, load[1]);
    for (int e = 0; e < 4; e++)
        assert_true(load[0][e] == load[1][e]);
    assert_true(load[0][0] + load[0][1] + load[0][2] + load[0][3] == 3 * 9 * 2);
    close_net(&padded);
    close_net(&plain);
}

static double load_range(const double *load, size_t n)
{
    double least = INFINITY, most = 0;

    for (size_t e = 0; e < n; e++) {
        least = fmin(least, load[e]);
        most = fmax(most, load[e]);
    }
    return most - least;
}

/* All tokens have a direction in common, to which some experts respond: they get most of the tokens. */
static void lean(struct net *n)
{
    ls_tensor *t = ls_store_value(n->s, (size_t)ls_store_find(n->s, "model.embed_tokens.weight"));
    float *x = ls_tensor_data(t);

    for (size_t i = 0; i < ls_tensor_count(t); i++)
        x[i] += 1;
}

/* How far apart the loads of layer 0's experts are: in the first of forty steps, and in the last ten on average. A bias moves by its rate
 * in every step, so single steps go up and down, and rounding decides how far. */
static void loads_of_routers(const ls_model *m, double *first, double *last)
{
    enum { STEPS = 40, LAST = 10 };
    struct net n;
    double load[8], range;

    open_net(&n, m, LS_F32, 4, 16, NULL);
    lean(&n);
    *last = 0;
    for (uint64_t t = 1; t <= STEPS; t++) {
        ls_store_zero_grad(n.s);
        micro_batch(&n, 0, 4, 4);
        load_of(&n, 0, load);
        range = load_range(load, m->experts);
        if (t == 1)
            *first = range;
        if (t > STEPS - LAST)
            *last += range / LAST;
        OK(ls_optimizer_set(n.p, &n.o, 3e-3, t));
        OK(ls_program_run(n.p, LS_OPTIMIZER_STEP));
    }
    close_net(&n);
}

static void router_bias_balances_load(void **state)
{
    ls_model m = small_model();
    double first, last;

    (void)state;
    m.experts = 8;
    m.init_std = 0.3;
    loads_of_routers(&m, &first, &last);
    assert_true(first > 56 && last > 56); /* of 64 tokens: without load balancing */
    m.aux_coef = 0.3;
    loads_of_routers(&m, &first, &last);
    assert_true(first > 56 && last < 44);
    m.aux_coef = 0;
    m.router_bias_rate = 0.02;
    loads_of_routers(&m, &first, &last);
    assert_true(first > 56 && last < 44);
}

/* The bias moves only by the rate, against the excess load over all micro-batches, and is not part of a norm. */
static void test_bias(void **state)
{
    ls_model m = small_model(), other = m;
    struct net n, without;
    double load[4], sum[4] = { 0 };

    (void)state;
    m.router_bias_rate = 0.125;
    open_net(&n, &m, LS_F32, 2, 9, NULL);
    open_net(&without, &other, LS_F32, 2, 9, NULL);
    for (size_t k = 0; k < 2; k++) {
        micro_batch(&n, 2 * k, 2, 4);
        micro_batch(&without, 2 * k, 2, 4);
        load_of(&n, 1, load);
        for (int e = 0; e < 4; e++)
            sum[e] += load[e];
    }
    double mean = (sum[0] + sum[1] + sum[2] + sum[3]) / 4;
    OK(ls_optimizer_set(n.p, &n.o, 1e-3, 1));
    OK(ls_optimizer_set(without.p, &without.o, 1e-3, 1));
    OK(ls_program_run(n.p, LS_OPTIMIZER_STEP));
    OK(ls_program_run(without.p, LS_OPTIMIZER_STEP));
    assert_true(ls_optimizer_norm(n.p) == ls_optimizer_norm(without.p));
    int at = ls_store_find(n.s, "model.layers.1.mlp.gate.bias");
    assert_true(at >= 0 && ls_store_find(without.s, "model.layers.1.mlp.gate.bias") < 0);
    for (int e = 0; e < 4; e++) {
        float moved = ((const float *)ls_tensor_data(ls_store_value(n.s, (size_t)at)))[e];

        assert_true(moved == (sum[e] > mean ? -0.125f : sum[e] < mean ? 0.125f : 0));
    }
    close_net(&n);
    close_net(&without);
}

/* ---- kept routings ---- */

static void kept_routing_is_reused(void **state)
{
    ls_model m = small_model();
    struct net plain, again;

    (void)state;
    m.aux_coef = m.z_coef = 0.1;
    m.router_bias_rate = 0.1;
    m.capacity = 0.9;
    open_net(&plain, &m, LS_F32, 2, 9, NULL);
    for (int mode = LS_RECOMPUTE_SELECTIVE; mode <= LS_RECOMPUTE_EVERY; mode++) {
        int matmuls = 0;

        open_net(&again, &m, LS_F32, 2, 9, &(ls_compile_options){ .recompute = (ls_recompute)mode, .every = 2, .fuse_loss = 1 });
        for (int k = 0; k < again.p->list[SEG_BACKWARD].n; k++) {
            const struct instruction *i = &again.p->list[SEG_BACKWARD].at[k];

            assert_true(i->op != OP_ROUTE && i->op != OP_ROUTE_ROWS);
            matmuls += i->op == OP_GROUPED_LINEAR;
        }
        assert_true(mode == LS_RECOMPUTE_SELECTIVE ? matmuls == 0 : matmuls > 0);
        ls_store_zero_grad(plain.s);
        micro_batch(&plain, 0, 2, 2);
        micro_batch(&again, 0, 2, 2);
        assert_true(grad_distance(plain.s, again.s) == 0);
        close_net(&again);
    }
    close_net(&plain);
}

static void test_half_types(void **state)
{
    ls_model m = small_model();
    struct net exact, half;
    double loss[2];

    (void)state;
    m.aux_coef = m.z_coef = m.router_bias_rate = 0.1;
    m.shared_ffn = 10;
    open_net(&exact, &m, LS_F32, 2, 9, NULL);
    open_net(&half, &m, LS_BF16, 2, 9, NULL);
    micro_batch(&exact, 0, 2, 2);
    micro_batch(&half, 0, 2, 2);
    OK(ls_program_read(exact.p, "loss", &loss[0], LS_F64, 1));
    OK(ls_program_read(half.p, "loss", &loss[1], LS_F64, 1));
    assert_true(fabs(loss[0] - loss[1]) < 0.02 * loss[0]);
    assert_true(grad_distance(exact.s, half.s) < 0.2);
    OK(ls_optimizer_set(half.p, &half.o, 1e-3, 1));
    OK(ls_program_run(half.p, LS_OPTIMIZER_STEP));
    close_net(&exact);
    close_net(&half);
}

/* ---- descriptions, refusals ---- */

static void test_model_json(void **state)
{
    ls_model m = small_model(), back;
    struct json_out j = { 0 };
    json_node *root;

    (void)state;
    m.shared_ffn = 7;
    m.router = LS_ROUTER_SIGMOID;
    m.drop = LS_DROP_PROBABILITY;
    m.capacity = 1.25;
    m.router_bias_rate = 0.001;
    m.aux_over_micro_batch = 1;
    json_begin_object(&j, NULL);
    model_json_put(&j, "model", &m);
    json_end_object(&j);
    OK(json_out_status(&j));
    OK(json_parse(j.text, j.bytes, "text", &root));
    OK(model_json_get(json_get(root, "model"), "text", &back));
    assert_memory_equal(&m, &back, sizeof m);
    json_close(&root);
    json_out_free(&j);
}

static void routing_refused(ls_program *p, const char *says)
{
    if (ls_program_status(p) != LS_EINVAL || !strstr(ls_errmsg(), says))
        fail_msg("'%s' lacks '%s'", ls_errmsg(), says);
}

static void impossible_routing_is_refused(void **state)
{
    static const char *const says[] = {
        "logits is bf16; routing is computed in f32", "logits are [2,3]; [B,T,E] is expected", "6 of 5 experts are chosen",
        "the bias has 4 elements, there are 5 experts", "samples are [1]; f32 [2] is expected", "x is [2,3,4], rows are [2,4,2]",
        "x is [16,4], w is [5,6,3], counts are [1,5]", "rate is 0; it must be above 0",
    };

    (void)state;
    for (int k = 0; k < 8; k++) {
        ls_store *s;
        ls_program *p;

        OK(ls_store_new(NULL, &s));
        OK(ls_program_new(s, &p));
        ls_value logits = ls_input(p, "logits", k == 0 ? LS_BF16 : LS_F32, k == 1 ? 2 : 3, k == 1 ? (size_t[]){ 2, 3 } : (size_t[]){ 2, 4, 5 });
        ls_value bias = ls_input(p, "bias", LS_F32, 1, (size_t[]){ k == 3 ? 4 : 5 });
        ls_value samples = ls_input(p, "samples", LS_F32, 1, (size_t[]){ k == 4 ? 1 : 2 });
        ls_value x = ls_input(p, "x", LS_F32, 3, (size_t[]){ 2, k == 5 ? 3 : 4, 4 });
        ls_routing r = ls_route(p, logits, bias, samples, &(ls_route_options){ .chosen = k == 2 ? 6 : 2 });
        x = ls_rows_permute(p, x, &r);
        ls_grouped_linear(p, x, ls_input(p, "w", LS_F32, 3, (size_t[]){ 5, 6, k == 6 ? 3 : 4 }), r.counts);
        if (k == 7)
            ls_balance_bias(p, "b", 5, 0);
        routing_refused(p, says[k]);
        ls_program_release(&p);
        ls_store_release(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_padded_losses),
        cmocka_unit_test(router_bias_balances_load),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(kept_routing_is_reused),
        cmocka_unit_test(test_half_types),
        cmocka_unit_test(test_model_json),
        cmocka_unit_test(impossible_routing_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
