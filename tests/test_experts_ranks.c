/* test_experts_ranks.c - mixtures of experts on several ranks compared with one: loss and every gradient, for divisible and other
 * numbers of experts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include "base/threads.h"
#include "helper_forked.h"
#include "helper_partition.h"

enum { MOST = 32 };
struct cases { struct partition_case at[MOST]; int n; };

static struct partition_case *experts_ranks_test_cases_add(struct cases *c, const char *name, ls_model m, ls_mesh_shape shape, int sp)
{
    assert_true(c->n < MOST);
    c->at[c->n] = (struct partition_case){ .name = name, .model = m, .shape = shape, .options = { sp, LS_CP_RING, 1, 1, { 0, 1, 0, 0 }, 0 },
                                           .batch = 2, .time = 9 };
    return &c->at[c->n++];
}

static void experts_check_cases(ls_comm *comm, void *ctx)
{
    const struct cases *c = ctx;

    threads_set(1);
    for (int i = 0; i < c->n; i++) {
        const struct partition_case *k = &c->at[i];
        const char *wrong = partition_differs(k, comm, 1e-5);

        if (wrong)
            ranks_fail("%s, tp %d, cp %d, ep %d, sp %d, recompute %d: %s", k->name, k->shape.tp, k->shape.cp, k->shape.ep, k->options.sp,
                       (int)k->recompute, wrong);
    }
}

static void test_expert_parallel(void **state)
{
    (void)state;
    for (int ep = 2; ep <= 4; ep++) {
        ls_mesh_shape shape = { 1, -1, 1, 1, 1, ep };
        struct cases c = { .n = 0 };
        ls_model m = partition_experts(LS_MIXTRAL, 4, 2, 8, 0);

        experts_ranks_test_cases_add(&c, "mixtral, 4 experts", m, shape, 0);
        experts_ranks_test_cases_add(&c, "qwen3, 5 experts", partition_experts(LS_QWEN3_MOE, 5, 3, 7, 0), shape, 0);
        experts_ranks_test_cases_add(&c, "shared expert", partition_experts(LS_QWEN3_MOE, 6, 2, 5, 6), shape, 0);
        m.router = LS_ROUTER_SIGMOID;
        experts_ranks_test_cases_add(&c, "sigmoid", m, shape, 0);
        m.capacity = 0.8;
        experts_ranks_test_cases_add(&c, "capacity by position", m, shape, 0);
        m.drop = LS_DROP_PROBABILITY;
        experts_ranks_test_cases_add(&c, "capacity by probability", m, shape, 0);
        for (int mode = LS_RECOMPUTE_SELECTIVE; mode <= LS_RECOMPUTE_EVERY; mode++)
            experts_ranks_test_cases_add(&c, "recomputed", m, shape, 0)->recompute = (ls_recompute)mode;
        forked_run(ep, experts_check_cases, &c);
    }
}

static void test_tensor_parallel(void **state)
{
    (void)state;
    for (int tp = 2; tp <= 3; tp++) {
        ls_mesh_shape shape = { 1, -1, 1, 1, tp, 1 };
        struct cases c = { .n = 0 };

        for (int sp = 0; sp < 2; sp++) {
            experts_ranks_test_cases_add(&c, "mixtral", partition_experts(LS_MIXTRAL, 4, 2, 7, 0), shape, sp);
            experts_ranks_test_cases_add(&c, "qwen3, shared expert", partition_experts(LS_QWEN3_MOE, 5, 2, 7, 4), shape, sp);
            experts_ranks_test_cases_add(&c, "qwen3, recomputed", partition_experts(LS_QWEN3_MOE, 5, 2, 7, 4), shape, sp)->recompute =
                LS_RECOMPUTE_FULL;
        }
        forked_run(tp, experts_check_cases, &c);
    }
}

static void test_combined_axes(void **state)
{
    static const ls_mesh_shape shapes[] = {
        { 1, -1, 1, 1, 2, 2 },  /* dp 2 x tp 2, ep 2 */
        { 1, -1, 1, 2, 1, 2 },  /* dp 2 x cp 2 */
        { 1, -1, 1, 2, 1, 4 },  /* the same, experts over all */
        { 1, -1, 1, 2, 2, 2 },  /* cp 2 x tp 2 */
        { 1, -1, 1, 2, 2, 1 },
        { 1, -1, 1, 4, 1, 4 },
    };
    struct cases c = { .n = 0 };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int sp = 0; sp < (shapes[i].tp > 1 ? 2 : 1); sp++) {
            experts_ranks_test_cases_add(&c, "mixtral", partition_experts(LS_MIXTRAL, 4, 2, 7, 0), shapes[i], sp);
            experts_ranks_test_cases_add(&c, "qwen3", partition_experts(LS_QWEN3_MOE, 5, 3, 7, 4), shapes[i], sp)->options.cp_method =
                shapes[i].cp * shapes[i].tp <= 2 ? LS_CP_ALL_TO_ALL : LS_CP_RING;
        }
    forked_run(4, experts_check_cases, &c);
}

/* Losses and biases of routers are functions of each sequence, wherever its shards, the other samples and the experts are. */
static void test_router_losses(void **state)
{
    static const ls_mesh_shape shapes[] = {
        { 1, -1, 1, 1, 1, 4 },  /* dp 4, ep 4 */
        { 1, -1, 1, 2, 1, 2 },  /* dp 2 x cp 2, ep 2 */
        { 1, -1, 1, 2, 2, 2 },  /* cp 2 x tp 2, ep 2 */
        { 1, -1, 1, 4, 1, 1 },  /* cp 4 */
    };
    struct cases c = { .n = 0 };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int k = 0; k < 4; k++) {
            struct partition_case *p = experts_ranks_test_cases_add(
                &c, "router losses", partition_experts(k % 2 ? LS_QWEN3_MOE : LS_MIXTRAL, 5, 2, 7, 0), shapes[i], k / 2);

            p->model.aux_coef = 0.5;
            p->model.z_coef = 0.1;
            p->model.router_bias_rate = 0.01;
            p->model.router = k == 3 ? LS_ROUTER_SIGMOID : LS_ROUTER_SOFTMAX;
            p->recompute = k == 2 ? LS_RECOMPUTE_FULL : LS_RECOMPUTE_NONE;
        }
    forked_run(4, experts_check_cases, &c);
}

/* Tokens compete for room within their sequence, also where its shards are on several ranks, in either order. */
static void test_capacity_of_shards(void **state)
{
    static const ls_mesh_shape shapes[] = { { 1, -1, 1, 2, 1, 1 }, { 1, -1, 1, 2, 1, 2 }, { 1, -1, 1, 2, 1, 4 }, { 1, -1, 1, 2, 2, 2 },
                                            { 1, -1, 1, 4, 1, 4 } };
    struct cases c = { .n = 0 };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int k = 0; k < 4; k++) {
            struct partition_case *p =
                experts_ranks_test_cases_add(&c, k % 2 ? "capacity of shards by probability" : "capacity of shards by position",
                                             partition_experts(LS_MIXTRAL, 4, 2, 7, 0), shapes[i], k / 2);

            p->model.capacity = 0.7;
            p->model.drop = k % 2 ? LS_DROP_PROBABILITY : LS_DROP_POSITION;
            p->model.aux_coef = p->model.router_bias_rate = 0.1;
            p->recompute = k == 3 ? LS_RECOMPUTE_FULL : LS_RECOMPUTE_NONE;
            if (k / 2 && shapes[i].cp * shapes[i].tp <= 2)
                p->options.cp_method = LS_CP_ALL_TO_ALL;
        }
    forked_run(4, experts_check_cases, &c);
}

/* A layer's forward sends rows twice, its backward twice; with all experts loaded alike a rank sends (n - 1) / n of its rows. */
static void check_counts(ls_comm *comm, void *ctx)
{
    const struct partition_case *c = ctx;
    size_t calls, rows = c->batch * c->time * c->model.experts_per_token, n = (size_t)c->shape.ep;
    struct partitioned s;
    ls_mesh *mesh;

    threads_set(1);
    RANKS_TRY(ls_mesh_open(comm, &c->shape, &mesh));
    RANKS_TRY(partition_open(c, mesh, false, &s));
    for (int segment = LS_FORWARD; segment <= LS_BACKWARD; segment *= 2) {
        size_t bytes = ls_program_comm_bytes(s.program, segment, LS_COLLECTIVE_ALL_TO_ALL, &calls);

        RANKS_CHECK(calls == 2 * c->model.layers);
        RANKS_CHECK(bytes == 2 * c->model.layers * (rows * (n - 1) / n) * c->model.width * sizeof(float));
    }
    partition_close(&s);
    ls_mesh_close(&mesh);
}

static void test_counts(void **state)
{
    struct cases c = { .n = 0 };

    (void)state;
    experts_ranks_test_cases_add(&c, "counts", partition_experts(LS_MIXTRAL, 4, 2, 8, 0), (ls_mesh_shape){ 1, -1, 1, 1, 1, 2 }, 0);
    forked_run(2, check_counts, &c.at[0]);
}

/* Without "samples" a rank does not know of how many sequences the loss is a mean. */
static void check_samples(ls_comm *comm, void *ctx)
{
    ls_router_loss_options o = { 0, 0.1, 0.1, 0 };
    ls_data_parallel_options d = LS_DATA_PARALLEL_DEFAULTS;
    ls_store *s;
    ls_program *p;

    (void)ctx;
    RANKS_TRY(ls_store_new(NULL, &s));
    RANKS_TRY(ls_program_new(s, &p));
    ls_value x = ls_param(p, "logits", (ls_init){ LS_INIT_NORMAL, 1 }, 3, (size_t[]){ 2, 4, 3 });
    ls_routing r = ls_route(p, x, LS_NONE, LS_NONE, &(ls_route_options){ .chosen = 1 });
    ls_output(p, "own", ls_router_loss(p, x, &r, LS_NONE, &o));
    ls_backward(p, ls_sum(p, r.weight, -1));
    RANKS_TRY(ls_data_parallel(p, comm, &d));
    RANKS_CHECK(ls_program_compile(p, NULL) == LS_EINVAL && strstr(ls_errmsg(), "no input \"samples\""));
    ls_program_release(&p);
    ls_store_release(&s);
}

static void test_samples(void **state)
{
    (void)state;
    forked_run(2, check_samples, NULL);
}

/* Impossible settings are refused before anything starts. */
static void one_expert_refused(ls_comm *comm, void *ctx)
{
    struct partition_case c = *(const struct partition_case *)ctx;
    struct partitioned s;
    ls_mesh *mesh;

    c.shape.ep = 2;
    RANKS_TRY(ls_mesh_open(comm, &c.shape, &mesh));
    c.model.experts = c.model.experts_per_token = 1;
    RANKS_CHECK(partition_open(&c, mesh, false, &s) == LS_EINVAL &&
                strstr(ls_errmsg(), "model.experts=1 cannot be sharded over parallel.ep=2"));
    c.model = partition_llama(4, 2, 8, 37, 0);
    RANKS_CHECK(partition_open(&c, mesh, false, &s) == LS_EINVAL &&
                strstr(ls_errmsg(), "parallel.ep=2 does nothing here: the model has no experts"));
    ls_mesh_close(&mesh);
    c.shape = (ls_mesh_shape){ 1, 1, 1, 1, 2, 1 };
    RANKS_TRY(ls_mesh_open(comm, &c.shape, &mesh));
    c.model = partition_experts(LS_MIXTRAL, 4, 2, 1, 0);
    RANKS_CHECK(partition_open(&c, mesh, false, &s) == LS_EINVAL &&
                strstr(ls_errmsg(), "model.expert_ffn=1 cannot be sharded over parallel.tp=2"));
    ls_mesh_close(&mesh);
}

static void too_few_experts_are_refused(void **state)
{
    struct cases c = { .n = 0 };

    (void)state;
    experts_ranks_test_cases_add(&c, "refused", partition_experts(LS_MIXTRAL, 4, 2, 8, 0), (ls_mesh_shape){ 1, -1, 1, 1, 1, 1 }, 0);
    forked_run(2, one_expert_refused, &c.at[0]);
}

/* ---- two routings at once ---- */

static ls_value expert_weight(ls_program *p, const ls_model *m, int layer, const char *which)
{
    bool down = strcmp(which, "down") == 0;
    char name[96];

    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s_proj.weight", layer, which);
    return ls_param(p, name, (ls_init){ LS_INIT_NORMAL, 0.3 }, 3,
                    (size_t[]){ m->experts, down ? m->width : m->expert_ffn, down ? m->expert_ffn : m->width });
}

static ls_routing routing(ls_program *p, const ls_model *m, const char *name, ls_value x, size_t chosen)
{
    ls_route_options o = { .chosen = chosen, .normalize = 1 };
    ls_value w = ls_param(p, name, (ls_init){ LS_INIT_NORMAL, 0.5 }, 2, (size_t[]){ m->experts, m->width });

    return ls_route(p, ls_linear(p, x, w, LS_NONE), LS_NONE, LS_NONE, &o);
}

/* Two mixtures of experts of one block, instruction by instruction in turn; they choose different numbers of experts. */
static void build_interleaved(ls_program *p, const struct partition_case *c)
{
    const ls_model *m = &c->model;
    size_t shape[2] = { c->batch, c->time };
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, shape), targets = ls_input(p, "targets", LS_I32, 2, shape);
    ls_value denominator = ls_input(p, "denominator", LS_F32, 1, (size_t[]){ 1 }), y[2];
    ls_routing r[2];

    ls_declare_time(p, tokens, 1);
    ls_declare_time(p, targets, 1);
    ls_value x = ls_embedding(p, tokens, ls_param(p, "table", (ls_init){ LS_INIT_NORMAL, 1 }, 2, (size_t[]){ m->vocab, m->width }));
    ls_block_begin(p, "both");
    for (int k = 0; k < 2; k++)
        r[k] = routing(p, m, k ? "router.1" : "router.0", x, k ? 3 : 1);
    for (int k = 0; k < 2; k++)
        y[k] = ls_rows_permute(p, x, &r[k]);
    for (int k = 0; k < 2; k++)
        y[k] = ls_grouped_linear(p, y[k], expert_weight(p, m, k, "up"), r[k].counts);
    for (int k = 1; k >= 0; k--)
        y[k] = ls_grouped_linear(p, ls_silu(p, y[k]), expert_weight(p, m, k, "down"), r[k].counts);
    for (int k = 0; k < 2; k++)
        y[k] = ls_rows_unpermute(p, y[k], &r[k]);
    x = ls_add(p, x, ls_add(p, y[0], y[1]));
    ls_block_end(p);
    y[0] = ls_param(p, "out", (ls_init){ LS_INIT_NORMAL, 0.3 }, 2, (size_t[]){ m->vocab, m->width });
    ls_backward(p, ls_output(p, "loss", ls_linear_xent(p, x, y[0], targets, denominator)));
}

static void routings_of_one_block_do_not_mix(void **state)
{
    static const ls_mesh_shape shapes[] = { { 1, -1, 1, 1, 1, 2 }, { 1, -1, 1, 1, 1, 4 }, { 1, 2, 1, 1, 2, 2 }, { 1, 2, 1, 2, 1, 2 } };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(shapes); k++) {
        struct cases c = { .n = 0 };

        experts_ranks_test_cases_add(&c, "two routings", partition_experts(LS_QWEN3_MOE, 5, 2, 8, 0), shapes[k], 0)->build =
            build_interleaved;
        forked_run(k == 0 ? 2 : 4, experts_check_cases, &c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expert_parallel),
        cmocka_unit_test(test_tensor_parallel),
        cmocka_unit_test(test_combined_axes),
        cmocka_unit_test(test_router_losses),
        cmocka_unit_test(test_capacity_of_shards),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(too_few_experts_are_refused),
        cmocka_unit_test(routings_of_one_block_do_not_mix),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
