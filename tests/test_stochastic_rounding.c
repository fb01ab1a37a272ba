/* test_stochastic_rounding.c - bf16 parameters without a master copy, rounded stochastically: the mean is exact, each step draws other
 * bits, and a parameter has the same bits under every layout. The kernels' bits are compared in test_kernels.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/threads.h"
#include "helper_check.h"
#include "helper_forked.h"
#include "lockstep/ops.h"
#include "lockstep/optim.h"
#include "lockstep/parallel.h"
#include "parallel/zero/zero.h"

/* ---- the mean ---- */

enum { WIDE = 4096 };

/* w [4096] = 1 in bf16, updated by SGD with the gradient 1 and the rate `lr` in steps 1 .. n, each after the other. */
static void sgd_steps(const ls_optimizer *o, double lr, int steps, double w[WIDE])
{
    ls_store_options so = { "cpu", LS_BF16, 0, 0, 0 };
    static double g[WIDE];
    ls_store *s;
    ls_program *p;

    OK(ls_store_new(&so, &s));
    OK(ls_program_new(s, &p));
    ls_param(p, "w", (ls_init){ LS_INIT_ONES, 0 }, 1, (size_t[]){ WIDE });
    OK(ls_optimizer_append(p, o));
    OK(ls_program_compile(p, NULL));
    for (int k = 0; k < WIDE; k++) g[k] = 1;
    OK(ls_tensor_write(ls_store_grad(s, 0), g, LS_F64, WIDE));
    for (int t = 1; t <= steps; t++) {
        OK(ls_optimizer_set(p, o, lr, (uint64_t)t));
        OK(ls_program_run(p, LS_OPTIMIZER_STEP));
    }
    OK(ls_store_read(s, 0, "parameter", w, LS_F64, WIDE));
    ls_program_release(&p);
    ls_store_release(&s);
}

static double mean_of(const double w[WIDE])
{
    double sum = 0;

    for (int k = 0; k < WIDE; k++) sum += w[k];
    return sum / WIDE;
}

/* Below 1, neighbors in bf16 are 2^-8 apart. A step of 2^-11 is an eighth of that: to nearest it is lost, at random one element in eight
 * moves. The mean of 4096 such draws has a standard deviation of 2^-8 sqrt(7/64 / 4096), about 2^-8 / 193. */
static void test_mean(void **state)
{
    ls_optimizer nearest = { .kind = LS_SGD }, at_random = { .kind = LS_SGD, .stochastic_rounding = 1, .seed = 5 };
    static double w[WIDE], again[WIDE], other[WIDE];
    double sigma = 0x1p-8 / 193;

    (void)state;
    sgd_steps(&nearest, 0x1p-11, 32, w);
    assert_true(mean_of(w) == 1);
    sgd_steps(&at_random, 0x1p-11, 1, w);
    for (int k = 0; k < WIDE; k++) assert_true(w[k] == 1 || w[k] == 1 - 0x1p-8);
    if (!(fabs(1 - mean_of(w) - 0x1p-11) < 4 * sigma)) fail_msg("mean %g after one step", mean_of(w));
    sgd_steps(&at_random, 0x1p-11, 32, w);
    if (!(fabs(1 - mean_of(w) - 0x1p-6) < 4 * sigma * sqrt(32))) fail_msg("mean %g after 32 steps", mean_of(w));
    sgd_steps(&at_random, 0x1p-11, 32, again);
    assert_memory_equal(w, again, sizeof w);
    at_random.seed = 6;
    sgd_steps(&at_random, 0x1p-11, 32, other);
    assert_memory_not_equal(w, other, sizeof w);
}

/* If each step drew the bits of the previous one, the same elements would move each time, and no others. */
static void each_step_draws_other_bits(void **state)
{
    ls_optimizer o = { .kind = LS_SGD, .stochastic_rounding = 1, .seed = 5 };
    static double one[WIDE], two[WIDE];
    int first = 0, both = 0, second = 0;

    (void)state;
    sgd_steps(&o, 0x1p-11, 1, one);
    sgd_steps(&o, 0x1p-11, 2, two);
    for (int k = 0; k < WIDE; k++) {
        bool moved_first = one[k] != 1, moved_second = two[k] != one[k];

        first += moved_first;
        second += moved_second;
        both += moved_first && moved_second;
    }
    if (!(first > 350 && second > 350 && both > 20 && both < 140)) fail_msg("%d, then %d, %d both times", first, second, both);
}

/* A master copy keeps what would be lost, and f32 loses nothing significant: the option changes neither. */
static void exact_copies_are_left_alone(void **state)
{
    ls_optimizer o[2] = { { .kind = LS_SGD }, { .kind = LS_SGD, .stochastic_rounding = 1, .seed = 5 } };
    static const ls_store_options stores[] = { { "cpu", LS_BF16, 1, 0, 0 }, { "cpu", LS_F32, 0, 0, 0 }, { "cpu", LS_F16, 0, 0, 0 } };
    double w[2][8], g[8] = { 1, 2, 3, 5, 7, 11, 13, 17 };

    (void)state;
    for (size_t k = 0; k < sizeof stores / sizeof stores[0]; k++) {
        for (int n = 0; n < 2; n++) {
            ls_store *s;
            ls_program *p;

            OK(ls_store_new(&stores[k], &s));
            OK(ls_program_new(s, &p));
            ls_param(p, "w", (ls_init){ LS_INIT_ONES, 0 }, 1, (size_t[]){ 8 });
            OK(ls_optimizer_append(p, &o[n]));
            OK(ls_program_compile(p, NULL));
            OK(ls_tensor_write(ls_store_grad(s, 0), g, LS_F64, 8));
            OK(ls_optimizer_set(p, &o[n], 0x1.9p-10, 1));
            OK(ls_program_run(p, LS_OPTIMIZER_STEP));
            OK(ls_store_read(s, 0, "parameter", w[n], LS_F64, 8));
            ls_program_release(&p);
            ls_store_release(&s);
        }
        assert_memory_equal(w[0], w[1], sizeof w[0]);
    }
}

/* ---- layouts ---- */

enum { STEPS = 4, PARAMS = 6, LARGEST = 256 };

/* The dim that tp shards; -1: none. Experts are sharded on dim 0 over ep. The gradients are few bits, so their sums have no rounding
 * errors under any layout: what differs is the bits of the rounding. */
struct spec {
    const char *name;
    int ndim;
    size_t size[3];
    int tp;
    bool ep;
};

static const struct spec specs[PARAMS] = {
    { "rows", 2, { 11, 6 }, 0, false },         { "columns", 2, { 5, 26 }, 1, false },
    { "experts.rows", 3, { 6, 4, 3 }, 1, true }, { "experts.columns", 3, { 6, 3, 10 }, 2, true },
    { "bias", 1, { 13 }, -1, false },           { "split", 1, { 17 }, 0, false },
};

struct setting {
    ls_mesh_shape mesh;
    int zero;
};

struct outcome {
    float weight[PARAMS][LARGEST];
};

static size_t spec_count(const struct spec *s)
{
    size_t n = 1;

    for (int d = 0; d < s->ndim; d++) n *= s->size[d];
    return n;
}

static void spec_shard(ls_store *s, size_t i, const struct spec *x, const ls_mesh *m, int dim, ls_axis axis, ls_group group)
{
    int n = ls_mesh_size(m, group), r = ls_mesh_index(m, group);
    size_t begin = shard_begin(x->size[dim], 1, r, n);

    store_set_shard(s, i, dim, begin, shard_begin(x->size[dim], 1, r + 1, n) - begin);
    store_placement(s, i)[axis] = (ls_placement){ .kind = n > 1 ? LS_SHARD : LS_REPLICATE, .dim = dim };
}

static ls_status specs_declare(ls_store *s, const ls_mesh *m)
{
    for (int k = 0; k < PARAMS; k++) {
        const struct spec *x = &specs[k];
        int index;

        LS_TRY(store_declare(s, x->name, (ls_init){ LS_INIT_NORMAL, 1 }, x->ndim, x->size, &index));
        if (x->tp >= 0) spec_shard(s, (size_t)index, x, m, x->tp, LS_AXIS_TP, LS_GROUP_TP);
        if (x->ep) spec_shard(s, (size_t)index, x, m, 0, LS_AXIS_EP, LS_GROUP_EP);
        store_set_owner(s, (size_t)index, x->tp >= 0 || ls_mesh_index(m, LS_GROUP_TP) == 0);
    }
    return LS_OK;
}

static void specs_build(ls_program *p)
{
    ls_value loss = LS_NONE;

    for (int k = 0; k < PARAMS; k++) {
        const struct spec *x = &specs[k];
        char input[32];
        ls_value w = ls_param(p, x->name, (ls_init){ LS_INIT_NORMAL, 1 }, x->ndim, x->size);

        snprintf(input, sizeof input, "d.%s", x->name);
        ls_value y = ls_sum(p, ls_mul(p, w, ls_input(p, input, LS_BF16, x->ndim, program_value(p, w)->size)), -1);
        loss = loss.id ? ls_add(p, loss, y) : y;
    }
    ls_backward(p, ls_output(p, "loss", loss));
}

/* The rank's part of the gradient of all elements e: (e 29 mod 61) / 4, in equal shares over the ranks that sum it. */
static ls_status specs_write(ls_program *p, const ls_mesh *m, int step)
{
    for (size_t i = 0; i < PARAMS; i++) {
        const struct spec *x = &specs[i];
        const ls_store *s = ls_program_store(p);
        size_t n = store_local_count(s, i), local[3], begin[3];
        float d[LARGEST];
        char input[32];

        for (int k = 0; k < x->ndim; k++) {
            local[k] = store_local_size(s, i, k);
            begin[k] = store_local_begin(s, i, k);
        }
        for (size_t e = 0, at; e < n; e++) {
            store_box_run(x->ndim, x->size, begin, local, e, n, &at);
            d[e] = (float)((at + (size_t)step) * 29 % 61) / 4 / (float)ls_mesh_size(m, x->ep ? LS_GROUP_EXPERT_DATA : LS_GROUP_DATA);
        }
        snprintf(input, sizeof input, "d.%s", x->name);
        LS_TRY(ls_program_write(p, input, d, LS_F32, n));
    }
    return LS_OK;
}

static ls_status specs_open(const struct setting *x, const ls_mesh *m, const ls_optimizer *o, ls_store *s, ls_program **p)
{
    ls_data_parallel_options data = LS_DATA_PARALLEL_DEFAULTS;

    data.zero = x->zero;
    data.bucket_bytes = 200;
    LS_TRY(specs_declare(s, m));
    store_set_world(s, ls_mesh_comm(m, LS_GROUP_WORLD));
    LS_TRY(ls_program_new(s, p));
    (*p)->builder.local = true;
    specs_build(*p);
    LS_TRY(ls_program_status(*p));
    LS_TRY(ls_optimizer_append(*p, o));
    LS_TRY(ls_data_parallel_mesh(*p, m, &data));
    return ls_program_compile(*p, NULL);
}

static ls_status specs_steps(ls_store *s, ls_program *p, const ls_mesh *m, const ls_optimizer *o, struct outcome *out)
{
    for (int k = 0; k < STEPS; k++) {
        ls_store_zero_grad(s);
        LS_TRY(specs_write(p, m, k));
        LS_TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD | LS_LAST));
        LS_TRY(ls_optimizer_set(p, o, 0x1p-9, (uint64_t)k + 1));
        LS_TRY(ls_program_run(p, LS_OPTIMIZER_STEP));
    }
    for (size_t i = 0; i < PARAMS; i++) LS_TRY(ls_store_read(s, i, "parameter", out->weight[i], LS_F32, spec_count(&specs[i])));
    return LS_OK;
}

static ls_status specs_train(const struct setting *x, ls_comm *comm, struct outcome *out)
{
    static const ls_optimizer o = { .kind = LS_SGD, .stochastic_rounding = 1, .seed = 9 };
    ls_store_options so = { "cpu", LS_BF16, 0, 0, 0 };
    ls_mesh *m = NULL;
    ls_store *s = NULL;
    ls_program *p = NULL;
    ls_status st = ls_mesh_open(comm, &x->mesh, &m);

    if (st == LS_OK) st = ls_store_new(&so, &s);
    if (st == LS_OK) st = specs_open(x, m, &o, s, &p);
    if (st == LS_OK) st = specs_steps(s, p, m, &o, out);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_mesh_close(&m);
    return st;
}

static void compare_mesh(ls_comm *comm, void *ctx)
{
    struct setting alone = { { 1, 1, 1, 1, 1, 1 }, 0 };
    static struct outcome want, got;

    threads_set(1);
    RANKS_TRY(specs_train(&alone, NULL, &want));
    for (int zero = 0; zero < 4; zero++) {
        struct setting x = { *(const ls_mesh_shape *)ctx, zero };

        RANKS_TRY(specs_train(&x, comm, &got));
        for (int i = 0; i < PARAMS; i++)
            for (size_t e = 0; e < spec_count(&specs[i]); e++)
                if (got.weight[i][e] != want.weight[i][e])
                    ranks_fail("dp %d tp %d ep %d zero %d: %s[%zu] is %.9g, one rank has %.9g", x.mesh.dp, x.mesh.tp, x.mesh.ep, zero,
                               specs[i].name, e, got.weight[i][e], want.weight[i][e]);
    }
}

static void layouts_have_the_same_bits(void **state)
{
    static ls_mesh_shape meshes[] = {
        { 1, 2, 1, 1, 1, 1 }, { 1, 1, 1, 1, 2, 1 }, { 1, 2, 1, 1, 1, 2 }, { 1, 2, 1, 1, 2, 2 }, { 1, 4, 1, 1, 1, 2 }, { 1, 2, 1, 1, 2, 1 },
    };

    (void)state;
    for (size_t k = 0; k < sizeof meshes / sizeof meshes[0]; k++) forked_run(meshes[k].dp * meshes[k].tp, compare_mesh, &meshes[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mean),
        cmocka_unit_test(each_step_draws_other_bits),
        cmocka_unit_test(exact_copies_are_left_alone),
        cmocka_unit_test(layouts_have_the_same_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
