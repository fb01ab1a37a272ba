/* test_partition_pass.c - the partition pass on ranks that are only planned: exchanges as exact numbers (claims T1 to T7), what is
 * refused, what other programs of a store see, and injected faults: the check of placements names them, or the numbers do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/threads.h"
#include "helper_check.h"
#include "helper_faults.h"
#include "helper_forked.h"
#include "helper_partition.h"
#include "lockstep/optim.h"
#include "parallel/partition.h"

static struct partition_case case_of(ls_model m, int tp, int cp, int sp, ls_context context)
{
    return (struct partition_case){ .model = m, .shape = { 1, -1, 1, cp, tp, 1 }, .options = { sp, context, 0, { 0, 1, 0, 0 } },
                                    .batch = 2, .time = 16 };
}

/* A mesh of ranks that are only planned. */
struct planned { ls_comm *world; ls_mesh *mesh; };

static struct planned plan_mesh(const ls_mesh_shape *shape, int rank)
{
    struct planned m = { NULL, NULL };

    OK(ls_comm_open("plan:", rank, shape->pp * shape->cp * shape->tp * (shape->dp > 0 ? shape->dp : 1), &m.world));
    OK(ls_mesh_open(m.world, shape, &m.mesh));
    return m;
}

static void plan_close(struct planned *m)
{
    ls_mesh_close(&m->mesh);
    ls_comm_close(&m->world);
}

static void open_planned(const struct partition_case *c, int rank, struct planned *m, struct partitioned *s)
{
    *m = plan_mesh(&c->shape, rank);
    OK(partition_open(c, m->mesh, true, s));
}

/* ---- T1, T2: what a layer exchanges ---- */

/* The ops of a block in a segment, views and waits left out; exchanges by their own names. */
static const char *ops_of(const ls_program *p, enum segment s, const char *block)
{
    static char text[2000];
    size_t at = 0;

    text[0] = 0;
    for (int n = 0; n < p->list[s].n; n++) {
        const struct instruction *i = &p->list[s].at[n];

        if (i->op != OP_VIEW && i->op != OP_COMM_WAIT && i->block && strcmp(p->blocks[i->block], block) == 0)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", at ? " " : "", instruction_name(i));
    }
    return text;
}

static void test_layer(void **state)
{
    struct partition_case c = case_of(partition_gpt2(4, 24, 37, 0), 4, 1, 0, LS_CONTEXT_RING);
    struct partitioned s;
    struct planned m;

    (void)state;
    open_planned(&c, 1, &m, &s);
    assert_string_equal(ops_of(s.program, SEG_FORWARD, "h.0"),
                        "layer_norm linear linear linear attention linear all_reduce add add "
                        "layer_norm linear unary linear all_reduce add add");
    assert_int_equal(partition_exchanges(s.program, SEG_FORWARD, LS_COLLECTIVE_ALL_REDUCE, LS_AXIS_TP, NULL), 2 * 2 + 1);
    assert_int_equal(partition_exchanges(s.program, SEG_BACKWARD, LS_COLLECTIVE_ALL_REDUCE, LS_AXIS_TP, NULL), 2 * 2 + 1);
    for (int g = SEG_FORWARD; g <= SEG_BACKWARD; g++)  /* T3: each of B T C elements */
        for (int n = 0; n < s.program->list[g].n; n++)
            if (s.program->list[g].at[n].op == OP_COMM_START && s.program->list[g].at[n].exchange.op == LS_COLLECTIVE_ALL_REDUCE)
                assert_int_equal(s.program->list[g].at[n].exchange.total, c.batch * c.time * c.model.width);
    assert_int_equal(partition_exchanges(s.program, SEG_BACKWARD, LS_COLLECTIVE_ALL_GATHER, LS_AXIS_TP, NULL), 0);
    assert_int_equal(partition_exchanges(s.program, SEG_BACKWARD, LS_COLLECTIVE_REDUCE_SCATTER, LS_AXIS_TP, NULL), 0);
    partition_close(&s);
    plan_close(&m);
}

/* In parts: one sum's start stands in front of the next part's product, its wait behind. */
static void test_split_products(void **state)
{
    struct partition_case c = case_of(partition_gpt2(4, 24, 37, 0), 4, 1, 0, LS_CONTEXT_RING);
    struct partitioned s;
    struct planned m;

    (void)state;
    c.options.overlap = 2;
    open_planned(&c, 1, &m, &s);
    assert_string_equal(ops_of(s.program, SEG_FORWARD, "h.1"),
                        "layer_norm linear linear linear attention linear all_reduce linear all_reduce add add "
                        "layer_norm linear unary linear all_reduce linear all_reduce add add");
    for (int n = 0, open = 0, most = 0; n <= s.program->list[SEG_FORWARD].n; n++) {
        const struct instruction *i = &s.program->list[SEG_FORWARD].at[n];

        if (n == s.program->list[SEG_FORWARD].n) {
            assert_int_equal(most, 2);
            break;
        }
        open += (i->op == OP_COMM_START) - (i->op == OP_COMM_WAIT);
        most = MAX(most, open);
        assert_true(i->op != OP_ADD || open == 0);
    }
    partition_close(&s);
    plan_close(&m);
}

/* ---- T5: the same bytes, less memory ---- */

static void test_sequence(void **state)
{
    struct partition_case c = case_of(partition_gpt2(4, 24, 37, 0), 4, 1, 0, LS_CONTEXT_RING);
    size_t whole = 0, part = 0, loss = 0, bytes, activations;
    struct partitioned s;
    struct planned m;

    (void)state;
    open_planned(&c, 0, &m, &s);
    for (int g = SEG_FORWARD; g <= SEG_BACKWARD; g++) {
        partition_exchanges(s.program, (enum segment)g, LS_COLLECTIVE_ALL_REDUCE, LS_AXIS_TP, &bytes);
        whole += bytes;
        partition_exchanges(s.program, (enum segment)g, LS_COLLECTIVE_ALL_GATHER, LS_AXIS_TP, &bytes);
        loss += bytes;  /* statistics of the logits */
    }
    activations = ls_program_cost(s.program).activations;
    partition_close(&s);
    plan_close(&m);

    c.options.sp = 1;
    open_planned(&c, 0, &m, &s);
    assert_string_equal(ops_of(s.program, SEG_FORWARD, "h.0"),
                        "layer_norm all_gather join linear linear linear attention linear cut reduce_scatter add add "
                        "layer_norm all_gather join linear unary linear cut reduce_scatter add add");
    for (int g = SEG_FORWARD; g <= SEG_BACKWARD; g++) {
        assert_int_equal(partition_exchanges(s.program, (enum segment)g, LS_COLLECTIVE_ALL_REDUCE, LS_AXIS_TP, NULL), 0);
        partition_exchanges(s.program, (enum segment)g, LS_COLLECTIVE_REDUCE_SCATTER, LS_AXIS_TP, &bytes);
        part += bytes;
        partition_exchanges(s.program, (enum segment)g, LS_COLLECTIVE_ALL_GATHER, LS_AXIS_TP, &bytes);
        part += bytes;
    }
    assert_int_equal(part - loss, whole);
    assert_true(ls_program_cost(s.program).activations < activations);
    partition_close(&s);
    plan_close(&m);
}

/* ---- T4: weights cut, activations in part ---- */

static void test_memory(void **state)
{
    struct partition_case c = case_of(partition_llama(4, 4, 24, 40, 0), 4, 1, 0, LS_CONTEXT_RING);
    const ls_model *k = &c.model;
    size_t cut = k->layers * (4 * 16 * k->width + 3 * k->ffn * k->width) + 2 * k->vocab * k->width, norms = (2 * k->layers + 1) * k->width;
    size_t activations;
    struct partitioned s;
    struct planned m;

    (void)state;
    OK(partition_open(&c, NULL, true, &s));
    assert_int_equal(ls_program_cost(s.program).parameters, 4 * (cut + norms));
    activations = ls_program_cost(s.program).activations;
    partition_close(&s);
    open_planned(&c, 3, &m, &s);
    assert_int_equal(ls_program_cost(s.program).parameters, 4 * (cut / 4 + norms));
    assert_int_equal(ls_program_cost(s.program).gradients, 4 * (cut / 4 + norms));
    assert_true(ls_program_cost(s.program).activations < activations);
    assert_true(ls_program_cost(s.program).activations > activations / 4);
    partition_close(&s);
    plan_close(&m);
}

/* ---- T6, T7: the ring beside the exchange of heads ---- */

/* B t G D elements of keys and as many of values go n-1 times round; the exchange moves (n-1)/n of what q, k, v and o have here. */
static void test_context_bytes(void **state)
{
    struct partition_case c = case_of(partition_llama(8, 4, 24, 40, 0), 1, 4, 0, LS_CONTEXT_RING);
    size_t slice = 4 * c.batch * (c.time / 4) * 4, bytes;  /* bytes of one head of a slice */
    struct partitioned s;
    struct planned m;

    (void)state;
    open_planned(&c, 2, &m, &s);
    assert_int_equal(partition_exchanges(s.program, SEG_FORWARD, LS_COLLECTIVE_SEND, LS_AXIS_CP, &bytes), 2 * 3);
    assert_int_equal(bytes, 2 * 3 * (2 * 4 * slice));
    assert_int_equal(partition_exchanges(s.program, SEG_BACKWARD, LS_COLLECTIVE_SEND, LS_AXIS_CP, NULL), 2 * (3 + 4));
    partition_close(&s);
    plan_close(&m);
    c.options.context = LS_CONTEXT_ALL_TO_ALL;
    open_planned(&c, 2, &m, &s);
    for (int g = SEG_FORWARD; g <= SEG_BACKWARD; g++)
        assert_int_equal(partition_exchanges(s.program, (enum segment)g, LS_COLLECTIVE_ALL_TO_ALL, LS_AXIS_CP, &bytes), 2 * 4);
    assert_int_equal(ls_program_comm_bytes(s.program, LS_FORWARD, LS_COLLECTIVE_ALL_TO_ALL, NULL), 2 * (2 * 8 + 2 * 4) * slice * 3 / 4);
    partition_close(&s);
    plan_close(&m);
}

/* Activations of a long sequence fall as 1/cp, under both. */
static void test_context_memory(void **state)
{
    (void)state;
    for (int context = LS_CONTEXT_RING; context <= LS_CONTEXT_ALL_TO_ALL; context++) {
        size_t whole = 0;

        for (int cp = 1; cp <= 4; cp *= 2) {
            struct partition_case c = case_of(partition_gpt2(8, 128, 40, 0), 1, cp, 0, (ls_context)context);
            struct partitioned s;
            struct planned m;

            c.time = c.model.max_positions = 4096;
            c.model.layers = 12;  /* one attention's scratch is all of a sequence under the exchange of heads */
            c.shape.dp = 1;
            open_planned(&c, 0, &m, &s);
            whole = cp == 1 ? ls_program_cost(s.program).activations : whole;
            if (ls_program_cost(s.program).activations > whole / (size_t)cp * 4 / 3)
                fail_msg("context %d, cp %d: %zu bytes of %zu", context, cp, ls_program_cost(s.program).activations, whole);
            partition_close(&s);
            plan_close(&m);
        }
    }
}

/* ---- refused ---- */

static void partition_refused(struct partition_case c, const char *says)
{
    struct planned m = plan_mesh(&c.shape, 0);
    struct partitioned s;

    if (partition_open(&c, m.mesh, true, &s) == LS_OK)
        fail_msg("'%s' was let through", says);
    if (!strstr(ls_errmsg(), says))
        fail_msg("'%s' lacks '%s'", ls_errmsg(), says);
    plan_close(&m);
}

static void impossible_partitions_are_refused(void **state)
{
    struct partition_case c = case_of(partition_gpt2(3, 24, 37, 0), 4, 1, 0, LS_CONTEXT_RING);

    (void)state;
    partition_refused(c, "model.heads=3 cannot be sharded over parallel.tp=4: every rank needs at least one");
    c = case_of(partition_gpt2(4, 3, 37, 0), 4, 1, 0, LS_CONTEXT_RING);
    partition_refused(c, "model.ffn=3 cannot be sharded over parallel.tp=4");
    c = case_of(partition_gpt2(4, 24, 37, 0), 2, 3, 0, LS_CONTEXT_ALL_TO_ALL);
    partition_refused(c, "parallel.cp=3: with model.heads=4 and parallel.tp=2 a rank has 2 heads, enough for parallel.cp=2");
    c = case_of(partition_gpt2(4, 24, 37, 0), 1, 3, 0, LS_CONTEXT_RING);
    c.time = 5;
    partition_refused(c, "data.seq_len=5 is too short for parallel.cp=3 with two slices per rank; use at least 6 tokens");
    c = case_of(partition_gpt2(4, 24, 37, 0), 4, 2, 1, LS_CONTEXT_ALL_TO_ALL);
    c.time = 7;
    c.shape.cp = 2;
    c.shape.tp = 4;
    partition_refused(c, "parallel.cp_method=all_to_all with parallel.cp=2");
    c.options.context = LS_CONTEXT_RING;
    c.time = 6;
    partition_refused(c, "data.seq_len=6 over parallel.cp=2 gives slices of 3 tokens, too few for parallel.sp over parallel.tp=4");
    c = case_of(partition_gpt2(4, 24, 37, 0), 2, 1, 0, LS_CONTEXT_RING);
    c.recompute = LS_RECOMPUTE_BUDGET;
    partition_refused(c, "recompute.mode=budget:0 with parallel.tp=2");
    c = case_of(partition_gpt2(4, 24, 37, 0), 2, 1, 0, (ls_context)7);
    partition_refused(c, "parallel.cp_method: 7 does not exist: ring or all_to_all");
}

/* An op without a rule, and one that is cut where its rule wants it whole: op, axis, tensor. */
static void refuse_graph(void (*build)(ls_program *p, const ls_model *m), const char *says[4])
{
    struct partition_case c = case_of(partition_gpt2(4, 24, 37, 0), 2, 1, 0, LS_CONTEXT_RING);
    struct planned m = plan_mesh(&c.shape, 0);
    ls_store *store;
    ls_program *p;

    OK(ls_store_new(NULL, &store));
    OK(ls_program_new(store, &p));
    build(p, &c.model);
    OK(ls_partition(p, m.mesh, &c.model, &c.options));
    assert_true(ls_program_compile(p, NULL) < 0);
    for (int k = 0; k < 4 && says[k]; k++)
        if (!strstr(ls_errmsg(), says[k]))
            fail_msg("'%s' lacks '%s'", ls_errmsg(), says[k]);
    ls_program_release(&p);
    ls_store_release(&store);
    plan_close(&m);
}

static ls_value fc_of(ls_program *p, const ls_model *m)
{
    ls_value x = ls_input(p, "x", LS_F32, 2, (size_t[]){ 6, m->width });

    return ls_linear(p, x, ls_param(p, "h.0.mlp.fc.weight", (ls_init){ LS_INIT_NORMAL, 1 }, 2, (size_t[]){ m->ffn, m->width }), LS_NONE);
}

static void build_mse(ls_program *p, const ls_model *m)
{
    ls_value y = fc_of(p, m);

    ls_backward(p, ls_mse(p, y, ls_input(p, "y", LS_F32, 2, (size_t[]){ 6, m->ffn })));
}

static void build_softmax(ls_program *p, const ls_model *m) { ls_backward(p, ls_sum(p, ls_softmax(p, fc_of(p, m)), -1)); }

static void op_without_rule_is_refused(void **state)
{
    (void)state;
    refuse_graph(build_mse, (const char *[4]){ "mse over tp", "'linear' [6,12]", "is cut along dim 1", "no rule" });
    refuse_graph(build_softmax, (const char *[4]){ "softmax over tp", "'linear' [6,12]", "is cut along dim 1", "whole" });
}

/* ---- other programs ---- */

/* A second program of the store sees the boxes; what it gives out is whole over tp. */
static void test_second_program(void **state)
{
    struct partition_case c = case_of(partition_llama(6, 3, 20, 37, 0), 2, 1, 1, LS_CONTEXT_RING);
    struct partitioned s;
    struct planned m;
    ls_program *p;
    ls_value tokens, logits;

    (void)state;
    open_planned(&c, 1, &m, &s);
    OK(ls_program_new(s.store, &p));
    tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ 1, c.time });
    logits = ls_output(p, "logits", ls_model_logits(p, &c.model, tokens));
    OK(ls_partition(p, m.mesh, &c.model, &c.options));
    OK(ls_program_compile(p, &(ls_compile_options){ .plan_only = 1 }));
    assert_int_equal(ls_value_size(p, logits, 1), c.time);
    assert_int_equal(ls_value_size(p, logits, 2), 37);
    assert_int_equal(ls_value_size(p, program_find(p, "tokens"), 1), c.time);
    ls_program_release(&p);
    partition_close(&s);
    plan_close(&m);
}

/* An optimizer alone, and one behind a forward: values of a parameter have the sizes of its box. */
static void test_optimizer(void **state)
{
    struct partition_case c = case_of(partition_llama(6, 3, 20, 37, 1), 2, 1, 0, LS_CONTEXT_RING);
    ls_optimizer o = LS_OPTIMIZER_DEFAULTS;
    struct partitioned s;
    struct planned m;
    ls_program *p;
    int found = 0;

    (void)state;
    open_planned(&c, 0, &m, &s);
    OK(ls_program_new(s.store, &p));
    OK(ls_optimizer_append(p, &o));
    OK(ls_partition(p, m.mesh, &c.model, &c.options));
    OK(ls_program_compile(p, &(ls_compile_options){ .plan_only = 1 }));
    for (int v = 1; v < p->nvalues; v++) {
        const struct value *x = &p->values[v];

        for (int d = 0; x->param >= 0 && d < x->ndim; d++)
            assert_int_equal(x->size[d], store_local_size(s.store, (size_t)x->param, d));
        found += x->param >= 0 && x->role == LS_ROLE_OPTIMIZER;
    }
    assert_int_equal(found, 2 * (int)ls_store_count(s.store));
    ls_program_release(&p);
    partition_close(&s);
    plan_close(&m);
}

static void test_slices(void **state)
{
    size_t begin[2], end[2], seen;

    (void)state;
    assert_int_equal(ls_context_slices(NULL, LS_CONTEXT_RING, 9, begin, end), 1);
    assert_int_equal(begin[0], 0);
    assert_int_equal(end[0], 9);
    for (int context = LS_CONTEXT_RING; context <= LS_CONTEXT_ALL_TO_ALL; context++) {
        char taken[14] = "";

        seen = 0;
        for (int r = 0; r < 3; r++) {
            struct planned m = plan_mesh(&(ls_mesh_shape){ 1, 1, 1, 3, 1, 1 }, r);
            int n = ls_context_slices(m.mesh, (ls_context)context, 13, begin, end);

            assert_int_equal(n, context == LS_CONTEXT_RING ? 2 : 1);
            for (int k = 0; k < n; k++)
                for (size_t t = begin[k]; t < end[k]; t++, seen++)
                    assert_int_equal(taken[t]++, 0);
            if (n == 2)
                assert_true(begin[0] == cut_at(13, 1, r, 6) && begin[1] == cut_at(13, 1, 5 - r, 6));
            plan_close(&m);
        }
        assert_int_equal(seen, 13);
    }
}

/* Every allocation of a compile fails once: a message each time, and nothing left behind. */
static void partition_fails_cleanly_without_memory(void **state)
{
    struct partition_case c = case_of(partition_llama(6, 1, 20, 37, 0), 2, 2, 1, LS_CONTEXT_RING);

    (void)state;
    for (int context = LS_CONTEXT_RING; context <= LS_CONTEXT_ALL_TO_ALL; context++) {
        struct planned m = plan_mesh(&c.shape, 3);
        ls_status st = LS_ENOMEM;
        struct partitioned s;

        c.options.context = (ls_context)context;
        for (int64_t nth = 1; st < 0; nth += 1 + nth / 50) {
            struct mem_stats before, after;

            mem_read(&before);
            mem_fail_at(nth);
            st = partition_open(&c, m.mesh, true, &s);
            mem_fail_at(0);
            if (st == LS_OK)
                partition_close(&s);
            else
                assert_int_equal(st, LS_ENOMEM);
            mem_read(&after);
            assert_int_equal(before.total_now, after.total_now);
        }
        plan_close(&m);
    }
}

/* ---- injected faults ---- */

struct injected { enum fault fault; ls_mesh_shape shape; int sp; ls_context context; double dropout; size_t kv; const char *says[2]; };

/* says: of the check; NULL: no type shows it, the numbers do. kv 0: GPT-2. */
static const struct injected faults[] = {
    { FAULT_NO_ENTER, { 1, 1, 1, 1, 2, 1 }, 0, LS_CONTEXT_RING, 0, 0, { "h.0: linear over tp: 'h.0/layer_norm'", "has to be entered" } },
    { FAULT_NO_REDUCE, { 1, 1, 1, 1, 2, 1 }, 0, LS_CONTEXT_RING, 0, 0, { "enter over tp: 'embedding.part'", "is a partial sum" } },
    { FAULT_NO_PARTIAL, { 1, 1, 1, 1, 2, 1 }, 1, LS_CONTEXT_RING, 0, 0, { "embedding over tp: 'wpe.weight'", "not marked" } },
    { FAULT_NO_PARTIAL, { 1, 1, 1, 1, 2, 1 }, 1, LS_CONTEXT_RING, 0, 4, { "rms_norm over tp: 'model.layers.0.input_layernorm.weight'", "not marked" } },
    { FAULT_DOUBLE_REDUCE, { 1, 1, 1, 1, 2, 1 }, 0, LS_CONTEXT_RING, 0, 0, { "reduce over tp: 'reduce'", "has been added up before" } },
    { FAULT_DOUBLE_REDUCE, { 1, 1, 1, 1, 2, 1 }, 1, LS_CONTEXT_RING, 0, 0, { "scatter over tp: 'reduce'", "has been added up before" } },
    { FAULT_WRONG_GROUP, { 1, 2, 1, 1, 2, 1 }, 0, LS_CONTEXT_RING, 0, 0, { "reduce over tp: 'embedding.part'", "ranks of another axis" } },
    { FAULT_MASK, { 1, 1, 1, 1, 2, 1 }, 1, LS_CONTEXT_RING, 0.3, 0, { NULL, NULL } },
    { FAULT_MASK, { 1, 1, 1, 2, 1, 1 }, 0, LS_CONTEXT_RING, 0.3, 0, { NULL, NULL } },
    { FAULT_LOSS_TWICE, { 1, 1, 1, 2, 1, 1 }, 0, LS_CONTEXT_RING, 0, 0, { NULL, NULL } },
    { FAULT_RING_DKV, { 1, 1, 1, 3, 1, 1 }, 0, LS_CONTEXT_RING, 0, 2, { NULL, NULL } },
    { FAULT_LOSS_MEAN, { 1, 1, 1, 2, 1, 1 }, 0, LS_CONTEXT_ALL_TO_ALL, 0, 0, { NULL, NULL } },
};

static struct partition_case case_of_fault(const struct injected *b)
{
    ls_model m = b->kv ? partition_llama(4, b->kv, 20, 37, 0) : partition_gpt2(4, 24, 37, b->dropout);
    struct partition_case c = case_of(m, b->shape.tp, b->shape.cp, b->sp, b->context);

    c.shape = b->shape;
    return c;
}

static void injected_faults_are_named(void **state)
{
    (void)state;
    if (!faults_built()) skip();
    for (size_t k = 0; k < COUNT_OF(faults); k++) {
        struct partition_case c = case_of_fault(&faults[k]);

        faults_set(faults[k].fault, true);
        if (faults[k].says[0]) {
            partition_refused(c, faults[k].says[0]);
            partition_refused(c, faults[k].says[1]);
        } else {
            struct partitioned s;
            struct planned m;

            open_planned(&c, 0, &m, &s);
            partition_close(&s);
            plan_close(&m);
        }
        faults_set(FAULT_NONE, true);
    }
}

static void run_fault(ls_comm *comm, void *ctx)
{
    const struct injected *b = ctx;
    struct partition_case c = case_of_fault(b);
    const char *wrong;

    threads_set(1);
    faults_set(b->fault, false);
    wrong = partition_differs(&c, comm, 1e-5);
    if (!wrong)
        ranks_fail("'%s' changes nothing", fault_name(b->fault));
    if (!strstr(wrong, "gradient of") && !strstr(wrong, "loss "))
        ranks_fail("'%s': %s", fault_name(b->fault), wrong);
}

/* Unchecked they run, and the numbers are wrong. */
static void injected_faults_change_results(void **state)
{
    (void)state;
    if (!faults_built()) skip();
    for (size_t k = 0; k < COUNT_OF(faults); k++)
        forked_run(faults[k].shape.dp * faults[k].shape.cp * faults[k].shape.tp, run_fault, (void *)&faults[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(injected_faults_change_results),
        cmocka_unit_test(test_layer),
        cmocka_unit_test(test_split_products),
        cmocka_unit_test(test_sequence),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_context_bytes),
        cmocka_unit_test(test_context_memory),
        cmocka_unit_test(impossible_partitions_are_refused),
        cmocka_unit_test(op_without_rule_is_refused),
        cmocka_unit_test(test_second_program),
        cmocka_unit_test(test_optimizer),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(partition_fails_cleanly_without_memory),
        cmocka_unit_test(injected_faults_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
