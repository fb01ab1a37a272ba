/* test_pipeline.c - pipelines with every schedule on forked ranks compared with one rank: loss and every gradient. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/threads.h"
#include "helper_forked.h"
#include "helper_pipeline.h"
#include "parallel/pipeline/pipeline.h"
#include "runtime/store.h"

enum { MOST = 200 };

/* ---- one pipeline ---- */

static double pipeline_test_largest(const float *x, size_t n)
{
    double most = 0;

    for (size_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)x[i]));
    return most;
}

/* Partial gradients of a weight that is on both ends are summed. */
static void check_gradient(const struct trial *t, const struct setting *s, const ls_store *alone, size_t i)
{
    const ls_tensor *want = ls_store_grad(alone, i), *got = ls_store_grad(s->store, i);
    size_t n = ls_tensor_count(want);
    float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);

    RANKS_CHECK(got && ls_tensor_count(got) == n);
    RANKS_TRY(ls_tensor_read(want, a, LS_F32, n));
    RANKS_TRY(ls_tensor_read(got, b, LS_F32, n));
    if (store_placement(s->store, i)[LS_AXIS_PP].partial_gradient) {
        RANKS_CHECK(ls_mesh_comm(s->mesh, LS_GROUP_ENDS));
        RANKS_TRY(ls_all_reduce(ls_mesh_comm(s->mesh, LS_GROUP_ENDS), b, b, n, LS_F32, LS_SUM, NULL));
    }
    double rounding = (t->type == LS_F32 ? 1e-5 : 1e-2) * pipeline_test_largest(a, n) + 1e-8;
    for (size_t e = 0; e < n; e++)
        if (!(fabs((double)a[e] - b[e]) <= rounding))
            ranks_fail("%s: gradient of %s: element %zu is %.9g, one rank has %.9g", trial_name(t, ls_comm_size(s->world)),
                       ls_store_name(s->store, i), e, (double)b[e], (double)a[e]);
    free(a);
    free(b);
}

static bool is_tied(const struct setting *s, size_t i) { return i == 0 && s->model.tied; }

/* Every parameter is on one rank, a tied one on both ends; one rank owns it. */
static void check_places(const struct setting *s)
{
    bool ends_apart = ls_comm_size(s->world) > 1 && s->schedule.order == LS_STAGES_LOOP;

    for (size_t i = 0; i < ls_store_count(s->store); i++) {
        double here[2] = { store_is_here(s->store, i), store_is_owner(s->store, i) };

        RANKS_TRY(ls_all_reduce(s->world, here, here, 2, LS_F64, LS_SUM, NULL));
        RANKS_CHECK(here[0] == (is_tied(s, i) && ends_apart ? 2 : 1) && here[1] == 1);
        RANKS_CHECK(store_is_here(s->store, i) == (ls_store_value(s->store, i) != NULL));
    }
}

/* The rank with the last stage reads the losses. */
static void check_loss(const struct trial *t, const struct setting *s, double want)
{
    double sum[2] = { s->loss, s->losses };

    RANKS_TRY(ls_all_reduce(s->world, sum, sum, 2, LS_F64, LS_SUM, NULL));
    if (sum[1] != t->micro || !(fabs(sum[0] - want) <= (t->type == LS_F32 ? 1e-5 : 1e-2) * want))
        ranks_fail("%s: loss %.9g of %g micro-batches, one rank has %.9g", trial_name(t, ls_comm_size(s->world)), sum[0], sum[1], want);
}

static void trial_run(const struct trial *t, struct setting *s, double want)
{
    s->loss = s->losses = 0;
    if (ls_pipeline_run(s->pipeline, trial_before, trial_after, s) < 0)
        ranks_fail("%s: %s", trial_name(t, ls_comm_size(s->world)), ls_errmsg());
    check_loss(t, s, want);
}

static void open_trial(ls_comm *world, const struct trial *t, struct setting *s)
{
    if (trial_open(world, t, s) < 0)
        ranks_fail("%s: %s", trial_name(t, ls_comm_size(world)), ls_errmsg());
}

static void check_trial(ls_comm *world, const struct trial *t)
{
    struct setting s;
    ls_store *alone;
    double loss;

    RANKS_TRY(trial_alone(t, &alone, &loss));
    open_trial(world, t, &s);
    check_places(&s);
    for (int again = 0; again < 2; again++) {  /* a run leaves nothing behind but gradients */
        ls_store_zero_grad(s.store);
        trial_run(t, &s, loss);
    }
    for (size_t i = 0; s.schedule.backward && i < ls_store_count(s.store); i++)
        if (store_is_here(s.store, i))
            check_gradient(t, &s, alone, i);
    trial_close(&s);
    ls_store_release(&alone);
}

struct trials { struct trial at[MOST]; int n; };

static void check_trials(ls_comm *world, void *ctx)
{
    const struct trials *c = ctx;

    threads_set(1);
    for (int i = 0; i < c->n; i++)
        check_trial(world, &c->at[i]);
}

static void trials_add(struct trials *c, struct trial t)
{
    assert_true(c->n < MOST);
    c->at[c->n++] = t;
}

/* ---- the tables ---- */

static void test_every_schedule(void **state)
{
    const char *name;

    (void)state;
    for (int stages = 1; stages <= 4; stages++) {
        static struct trials c;

        c.n = 0;
        for (int i = 0; (name = ls_pipeline_schedule_name(i)); i++)
            for (int chunks = 1; chunks <= 2; chunks++)
                for (int micro = 1; micro <= 6; micro++) {
                    ls_pipeline_schedule s;

                    if (ls_pipeline_schedule_make(name, stages, chunks, micro, &s) < 0)
                        continue;
                    ls_pipeline_schedule_free(&s);
                    trials_add(&c, (struct trial){ .schedule = name, .chunks = chunks, .micro = micro,
                                                   .net = (enum net)((micro + i) % 3) });
                }
        assert_true(c.n > 30);
        forked_run(stages, check_trials, &c);
    }
}

/* Recomputation, the loss made by its own gradient, stages as given, bf16. */
static void test_switches(void **state)
{
    static const char *const names[] = { "1f1b", "zb-h1", "interleaved" };
    static const int uneven[] = { 0, 1, 7, PIPELINE_LAYERS };
    static struct trials c;

    (void)state;
    for (int i = 0; i < 3; i++)
        for (int mode = LS_RECOMPUTE_NONE; mode <= LS_RECOMPUTE_FULL; mode++)
            for (int fuse = 0; fuse < 2; fuse++)
                trials_add(&c, (struct trial){ .schedule = names[i], .chunks = i == 2 ? 2 : 1, .micro = 4,
                                               .net = (enum net)((mode + i) % 3),
                                        .recompute = (ls_recompute)mode, .fuse = fuse });
    for (int i = 0; i < 2; i++) {
        trials_add(&c, (struct trial){ .schedule = names[i], .chunks = 1, .micro = 4, .net = NET_LLAMA_TIED, .begin = uneven });
        trials_add(&c, (struct trial){ .schedule = names[i], .chunks = 1, .micro = 4, .net = NET_GPT2, .type = LS_BF16, .fuse = i });
    }
    forked_run(3, check_trials, &c);
}

/* Experts, whose routers have losses in every stage; dropout, whose masks depend on the layer. */
static void test_models(void **state)
{
    static const char *const names[] = { "1f1b", "zb-h1", "zb-v" };
    static ls_model experts = { .architecture = LS_MIXTRAL, .layers = 2, .width = 16, .heads = 4, .kv_heads = 2, .vocab = 37,
                                .max_positions = DIST_TIME, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.2, .experts = 4,
                                .experts_per_token = 2, .expert_ffn = 8, .norm_topk = 1, .aux_coef = 0.1, .z_coef = 0.05 };
    static ls_model dropout;
    static struct trials c;

    (void)state;
    dropout = *distributed_model(NET_GPT2);
    dropout.dropout = 0.3;
    dropout.attention_dropout = 0.2;
    dropout.seed = 11;
    for (int i = 0; i < 3; i++)
        for (int mode = LS_RECOMPUTE_NONE; mode <= LS_RECOMPUTE_FULL; mode += 2) {
            struct trial t = { .schedule = names[i], .chunks = i == 2 ? 2 : 1, .micro = 4, .recompute = (ls_recompute)mode };

            t.model = &experts;
            trials_add(&c, t);
            t.model = &dropout;
            trials_add(&c, t);
        }
    forked_run(3, check_trials, &c);
}

/* A pipeline of forwards over the store of one that trains: the loss after a step, or before it. */
static void evaluate(ls_comm *world, void *ctx)
{
    const struct trial train = { .schedule = "1f1b", .chunks = 1, .micro = 4, .net = NET_LLAMA_TIED };
    const struct trial look = { .schedule = "forward", .chunks = 1, .micro = 4, .net = NET_LLAMA_TIED };
    const struct trial turned = { .schedule = "forward-v", .chunks = 2, .micro = 4, .net = NET_LLAMA_TIED };
    struct setting s, e, v;
    ls_store *alone;
    double loss;

    (void)ctx;
    threads_set(1);
    RANKS_TRY(trial_alone(&train, &alone, &loss));
    open_trial(world, &train, &s);
    RANKS_TRY(trial_open_beside(&s, &look, &e));
    ls_store_zero_grad(s.store);
    trial_run(&look, &e, loss);
    trial_run(&train, &s, loss);
    trial_run(&look, &e, loss);
    for (size_t i = 0; i < ls_store_count(s.store); i++)
        if (store_is_here(s.store, i))
            check_gradient(&train, &s, alone, i);
    RANKS_CHECK(trial_open_beside(&s, &turned, &v) == LS_EINVAL);  /* its stages are on other ranks */
    trial_close_beside(&v);
    trial_close_beside(&e);
    trial_close(&s);
    ls_store_release(&alone);
}

static void test_evaluation(void **state)
{
    (void)state;
    forked_run(3, evaluate, NULL);
}

/* Stages that leave out the layers that they do not divide evenly are refused. */
static void lose_layers(ls_comm *world, void *ctx)
{
    static const int begin[] = { 0, 4, 8 };
    const struct trial t = { .schedule = "1f1b", .chunks = 1, .micro = 3, .net = NET_GPT2, .begin = begin };
    struct setting s;

    (void)ctx;
    threads_set(1);
    RANKS_CHECK(trial_open(world, &t, &s) == LS_EINVAL && strstr(ls_errmsg(), "the last to block 9"));
    trial_close(&s);
}

static void dropped_layers_are_detected(void **state)
{
    (void)state;
    forked_run(2, lose_layers, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_schedule),
        cmocka_unit_test(test_switches),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(dropped_layers_are_detected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
