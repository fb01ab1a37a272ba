/* test_parallel_boxes.c - the data-parallel pass on a mesh without a model: the test shards, omits and ties parameters by
 * hand, and chooses the gradients.
 *
 * The loss is the sum of all elements times inputs, so an input is what its rank adds to a gradient. Each gradient is split into partial
 * sums over the ranks that sum it; after some steps norms and weights must be those of one rank.
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
#include "base/threads.h"
#include "helper_faults.h"
#include "helper_forked.h"
#include "lockstep/optim.h"
#include "lockstep/parallel.h"
#include "parallel/zero/zero.h"

enum { STEPS = 3, PARAMS = 9, LARGEST = 96, OPTIMIZERS = 5 };

/* A parameter is sharded on dim 0 over tp or ep, or replicated with partial sums over tp; it is on one stage (-1: all), or on both ends. */
struct spec { const char *name; int ndim; size_t size[3]; bool shard_tp, shard_ep, sum_tp; int stage; bool ends; };

static const struct spec specs[PARAMS] = {
    { "embed", 2, { 11, 4 }, .shard_tp = true, .ends = true },
    { "front", 2, { 5, 3 }, .stage = 0 },
    { "norm.0", 1, { 7 }, .sum_tp = true, .stage = 0 },
    { "experts.0", 3, { 8, 3, 4 }, .shard_ep = true, .stage = 0 },
    { "wide", 2, { 9, 5 }, .shard_tp = true, .stage = 0 },
    { "shared", 1, { 6 }, .sum_tp = true, .ends = true },
    { "experts.1", 2, { 6, 5 }, .shard_ep = true, .stage = 1 },
    { "norm.1", 1, { 5 }, .sum_tp = true, .stage = 1 },
    { "back", 2, { 13, 2 }, .shard_tp = true, .stage = 1 },
};

struct outcome { double norm[STEPS]; float weight[PARAMS][LARGEST]; };
struct one { ls_mesh_shape mesh; ls_optimizer_kind optimizer; ls_data_parallel_options data; };

static size_t parallel_boxes_test_count_of(const struct spec *s)
{
    size_t n = 1;

    for (int d = 0; d < s->ndim; d++)
        n *= s->size[d];
    return n;
}

static bool is_here(const struct spec *s, const ls_mesh *m)
{
    int pp = ls_mesh_index(m, LS_GROUP_PP), n = ls_mesh_size(m, LS_GROUP_PP);

    return s->ends ? pp == 0 || pp == n - 1 : n == 1 || pp == s->stage;
}

static void shard_over(ls_store *s, size_t i, const struct spec *x, const ls_mesh *m, ls_axis axis, ls_group group)
{
    int n = ls_mesh_size(m, group), r = ls_mesh_index(m, group);
    size_t begin = shard_begin(x->size[0], 1, r, n);

    store_set_shard(s, i, 0, begin, shard_begin(x->size[0], 1, r + 1, n) - begin);
    store_placement(s, i)[axis].kind = n > 1 ? LS_SHARD : LS_REPLICATE;
}

static ls_status declare(ls_store *s, const ls_mesh *m)
{
    for (int k = 0; k < PARAMS; k++) {
        const struct spec *x = &specs[k];
        int index;

        LS_TRY(store_declare(s, x->name, (ls_init){ LS_INIT_NORMAL, 0.1 }, x->ndim, x->size, &index));
        size_t i = (size_t)index;
        if (!is_here(x, m)) {
            store_leave_out(s, i);
            continue;
        }
        if (x->shard_tp)
            shard_over(s, i, x, m, LS_AXIS_TP, LS_GROUP_TP);
        if (x->shard_ep)
            shard_over(s, i, x, m, LS_AXIS_EP, LS_GROUP_EP);
        store_placement(s, i)[LS_AXIS_TP].partial_gradient = x->sum_tp;
        store_placement(s, i)[LS_AXIS_PP].partial_gradient = x->ends && ls_mesh_size(m, LS_GROUP_PP) > 1;
        store_set_owner(s, i, (x->shard_tp || ls_mesh_index(m, LS_GROUP_TP) == 0) && !(x->ends && ls_mesh_index(m, LS_GROUP_PP) > 0));
    }
    return LS_OK;
}

/* Every third parameter in a separate block; if several are read, the last first, as in a backward. */
static void box_build(ls_program *p, const ls_mesh *m)
{
    ls_value loss = LS_NONE;

    for (int k = 0; k < PARAMS; k++) {
        const struct spec *x = &specs[k];
        char input[32];

        if (!is_here(x, m))
            continue;
        if (k % 3)
            ls_block_begin(p, x->name);
        ls_value w = ls_param(p, x->name, (ls_init){ LS_INIT_NORMAL, 0.1 }, x->ndim, x->size);
        snprintf(input, sizeof input, "d.%s", x->name);
        ls_value y = ls_sum(p, ls_mul(p, w, ls_input(p, input, LS_F32, x->ndim, program_value(p, w)->size)), -1);
        if (k % 3)
            ls_block_end(p);
        loss = loss.id ? ls_add(p, loss, y) : y;
    }
    ls_backward(p, ls_output(p, "loss", loss));
}

/* ---- gradients ---- */

static double full_gradient(int k, size_t e, int step) { return sin((double)(17 * k + 3) * (double)(e + 1) + step) * (1 + k % 4); }

/* This rank's share of a sum over a group: r + 1 of 1 + .. + n. */
static double parallel_boxes_test_share(const ls_mesh *m, ls_group g)
{
    int n = ls_mesh_size(m, g);

    return 2.0 * (ls_mesh_index(m, g) + 1) / (n * (n + 1));
}

static double share_of(const struct spec *x, const ls_mesh *m)
{
    double s = parallel_boxes_test_share(m, x->shard_ep ? LS_GROUP_EXPERT_DATA : LS_GROUP_DATA);

    if (x->sum_tp)
        s *= parallel_boxes_test_share(m, LS_GROUP_TP);
    return x->ends ? s * parallel_boxes_test_share(m, LS_GROUP_ENDS) : s;
}

static ls_status write_gradients(ls_program *p, const ls_mesh *m, int step, int micro, int micros)
{
    for (int k = 0; k < PARAMS; k++) {
        const struct spec *x = &specs[k];
        size_t i = (size_t)k, rest = parallel_boxes_test_count_of(x) / x->size[0];
        float d[LARGEST];
        char input[32];

        if (!is_here(x, m))
            continue;
        size_t first = store_local_begin(ls_program_store(p), i, 0) * rest;
        size_t n = store_local_count(ls_program_store(p), i);
        for (size_t e = 0; e < n; e++)
            d[e] = (float)(full_gradient(k, first + e, step) * share_of(x, m) * 2 * (micro + 1) / (micros * (micros + 1)));
        snprintf(input, sizeof input, "d.%s", x->name);
        LS_TRY(ls_program_write(p, input, d, LS_F32, n));
    }
    return LS_OK;
}

/* ---- a training ---- */

static ls_status steps(ls_store *s, ls_program *p, const ls_mesh *m, const ls_optimizer *o, struct outcome *out)
{
    enum { MICROS = 2 };

    for (int k = 0; k < STEPS; k++) {
        ls_store_zero_grad(s);
        for (int micro = 0; micro < MICROS; micro++) {
            LS_TRY(write_gradients(p, m, k, micro, MICROS));
            LS_TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD | (micro == MICROS - 1 ? LS_LAST : 0)));
        }
        LS_TRY(ls_optimizer_set(p, o, o->kind == LS_LARS || o->kind == LS_SGD ? 0.3 : 0.01, (uint64_t)k + 1));
        LS_TRY(ls_program_run(p, LS_OPTIMIZER_STEP));
        out->norm[k] = ls_optimizer_norm(p);
    }
    for (size_t i = 0; i < PARAMS; i++)
        LS_TRY(ls_store_read(s, i, "parameter", out->weight[i], LS_F32, parallel_boxes_test_count_of(&specs[i])));
    return LS_OK;
}

static ls_status open_program(const struct one *x, const ls_mesh *m, ls_store *s, const ls_optimizer *o, bool plan_only, ls_program **p)
{
    ls_compile_options co = LS_COMPILE_DEFAULTS;

    co.plan_only = plan_only;
    LS_TRY(declare(s, m));
    store_set_world(s, ls_mesh_comm(m, LS_GROUP_WORLD));
    LS_TRY(ls_program_new(s, p));
    (*p)->builder.local = true;
    if (m) faults_give(*p, m);
    box_build(*p, m);
    LS_TRY(ls_program_status(*p));
    LS_TRY(ls_optimizer_append(*p, o));
    LS_TRY(ls_data_parallel_mesh(*p, m, &x->data));
    return ls_program_compile(*p, &co);
}

static ls_optimizer optimizer_of(const struct one *x)
{
    ls_optimizer o = { .kind = x->optimizer, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-3,
                       .trust_coefficient = 0.02, .weight_decay = 0.1, .clip = 0.5 };

    if (x->optimizer == LS_SGD || x->optimizer == LS_LARS)
        o.momentum = 0.9;
    return o;
}

static ls_status box_train(const struct one *x, ls_comm *comm, struct outcome *out)
{
    ls_optimizer o = optimizer_of(x);
    ls_mesh *m = NULL;
    ls_store *s = NULL;
    ls_program *p = NULL;
    ls_status st = ls_mesh_open(comm, &x->mesh, &m);

    if (st == LS_OK) st = ls_store_new(NULL, &s);
    if (st == LS_OK) st = open_program(x, m, s, &o, false, &p);
    if (st == LS_OK) st = steps(s, p, m, &o, out);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_mesh_close(&m);
    return st;
}

/* ---- comparing ---- */

static const char *differs(const struct outcome *a, const struct outcome *b)
{
    static char text[200];

    for (int k = 0; k < STEPS; k++)
        if (!(fabs(a->norm[k] - b->norm[k]) <= 1e-5 * a->norm[k])) {
            snprintf(text, sizeof text, "step %d: norm %.9g, one rank has %.9g", k, b->norm[k], a->norm[k]);
            return text;
        }
    for (int i = 0; i < PARAMS; i++)
        for (size_t e = 0; e < parallel_boxes_test_count_of(&specs[i]); e++)
            if (!(fabs((double)a->weight[i][e] - b->weight[i][e]) <= 2e-6)) {
                snprintf(text, sizeof text, "%s: element %zu is %.9g, one rank has %.9g", specs[i].name, e, b->weight[i][e],
                         a->weight[i][e]);
                return text;
            }
    return NULL;
}

static struct one one_of(ls_mesh_shape mesh, ls_optimizer_kind optimizer, int zero)
{
    struct one x = { mesh, optimizer, LS_DATA_PARALLEL_DEFAULTS };

    x.data.zero = zero;
    x.data.bucket_bytes = 200;
    x.data.first_bucket_bytes = 100;
    return x;
}

static void check_one(ls_comm *comm, const struct one *x)
{
    static struct outcome alone, got;
    struct one single = *x;
    const ls_mesh_shape *m = &x->mesh;

    single.mesh = (ls_mesh_shape){ 1, 1, 1, 1, 1, 1 };
    RANKS_TRY(box_train(&single, NULL, &alone));
    if (box_train(x, comm, &got) < 0)
        ranks_fail("pp %d dp %d replicate %d cp %d tp %d ep %d zero %d whole %d optimizer %d: %s", m->pp, m->dp, m->replicate, m->cp, m->tp,
                   m->ep, x->data.zero, x->data.unsharded_accumulation, (int)x->optimizer, ls_errmsg());
    const char *wrong = differs(&alone, &got);
    if (wrong)
        ranks_fail("pp %d dp %d replicate %d cp %d tp %d ep %d zero %d whole %d optimizer %d: %s", m->pp, m->dp, m->replicate, m->cp, m->tp,
                   m->ep, x->data.zero, x->data.unsharded_accumulation, (int)x->optimizer, wrong);
}

static void check_mesh(ls_comm *comm, void *ctx)
{
    const ls_mesh_shape *mesh = ctx;

    threads_set(1);
    for (int zero = mesh->replicate > 1; zero < 4; zero++)
        for (int o = zero & 1; o < OPTIMIZERS; o += 1 + (ls_comm_size(comm) > 4)) {
            struct one x = one_of(*mesh, (ls_optimizer_kind)o, zero);

            x.data.unsharded_accumulation = o & 1;
            x.data.overlap = o != LS_ADAMW;
            x.data.offload = o == LS_ADAM ? LS_OFFLOAD_CPU : LS_OFFLOAD_NONE;
            check_one(comm, &x);
        }
}

static void test_boxes(void **state)
{
    static ls_mesh_shape meshes[] = {
        { 1, 2, 1, 1, 1, 2 }, { 1, 1, 1, 1, 2, 1 }, { 2, 1, 1, 1, 1, 1 },                        /* 2 */
        { 1, 4, 1, 1, 1, 2 }, { 1, 4, 2, 1, 1, 2 }, { 1, 2, 1, 1, 2, 2 }, { 2, 2, 1, 1, 1, 2 },  /* 4 */
        { 1, 2, 1, 2, 1, 4 }, { 1, 2, 2, 2, 1, 2 }, { 1, 1, 1, 2, 2, 2 },
        { 1, 3, 1, 1, 1, 3 }, { 2, 3, 1, 1, 1, 1 }, { 1, 2, 1, 1, 3, 2 },                        /* 3, 6 */
        { 2, 2, 1, 1, 2, 2 }, { 1, 4, 1, 1, 2, 2 }, { 2, 4, 2, 1, 1, 2 }, { 1, 8, 2, 1, 1, 2 },  /* 8 */
    };

    (void)state;
    for (size_t k = 0; k < sizeof meshes / sizeof meshes[0]; k++)
        forked_run(meshes[k].pp * meshes[k].dp * meshes[k].cp * meshes[k].tp, check_mesh, &meshes[k]);
}

/* ---- bytes, planned, of all ranks together ---- */

struct total { size_t parameters, gradients, optimizer, sent[LS_COLLECTIVES]; };

static void add_rank(const struct one *x, int rank, int n, struct total *t)
{
    ls_optimizer o = optimizer_of(x);
    ls_comm *comm;
    ls_mesh *m;
    ls_store *s;
    ls_program *p;

    assert_int_equal(ls_comm_open("plan:", rank, n, &comm), LS_OK);
    assert_int_equal(ls_mesh_open(comm, &x->mesh, &m), LS_OK);
    assert_int_equal(ls_store_new(NULL, &s), LS_OK);
    if (open_program(x, m, s, &o, true, &p) < 0)
        fail_msg("%s", ls_errmsg());
    ls_cost c = ls_program_cost(p);
    t->parameters += c.parameters;
    t->gradients += c.gradients;
    t->optimizer += c.optimizer;
    for (int k = 0; k < LS_COLLECTIVES; k++)
        t->sent[k] += ls_program_comm_bytes(p, LS_FORWARD | LS_BACKWARD | LS_LAST | LS_OPTIMIZER_STEP, k, NULL);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_mesh_close(&m);
    ls_comm_close(&comm);
}

/* Bytes that all n ranks send for one sum of `bytes`: reduced and gathered, n - 1 times each. */
static size_t sum_bytes(size_t n, size_t bytes) { return 2 * (n - 1) * bytes; }

/* Adam in f32. whole: a parameter once per stage that has it; bytes: its boxes, once for all ranks with other samples. */
static void check_bytes(const ls_mesh_shape *m, int zero)
{
    struct one x = one_of(*m, LS_ADAM, zero);
    struct total t = { 0 }, want = { 0 };
    size_t D = (size_t)(m->dp * m->cp), W = D * (size_t)(m->pp * m->tp), tp = (size_t)m->tp;
    size_t *reduced = &want.sent[LS_COLLECTIVE_ALL_REDUCE], *scattered = &want.sent[LS_COLLECTIVE_REDUCE_SCATTER];
    size_t *gathered = &want.sent[LS_COLLECTIVE_ALL_GATHER];

    x.data.unsharded_accumulation = 1;
    for (int r = 0; r < (int)W; r++)
        add_rank(&x, r, (int)W, &t);
    for (int k = 0; k < PARAMS; k++) {
        const struct spec *p = &specs[k];
        size_t stages = p->ends && m->pp > 1 ? 2 : 1, whole = 4 * parallel_boxes_test_count_of(p) * stages,
               bytes = whole * (p->shard_tp ? 1 : tp);
        size_t ranks = p->shard_ep ? D / (size_t)m->ep : D; /* ranks with the same elements, apart from ZeRO shards */
        size_t times = zero ? 1 : ranks;                    /* how often an element is summed over tp, ends, and updated */

        want.parameters += bytes * (zero == 3 ? 1 : ranks);
        want.gradients += bytes * ranks;
        want.optimizer += 2 * bytes * times;
        if (zero) {
            *scattered += (ranks - 1) * bytes;
            *gathered += (ranks - 1) * bytes;  /* zero 3 too: no backward here reads a parameter */
        } else {
            *reduced += sum_bytes(ranks, bytes);
        }
        *reduced += p->sum_tp ? sum_bytes(tp, whole * times) : 0;
        *reduced += sum_bytes(stages, bytes / stages * times);
    }
    *reduced += sum_bytes(W, 8);  /* the norm */
    assert_int_equal(t.parameters, want.parameters);
    assert_int_equal(t.gradients, want.gradients);
    assert_int_equal(t.optimizer, want.optimizer);
    for (int k = 0; k < LS_COLLECTIVES; k++)
        assert_int_equal(t.sent[k], want.sent[k]);
}

static void test_bytes(void **state)
{
    static const ls_mesh_shape meshes[] = {
        { 2, 1, 1, 1, 1, 1 }, { 1, 2, 1, 1, 2, 1 }, { 2, 2, 1, 1, 2, 1 }, { 2, 4, 1, 1, 1, 2 }, { 2, 2, 1, 2, 2, 4 }, { 1, 3, 1, 1, 3, 3 },
    };

    (void)state;
    for (size_t k = 0; k < sizeof meshes / sizeof meshes[0]; k++)
        for (int zero = 0; zero < 4; zero++)
            check_bytes(&meshes[k], meshes[k].dp * meshes[k].cp > 1 ? zero : 0);
}

/* ---- injected faults ---- */

/* says: the message of the placement check; NULL: it cannot detect the fault */
struct injected { enum fault fault; ls_mesh_shape mesh; const char *says; };

static void check_fault(ls_comm *comm, void *ctx)
{
    static struct outcome alone, wrong;
    const struct injected *b = ctx;

    threads_set(1);
    for (int zero = 0; zero < 4; zero++) {
        struct one x = one_of(b->mesh, LS_ADAMW, zero), single = one_of((ls_mesh_shape){ 1, 1, 1, 1, 1, 1 }, LS_ADAMW, zero);

        RANKS_TRY(box_train(&single, NULL, &alone));
        faults_set(b->fault, false);
        RANKS_TRY(box_train(&x, comm, &wrong));
        if (!differs(&alone, &wrong))
            ranks_fail("zero %d: '%s' changes nothing", zero, fault_name(b->fault));
        faults_set(b->fault, true);
        if (b->says) {
            RANKS_CHECK(box_train(&x, comm, &wrong) == LS_EINVAL);
            if (!strstr(ls_errmsg(), b->says))
                ranks_fail("'%s' lacks '%s'", ls_errmsg(), b->says);
        }
        faults_set(FAULT_NONE, true);
    }
}

/* Experts' gradients summed over ranks that have other experts: detected at compile time, unsharded or sharded. */
static void wrong_group_is_refused(void **state)
{
    static const char *const says[] = { "over dp: its 4 ranks are not the ranks that have partial sums", "reduce_scatter of" };

    (void)state;
    if (!faults_built()) skip();
    for (int zero = 0; zero < 2; zero++) {
        struct one x = one_of((ls_mesh_shape){ 1, 4, 1, 1, 1, 2 }, LS_ADAMW, zero);
        ls_optimizer o = optimizer_of(&x);
        ls_program *p = NULL;
        ls_store *s;
        ls_comm *comm;
        ls_mesh *m;

        assert_int_equal(ls_comm_open("plan:", 3, 4, &comm), LS_OK);
        assert_int_equal(ls_mesh_open(comm, &x.mesh, &m), LS_OK);
        assert_int_equal(ls_store_new(NULL, &s), LS_OK);
        faults_set(FAULT_EXPERT_GROUP, true);
        assert_int_equal(open_program(&x, m, s, &o, true, &p), LS_EINVAL);
        if (!strstr(ls_errmsg(), says[zero]))
            fail_msg("'%s' lacks '%s'", ls_errmsg(), says[zero]);
        faults_set(FAULT_NONE, true);
        ls_program_release(&p);
        ls_store_release(&s);
        ls_mesh_close(&m);
        ls_comm_close(&comm);
    }
}

static void test_injected_faults(void **state)
{
    static struct injected faults[] = {
        { FAULT_TP_UNSUMMED, { 1, 2, 1, 1, 2, 1 }, "still a partial sum over tp" },
        { FAULT_TP_TWICE, { 1, 2, 1, 1, 2, 1 }, "over tp: it is not a partial sum" },
        { FAULT_TIED_UNSUMMED, { 2, 2, 1, 1, 1, 1 }, "still a partial sum over pp" },
        { FAULT_NORM_STAGES, { 2, 2, 1, 1, 1, 1 }, NULL },
        { FAULT_NORM_EXPERTS, { 1, 4, 1, 1, 1, 2 }, NULL },
        { FAULT_EXPERT_TIMES_EP, { 1, 4, 1, 1, 1, 2 }, NULL },
        { FAULT_EXPERT_TIMES_EP, { 1, 2, 1, 1, 1, 2 }, NULL },
    };

    (void)state;
    if (!faults_built()) skip();
    for (size_t k = 0; k < sizeof faults / sizeof faults[0]; k++)
        forked_run(faults[k].mesh.pp * faults[k].mesh.dp * faults[k].mesh.tp, check_fault, &faults[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boxes),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_injected_faults),
        cmocka_unit_test(wrong_group_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
