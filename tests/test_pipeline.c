/* test_pipeline.c - pipelines of every schedule on forked ranks against one rank alone: loss and every gradient; what they hold, what
 * they send, and how long they idle.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/threads.h"
#include "helper_forked.h"
#include "helper_spread.h"
#include "parallel/pipeline.h"
#include "program/store.h"

enum { BATCH = 2, TIME = SPREAD_TIME, VOCAB = 37, LAYERS = 9, MOST = 400 };

struct trial {
    const char  *schedule;
    int          chunks, micro;
    enum net     net;
    ls_recompute recompute;
    int          fuse;
    const int   *begin;
};

/* What a rank has open. */
struct setting {
    ls_comm      *world;
    ls_mesh      *mesh;          /* NULL: the whole model on one rank, without a partition */
    ls_store     *store;
    ls_model      model;
    ls_pipeline_schedule schedule;
    ls_pipeline  *pipeline;
    double        loss;
    int           losses;        /* how often it was read */
};

static ls_model model_of(enum net net)
{
    ls_model m = *spread_model(net);

    m.layers = LAYERS;
    return m;
}

static ls_status build(void *ctx, ls_program *p, const ls_stage *stage)
{
    struct setting *s = ctx;
    ls_partition_options o = LS_PARTITION_DEFAULTS;
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ BATCH, TIME });
    ls_value targets = ls_input(p, "targets", LS_I32, 2, (size_t[]){ BATCH, TIME });
    ls_value denominator = ls_input(p, "denominator", LS_F32, 1, (size_t[]){ 1 });
    ls_value loss = ls_output(p, "loss", ls_model_loss(p, &s->model, tokens, targets, denominator, LS_NONE));

    if (!s->schedule.name[0] || s->schedule.backward)
        ls_backward(p, loss);
    if (!s->mesh)
        return LS_OK;
    o.stage = *stage;
    return ls_partition(p, s->mesh, &s->model, &o);
}

static ls_status write_inputs(ls_program *p, int micro)
{
    int32_t tokens[BATCH * TIME], targets[BATCH * TIME];
    float denominator = 5 * BATCH * TIME;

    for (int i = 0; i < BATCH * TIME; i++) {
        tokens[i] = (i * 7 + micro * 11 + i * i % 5) % VOCAB;
        targets[i] = (i + micro) % 5 == 0 ? -1 : (i * 3 + micro * 13) % VOCAB;
    }
    if (ls_program_has(p, "tokens"))
        LS_TRY(ls_program_write(p, "tokens", tokens, LS_I32, BATCH * TIME));
    if (ls_program_has(p, "targets"))
        LS_TRY(ls_program_write(p, "targets", targets, LS_I32, BATCH * TIME));
    return ls_program_has(p, "denominator") ? ls_program_write(p, "denominator", &denominator, LS_F32, 1) : LS_OK;
}

static ls_status before(void *ctx, ls_program *p, int chunk, int micro)
{
    (void)ctx;
    (void)chunk;
    return write_inputs(p, micro);
}

static ls_status after(void *ctx, ls_program *p, int chunk, int micro)
{
    struct setting *s = ctx;
    double part;

    (void)chunk;
    (void)micro;
    if (!ls_program_has(p, "loss"))
        return LS_OK;
    LS_TRY(ls_program_read(p, "loss", &part, LS_F64, 1));
    s->loss += part;
    s->losses++;
    return LS_OK;
}

/* ---- one rank alone ---- */

struct alone { ls_store *store; double loss; };

static ls_status run_alone(const ls_model *m, int micro, struct alone *out)
{
    struct setting s = { .model = *m };
    ls_program *p;

    LS_TRY(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 0, 7 }, &s.store));
    LS_TRY(ls_program_new(s.store, &p));
    LS_TRY(build(&s, p, NULL));
    LS_TRY(ls_program_compile(p, NULL));
    ls_store_zero_grad(s.store);
    for (int k = 0; k < micro; k++) {
        LS_TRY(write_inputs(p, k));
        LS_TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
        LS_TRY(after(&s, p, 0, k));
    }
    ls_program_release(&p);
    *out = (struct alone){ s.store, s.loss };
    return LS_OK;
}

/* ---- a pipeline ---- */

static ls_status setting_open(ls_comm *world, const struct trial *t, struct setting *s)
{
    ls_mesh_shape shape = LS_MESH_DEFAULTS;
    ls_pipeline_options o = { .schedule = &s->schedule, .begin = t->begin, .build = build, .ctx = s, .compile = LS_COMPILE_DEFAULTS };

    *s = (struct setting){ .world = world, .model = model_of(t->net) };
    shape.pp = ls_comm_size(world);
    o.compile.recompute = t->recompute;
    o.compile.fuse_loss = t->fuse;
    LS_TRY(ls_mesh_open(world, &shape, &s->mesh));
    LS_TRY(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 0, 7 }, &s->store));
    LS_TRY(ls_pipeline_schedule_make(t->schedule, shape.pp, t->chunks, t->micro, &s->schedule));
    return ls_pipeline_open(s->store, s->mesh, &o, &s->pipeline);
}

static void setting_close(struct setting *s)
{
    ls_pipeline_close(&s->pipeline);
    ls_store_release(&s->store);
    ls_pipeline_schedule_free(&s->schedule);
    ls_mesh_close(&s->mesh);
}

static double largest(const float *x, size_t n)
{
    double most = 0;

    for (size_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)x[i]));
    return most;
}

static const char *trial_name(const struct trial *t, int n)
{
    static char text[200];

    snprintf(text, sizeof text, "%s, %d stages, %d chunks, %d micro-batches, net %d, recompute %d, fuse %d", t->schedule, n, t->chunks,
             t->micro, (int)t->net, (int)t->recompute, t->fuse);
    return text;
}

/* Addends of a weight that both ends have are added up. */
static void check_gradient(const struct trial *t, const struct setting *s, const struct alone *one, size_t i)
{
    const ls_tensor *want = ls_store_grad(one->store, i), *got = ls_store_grad(s->store, i);
    size_t n = ls_tensor_count(want);
    float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
    double rounding;

    RANKS_CHECK(got && ls_tensor_count(got) == n);
    RANKS_TRY(ls_tensor_read(want, a, LS_F32, n));
    RANKS_TRY(ls_tensor_read(got, b, LS_F32, n));
    if (store_placement(s->store, i)[LS_AXIS_PP].partial_gradient) {
        RANKS_CHECK(ls_mesh_comm(s->mesh, LS_GROUP_ENDS));
        RANKS_TRY(ls_all_reduce(ls_mesh_comm(s->mesh, LS_GROUP_ENDS), b, b, n, LS_F32, LS_SUM, NULL));
    }
    rounding = 1e-5 * largest(a, n) + 1e-8;
    for (size_t e = 0; e < n; e++)
        if (!(fabs((double)a[e] - b[e]) <= rounding))
            ranks_fail("%s: gradient of %s: element %zu is %.9g, one rank has %.9g", trial_name(t, ls_comm_size(s->world)),
                       ls_store_name(s->store, i), e, (double)b[e], (double)a[e]);
    free(a);
    free(b);
}

static bool is_tied(const struct trial *t, size_t i) { return i == 0 && spread_model(t->net)->tied; }

/* Every parameter is on one rank, a tied one on both ends; one of them speaks. */
static void check_places(const struct trial *t, const struct setting *s)
{
    int n = ls_comm_size(s->world);
    bool ends_apart = n > 1 && s->schedule.order == LS_STAGES_LOOP;

    for (size_t i = 0; i < ls_store_count(s->store); i++) {
        double here[2] = { store_is_here(s->store, i), store_speaks(s->store, i) };

        RANKS_TRY(ls_all_reduce(s->world, here, here, 2, LS_F64, LS_SUM, NULL));
        RANKS_CHECK(here[0] == (is_tied(t, i) && ends_apart ? 2 : 1) && here[1] == 1);
        RANKS_CHECK(!store_is_here(s->store, i) || ls_store_value(s->store, i));
        RANKS_CHECK(store_is_here(s->store, i) || !ls_store_value(s->store, i));
    }
}

static void check_loss(const struct trial *t, const struct setting *s, const struct alone *one)
{
    double sum[2] = { s->loss, s->losses };

    RANKS_TRY(ls_all_reduce(s->world, sum, sum, 2, LS_F64, LS_SUM, NULL));
    if (sum[1] != t->micro || !(fabs(sum[0] - one->loss) <= 1e-5 * one->loss))
        ranks_fail("%s: loss %.9g of %g micro-batches, one rank has %.9g", trial_name(t, ls_comm_size(s->world)), sum[0], sum[1], one->loss);
}

static void check_trial(ls_comm *world, const struct trial *t)
{
    ls_model m = model_of(t->net);
    struct setting s;
    struct alone one;

    RANKS_TRY(run_alone(&m, t->micro, &one));
    if (setting_open(world, t, &s) < 0)
        ranks_fail("%s: %s", trial_name(t, ls_comm_size(world)), ls_errmsg());
    check_places(t, &s);
    for (int again = 0; again < 2; again++) {  /* a run leaves nothing behind but gradients */
        s.loss = s.losses = 0;
        ls_store_zero_grad(s.store);
        if (ls_pipeline_run(s.pipeline, before, after, &s) < 0)
            ranks_fail("%s: %s", trial_name(t, ls_comm_size(world)), ls_errmsg());
        check_loss(t, &s, &one);
    }
    for (size_t i = 0; s.schedule.backward && i < ls_store_count(s.store); i++)
        if (store_is_here(s.store, i))
            check_gradient(t, &s, &one, i);
    setting_close(&s);
    ls_store_release(&one.store);
}

struct trials { struct trial at[MOST]; int n; };

static void check_trials(ls_comm *world, void *ctx)
{
    const struct trials *c = ctx;

    threads_set(1);
    for (int i = 0; i < c->n; i++)
        check_trial(world, &c->at[i]);
}

static void add(struct trials *c, struct trial t)
{
    assert_true(c->n < MOST);
    c->at[c->n++] = t;
}

/* ---- every schedule ---- */

static void test_every_schedule(void **state)
{
    const char *name;

    (void)state;
    for (int stages = 2; stages <= 4; stages++) {
        static struct trials c;

        c.n = 0;
        for (int i = 0; (name = ls_pipeline_schedule_name(i)); i++)
            for (int chunks = 1; chunks <= 2; chunks++)
                for (int micro = 1; micro <= 6; micro++) {
                    ls_pipeline_schedule s;

                    if (ls_pipeline_schedule_make(name, stages, chunks, micro, &s) < 0)
                        continue;
                    ls_pipeline_schedule_free(&s);
                    add(&c, (struct trial){ .schedule = name, .chunks = chunks, .micro = micro, .net = (enum net)((micro + i) % 3) });
                }
        assert_true(c.n > 30);
        forked_run(stages, check_trials, &c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_schedule),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
