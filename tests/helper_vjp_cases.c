#include "helper_vjp_cases.h"

#include "helper_check.h"
#include "lockstep/ops.h"
#include "ir/distributed_ops.h"

/* ---- matmuls ---- */

static ls_value linear(ls_program *p) { return ls_linear(p, PARAM("x", 2, 3, 5), PARAM("w", 7, 5), PARAM("b", 7)); }
static ls_value linear_row(ls_program *p) { return ls_linear(p, PARAM("x", 5), PARAM("w", 3, 5), LS_NONE); }
static ls_value linear_views(ls_program *p)
{
    ls_value x = ls_transpose(p, PARAM("x", 5, 3), 0, 1), w = ls_slice(p, PARAM("w", 4, 9), 1, 2, 7);

    return ls_linear(p, x, w, LS_NONE);
}
static ls_value linear_twice(ls_program *p)
{
    ls_value x = PARAM("x", 3, 4), w = PARAM("w", 4, 4);

    return ls_add(p, ls_linear(p, ls_linear(p, x, w, LS_NONE), w, LS_NONE), x);
}
static ls_value linear_computed(ls_program *p)  /* the weight is not a parameter itself */
{
    return ls_linear(p, ls_scale(p, PARAM("x", 3, 4), 2), ls_silu(p, PARAM("w", 2, 4)), ls_scale(p, PARAM("b", 2), 3));
}
static ls_value matmul(ls_program *p) { return ls_matmul(p, PARAM("a", 2, 3, 4), PARAM("b", 2, 4, 5)); }
static ls_value matmul_views(ls_program *p)
{
    ls_value a = ls_transpose(p, PARAM("a", 4, 2, 3), 0, 1), b = ls_slice(p, PARAM("b", 2, 5, 6), 1, 1, 4);

    return ls_matmul(p, a, b);  /* [2,4,3] [2,3,6] */
}
static ls_value matmul_square(ls_program *p)
{
    ls_value a = PARAM("a", 2, 3, 3);

    return ls_matmul(p, a, ls_transpose(p, a, 1, 2));
}

/* ---- pointwise ---- */

static ls_value add_same(ls_program *p) { return ls_add(p, PARAM("a", 3, 5), PARAM("b", 3, 5)); }
static ls_value add_bias(ls_program *p) { return ls_add(p, PARAM("a", 2, 3, 5), PARAM("b", 5)); }
static ls_value add_rows(ls_program *p) { return ls_add(p, PARAM("a", 2, 3, 5), PARAM("b", 3, 5)); }
static ls_value add_one(ls_program *p) { return ls_add(p, PARAM("a", 2, 3), PARAM("b", 1)); }
static ls_value add_one_computed(ls_program *p) { return ls_add(p, PARAM("a", 2, 3), ls_silu(p, PARAM("b", 1))); }
static ls_value add_itself(ls_program *p)
{
    ls_value x = PARAM("x", 3, 3);

    return ls_add(p, ls_add(p, x, ls_transpose(p, x, 0, 1)), x);
}
static ls_value mul(ls_program *p) { return ls_mul(p, PARAM("a", 3, 5), ls_transpose(p, PARAM("b", 5, 3), 0, 1)); }
static ls_value mul_itself(ls_program *p)
{
    ls_value x = PARAM("x", 7);

    return ls_mul(p, x, ls_mul(p, x, x));
}
static ls_value scale(ls_program *p) { return ls_scale(p, PARAM("x", 3, 3), -1.7); }
static ls_value relu(ls_program *p) { return ls_relu(p, PARAM("x", 3, 5)); }
static ls_value gelu_tanh(ls_program *p) { return ls_gelu_tanh(p, ls_scale(p, PARAM("x", 3, 5), 3)); }
static ls_value gelu_erf(ls_program *p) { return ls_gelu_erf(p, ls_scale(p, PARAM("x", 3, 5), 3)); }
static ls_value relu_squared(ls_program *p) { return ls_relu_squared(p, PARAM("x", 3, 7)); }
static ls_value silu(ls_program *p) { return ls_silu(p, ls_scale(p, ls_transpose(p, PARAM("x", 3, 5), 0, 1), 3)); }
static ls_value swiglu(ls_program *p) { return ls_swiglu(p, PARAM("g", 3, 5), PARAM("u", 3, 5)); }
static ls_value swiglu_halves(ls_program *p)
{
    ls_value half[2];

    ls_split(p, PARAM("x", 3, 10), 1, 2, half);
    return ls_swiglu(p, half[0], half[1]);
}
static ls_value swiglu_itself(ls_program *p)
{
    ls_value x = PARAM("x", 3, 5);

    return ls_swiglu(p, x, x);
}
static ls_value dropout(ls_program *p)
{
    ls_value step = ls_input(p, "step", LS_I64, SIZES(1));

    return ls_dropout(p, "site", PARAM("x", 5, 7), 0.4, 11, step);
}

/* ---- rows ---- */

static ls_value softmax(ls_program *p) { return ls_softmax(p, ls_scale(p, PARAM("x", 3, 5), 2)); }
static ls_value softmax_view(ls_program *p) { return ls_softmax(p, ls_transpose(p, PARAM("x", 3, 5), 0, 1)); }
static ls_value layer_norm(ls_program *p) { return ls_layer_norm(p, PARAM("x", 2, 3, 7), PARAM("w", 7), PARAM("b", 7),
                                                                 1e-5); }
static ls_value layer_norm_computed(ls_program *p)
{
    ls_value x = ls_slice(p, PARAM("x", 3, 9), 1, 1, 8);

    return ls_layer_norm(p, x, ls_silu(p, PARAM("w", 7)), PARAM("b", 7), 1e-2);
}
static ls_value rms_norm(ls_program *p) { return ls_rms_norm(p, PARAM("x", 2, 3, 7), PARAM("w", 7), 1e-5); }
static ls_value rms_norm_twice(ls_program *p)
{
    ls_value x = ls_transpose(p, PARAM("x", 7, 3), 0, 1), w = PARAM("w", 7);

    return ls_rms_norm(p, ls_rms_norm(p, x, w, 1e-2), w, 1e-2);
}

/* ---- tokens and attention ---- */

static ls_value embedding(ls_program *p) { return ls_embedding(p, ls_input(p, "ids", LS_I32, SIZES(2, 5)),
                                                               PARAM("w", 4, 3)); }
static ls_value embedding_computed(ls_program *p)
{
    return ls_embedding(p, ls_input(p, "ids", LS_I32, SIZES(6)), ls_silu(p, PARAM("w", 4, 3)));
}
static ls_value vjp_cases_table(ls_program *p, size_t t, size_t d)
{
    static const ls_rope rope = { 100.0, 4.0, 1.0, 4.0, 8 };

    return ls_rope_table(p, ls_input(p, "positions", LS_I32, SIZES(t)), d, &rope);
}
static ls_value rope(ls_program *p) { return ls_rope_apply(p, PARAM("x", 2, 3, 5, 4), vjp_cases_table(p, 3, 4)); }
static ls_value rope_views(ls_program *p)
{
    ls_value part[2], x = ls_transpose(p, PARAM("x", 2, 6, 3, 4), 1, 2), t = vjp_cases_table(p, 3, 4);  /* [2,3,6,4] */

    ls_split(p, x, 2, 2, part);
    return ls_mul(p, ls_rope_apply(p, part[0], t), ls_rope_apply(p, part[1], t));
}
static ls_value helper_vjp_cases_attention(ls_program *p)
{
    return ls_attention(p, PARAM("q", 2, 3, 4, 2), PARAM("k", 2, 3, 4, 2), PARAM("v", 2, 3, 4, 2), 1, LS_NONE);
}
static ls_value attention_full(ls_program *p)
{
    return ls_attention(p, PARAM("q", 1, 5, 2, 3), PARAM("k", 1, 3, 2, 3), PARAM("v", 1, 3, 2, 3), 0, LS_NONE);
}
static ls_value attention_groups(ls_program *p)  /* more keys than queries, three heads per key/value head */
{
    return ls_attention(p, PARAM("q", 2, 3, 6, 2), PARAM("k", 2, 5, 2, 2), PARAM("v", 2, 5, 2, 2), 1, LS_NONE);
}
static ls_value attention_views(ls_program *p)
{
    ls_value part[3];

    ls_split(p, PARAM("qkv", 2, 3, 6, 4), 2, 3, part);
    return ls_attention(p, part[0], part[1], part[2], 1, LS_NONE);
}
static ls_value attention_itself(ls_program *p)
{
    ls_value x = ls_transpose(p, PARAM("x", 2, 2, 3, 4), 1, 2);

    return ls_attention(p, x, x, x, 1, LS_NONE);
}

static ls_value attention_dropout(ls_program *p)  /* three heads per key/value head */
{
    ls_value step = ls_input(p, "step", LS_I64, SIZES(2));

    return ls_attention_dropout(p, "site", PARAM("q", 2, 5, 6, 2), PARAM("k", 2, 5, 2, 2), PARAM("v", 2, 5, 2, 2), 1, 0.4, 11, step);
}

static ls_value ring_attention(ls_program *p)
{
    struct across alone = { LS_AXIS_CP, NULL, 3, 1 };

    return program_ring_attention(p, PARAM("q", 2, 3, 4, 2), PARAM("k", 2, 3, 2, 2), PARAM("v", 2, 3, 2, 2), 1, &alone);
}

/* ---- images ---- */

static ls_value conv2d(ls_program *p)
{
    return ls_conv2d(p, PARAM("x", 2, 3, 5, 4), PARAM("w", 4, 3, 3, 3), PARAM("b", 4), 1, 1);
}
static ls_value conv2d_stride(ls_program *p)
{
    return ls_conv2d(p, PARAM("x", 2, 2, 7, 5), PARAM("w", 3, 2, 3, 2), LS_NONE, 2, 1);
}
static ls_value conv2d_computed(ls_program *p)  /* no operand is a parameter itself; x and w are views */
{
    ls_value x = ls_transpose(p, ls_silu(p, PARAM("x", 2, 5, 3, 4)), 1, 2), w = ls_slice(p, PARAM("w", 4, 3, 2, 3), 3, 1, 3);

    return ls_conv2d(p, x, ls_silu(p, w), ls_scale(p, PARAM("b", 4), 2), 1, 0);
}
static ls_value max_pool2d(ls_program *p) { return ls_max_pool2d(p, PARAM("x", 2, 2, 7, 5), 3, 2, 1); }
static ls_value avg_pool2d(ls_program *p) { return ls_avg_pool2d(p, PARAM("x", 2, 2, 6, 5), 3, 2, 1); }
static ls_value global_avg_pool(ls_program *p) { return ls_global_avg_pool(p, ls_silu(p, PARAM("x", 2, 3, 4, 5))); }
static ls_value batch_norm(ls_program *p)
{
    return ls_batch_norm(p, PARAM("x", 3, 4, 2, 3), PARAM("w", 4), PARAM("b", 4), LS_NONE, LS_NONE, LS_NONE, NULL);
}
static ls_value batch_norm_rows(ls_program *p)
{
    ls_value x = ls_transpose(p, PARAM("x", 4, 6), 0, 1);

    return ls_batch_norm(p, x, ls_silu(p, PARAM("w", 4)), ls_silu(p, PARAM("b", 4)), LS_NONE, LS_NONE, LS_NONE, NULL);
}
static ls_value batch_norm_padded(ls_program *p)  /* the last sample has a negative label, and is normalized all the same */
{
    ls_value labels = ls_input(p, "targets", LS_I32, SIZES(4));

    return ls_batch_norm(p, PARAM("x", 4, 2, 3), PARAM("w", 2), PARAM("b", 2), LS_NONE, LS_NONE, labels, NULL);
}
static ls_value batch_norm_running(ls_program *p)
{
    ls_batch_norm_options o = LS_BATCH_NORM_DEFAULTS;
    ls_value mean = ls_input(p, "mean", LS_F64, SIZES(4)), var = ls_input(p, "var", LS_F64, SIZES(4));

    o.training = 0;
    return ls_batch_norm(p, PARAM("x", 3, 4, 2, 3), PARAM("w", 4), PARAM("b", 4), mean, var, LS_NONE, &o);
}

/* ---- experts ---- */

ls_routing gradient_case_routing(ls_program *p, ls_value logits, int sigmoid, int normalize, size_t capacity, ls_value samples)
{
    return ls_route(p, logits, LS_NONE, samples, &(ls_route_options){ 2, sigmoid, normalize, capacity, 0 });
}
static ls_value route_softmax(ls_program *p)
{
    return gradient_case_routing(p, ls_scale(p, PARAM("logits", 2, 3, 5), 3), 0, 1, 0, LS_NONE).weight;
}
static ls_value route_plain(ls_program *p) { return gradient_case_routing(p, PARAM("logits", 2, 3, 5), 0, 0, 0, LS_NONE).weight; }
static ls_value route_sigmoid(ls_program *p) { return gradient_case_routing(p, PARAM("logits", 2, 3, 5), 1, 1, 0, LS_NONE).weight; }
static ls_value route_capacity(ls_program *p) { return gradient_case_routing(p, PARAM("logits", 2, 5, 3), 0, 1, 2, LS_NONE).weight; }
static ls_value route_padded(ls_program *p)  /* the first of three samples is real */
{
    return gradient_case_routing(p, PARAM("logits", 3, 2, 4), 0, 1, 0, ls_input(p, "samples", LS_F32, SIZES(2))).weight;
}
static ls_value experts_of(ls_program *p, size_t capacity)
{
    ls_value x = PARAM("x", 2, 3, 4);
    ls_routing r = gradient_case_routing(p, ls_linear(p, x, PARAM("gate", 5, 4), LS_NONE), 0, 1, capacity, LS_NONE);
    ls_value rows = ls_grouped_linear(p, ls_rows_permute(p, x, &r), PARAM("up", 5, 6, 4), r.counts);

    return ls_rows_unpermute(p, ls_grouped_linear(p, ls_silu(p, rows), PARAM("down", 5, 4, 6), r.counts), &r);
}
static ls_value experts(ls_program *p) { return experts_of(p, 0); }
static ls_value experts_drop(ls_program *p) { return experts_of(p, 1); }

static ls_value shuffled(ls_program *p)  /* on one rank: there and back */
{
    ls_value x = ls_silu(p, PARAM("x", 2, 3, 4)), y[2];
    ls_routing r = gradient_case_routing(p, PARAM("logits", 2, 3, 5), 0, 0, 0, LS_NONE);
    ls_value rows = ls_rows_permute(p, x, &r), there = program_shuffle_counts(p, NULL, r.counts);

    for (int k = 0; k < 2; k++) {
        y[k] = program_new_value(p, "shuffled", LS_F64, 2, (size_t[]){ k ? r.size : r.size + 3, 4 });
        program_shuffle(p, &(struct shuffle){ NULL, k, r.size, false, 0 }, k ? y[0] : rows, r.counts, there, y[k]);
    }
    return ls_rows_unpermute(p, y[1], &r);
}

/* ---- losses ---- */

static ls_value xent(ls_program *p)
{
    return ls_linear_xent(p, PARAM("x", 2, 3, 5), PARAM("w", 7, 5), ls_input(p, "targets", LS_I32, SIZES(2, 3)),
                          LS_NONE);
}
static ls_value xent_denominator(ls_program *p)
{
    ls_value d = ls_input(p, "denominator", LS_F64, SIZES(1));

    return ls_linear_xent(p, ls_silu(p, PARAM("x", 4, 5)), ls_scale(p, PARAM("w", 7, 5), 2),
                          ls_input(p, "targets", LS_I32, SIZES(4)), d);
}
static ls_value xent_tied(ls_program *p)
{
    ls_value w = PARAM("w", 4, 5), x = ls_embedding(p, ls_input(p, "ids", LS_I32, SIZES(3)), w);

    return ls_linear_xent(p, ls_gelu_tanh(p, x), w, ls_input(p, "targets", LS_I32, SIZES(3)), LS_NONE);
}
static ls_value vocab_xent(ls_program *p)
{
    struct across alone = { LS_AXIS_TP, NULL, 7, 0 };

    return program_vocab_xent(p, ls_silu(p, PARAM("x", 2, 3, 5)), PARAM("w", 7, 5), ls_input(p, "targets", LS_I32, SIZES(2, 3)), LS_NONE, 0,
                              &alone);
}
static ls_value mse(ls_program *p) { return ls_mse(p, PARAM("a", 3, 5), ls_transpose(p, PARAM("b", 5, 3), 0, 1)); }
static ls_value mse_one_side(ls_program *p)
{
    ls_value y = ls_input(p, "c.y", LS_F64, SIZES(3, 5));

    return ls_mse(p, y, ls_silu(p, PARAM("b", 3, 5)));
}

/* ---- shapes ---- */

static ls_value reshape(ls_program *p) { return ls_reshape(p, ls_transpose(p, PARAM("x", 2, 3, 5), 0, 2), SIZES(6, 5));
                                         }
static ls_value transpose(ls_program *p) { return ls_transpose(p, PARAM("x", 2, 3, 5), 0, 2); }
static ls_value helper_vjp_cases_slice(ls_program *p) { return ls_slice(p, ls_slice(p, PARAM("x", 5, 7), 1, 1, 6), 0, 2, 5); }
/* Every kind on a single rank: test_program_move tests them on several. */
static ls_value moves(ls_program *p)
{
    static ls_comm *alone;
    ls_value x = PARAM("x", 2, 3, 5);

    if (!alone)
        OK(ls_comm_open("plan:", 0, 1, &alone));
    for (enum move_kind k = MOVE_IDENTITY; k <= MOVE_ALL_TO_ALL; k++) {
        struct move m = { .kind = k, .axis = LS_AXIS_TP, .comm = alone, .dim = 1, .full = 3, .dim2 = 2, .full2 = 5 };

        x = program_move(p, &m, ls_silu(p, x));
    }
    return x;
}
static ls_value slice_overlap(ls_program *p)
{
    ls_value x = ls_silu(p, PARAM("x", 7, 3));

    return ls_mul(p, ls_slice(p, x, 0, 0, 5), ls_slice(p, x, 0, 2, 7));
}
static ls_value split_concat(ls_program *p)
{
    ls_value part[3], x = PARAM("x", 3, 6);

    ls_split(p, x, 1, 3, part);
    return ls_concat(p, 4, (ls_value[]){ part[2], part[0], part[2], x }, 1);
}
static ls_value concat_rows(ls_program *p) { return ls_concat(p, 2, (ls_value[]){ PARAM("a", 2, 3), PARAM("b", 1, 3) },
                                                              0); }
static ls_value contiguous(ls_program *p) { return ls_contiguous(p, ls_transpose(p, PARAM("x", 3, 5), 0, 1)); }
static ls_value cast(ls_program *p) { return ls_cast(p, ls_cast(p, PARAM("x", 3, 5), LS_F32), LS_F64); }
static ls_value sum_all(ls_program *p) { return ls_sum(p, PARAM("x", 3, 5), -1); }
static ls_value sum_first(ls_program *p) { return ls_sum(p, PARAM("x", 3, 5, 2), 0); }
static ls_value sum_middle(ls_program *p) { return ls_sum(p, ls_transpose(p, PARAM("x", 3, 5, 2), 0, 2), 1); }
static ls_value mean_last(ls_program *p) { return ls_mean(p, PARAM("x", 3, 5), 1); }
static ls_value mean_all(ls_program *p)
{
    ls_value x = PARAM("x", 3, 5);

    return ls_mean(p, ls_mul(p, x, x), -1);
}

#define CASE(name) { #name, name, 1e-5, 1e-6 }
const struct gradient_case gradient_cases[] = {
    CASE(linear), CASE(linear_row), CASE(linear_views), CASE(linear_twice), CASE(linear_computed), CASE(matmul),
    CASE(matmul_views), CASE(matmul_square), CASE(add_same), CASE(add_bias), CASE(add_rows), CASE(add_one),
    CASE(add_one_computed), CASE(add_itself), CASE(mul), CASE(mul_itself), CASE(scale), CASE(relu), CASE(gelu_tanh),
    CASE(gelu_erf), CASE(silu), CASE(relu_squared), CASE(swiglu), CASE(swiglu_halves), CASE(swiglu_itself), CASE(dropout), CASE(softmax),
    CASE(softmax_view), CASE(layer_norm), CASE(layer_norm_computed), CASE(rms_norm), CASE(rms_norm_twice),
    CASE(embedding), CASE(embedding_computed), CASE(rope), CASE(rope_views), CASE(helper_vjp_cases_attention), CASE(attention_full),
    CASE(attention_groups), CASE(attention_views), CASE(attention_itself), CASE(attention_dropout),
    CASE(ring_attention), CASE(conv2d), CASE(conv2d_stride),
    CASE(conv2d_computed), CASE(max_pool2d), CASE(avg_pool2d), CASE(global_avg_pool), CASE(batch_norm),
    CASE(batch_norm_rows), CASE(batch_norm_padded), CASE(batch_norm_running), CASE(xent), CASE(xent_denominator),
    CASE(xent_tied), CASE(vocab_xent), CASE(mse), CASE(mse_one_side), CASE(reshape), CASE(transpose), CASE(helper_vjp_cases_slice),
    CASE(slice_overlap), CASE(moves),
    CASE(split_concat), CASE(concat_rows), CASE(contiguous), CASE(sum_all), CASE(sum_first), CASE(sum_middle),
    CASE(mean_last), CASE(mean_all), CASE(route_softmax), CASE(route_plain), CASE(route_sigmoid), CASE(route_capacity),
    CASE(route_padded), CASE(experts), CASE(experts_drop), CASE(shuffled),
    { "cast", cast, 0x1p-4, 1e-5 },  /* linear, but with intermediate results rounded to f32: a long step */
};
const int gradient_case_count = (int)(sizeof gradient_cases / sizeof *gradient_cases);
