/* test_pipeline_stage.c - a forward divided into stages: nothing is lost or computed twice, one value crosses each boundary, sums are
 * split. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "base/base.h"
#include "helper_distributed.h"
#include "parallel/pipeline/stage.h"
#include "runtime/store.h"

enum { BATCH = 2, TIME = 8, WIDTH = 16 };

static void append_model(ls_program *p, const ls_model *m)
{
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ BATCH, TIME });
    ls_value targets = ls_input(p, "targets", LS_I32, 2, (size_t[]){ BATCH, TIME });
    ls_value denominator = ls_input(p, "denominator", LS_F32, 1, (size_t[]){ 1 });

    ls_output(p, "loss", ls_model_loss(p, m, tokens, targets, denominator, LS_NONE));
}

static ls_program *whole_model(ls_store *s, enum net net)
{
    ls_program *p;

    assert_int_equal(ls_program_new(s, &p), LS_OK);
    append_model(p, distributed_model(net));
    assert_int_equal(ls_program_status(p), LS_OK);
    return p;
}

static ls_store *new_store(void)
{
    ls_store *s;

    assert_int_equal(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 0, 7, 0 }, &s), LS_OK);
    return s;
}

static int count_op(const ls_program *p, int op)
{
    int n = 0;

    for (int k = 0; k < p->list[SEG_FORWARD].n; k++)
        n += p->list[SEG_FORWARD].at[k].op == op;
    return n;
}

static bool has(const ls_program *p, const char *name) { return program_find(p, name).id != 0; }

/* Stage k of n equal stages of a net. */
static ls_stage stage_at(const ls_program *p, int k, int n)
{
    int blocks = p->nblocks - 1;

    return (ls_stage){ k, n, blocks * k / n, blocks * (k + 1) / n };
}

/* ---- what is kept ---- */

static void check_cut(enum net net, int n)
{
    ls_store *s = new_store();
    ls_program *whole = whole_model(s, net);
    int linears = 0, attentions = 0, embeddings = 0, tables = 0, reads[200] = { 0 };
    bool tied = distributed_model(net)->tied;

    for (int k = 0; k < n; k++) {
        ls_program *p = whole_model(s, net);
        ls_stage stage = stage_at(p, k, n);
        bool mine[200] = { false };

        assert_int_equal(stage_reads(whole, &stage, mine), LS_OK);
        assert_int_equal(stage_extract(p, &stage), LS_OK);
        linears += count_op(p, OP_LINEAR);
        attentions += count_op(p, OP_ATTENTION);
        embeddings += count_op(p, OP_EMBEDDING);
        tables += count_op(p, OP_ROPE_TABLE);
        assert_int_equal(has(p, "tokens"), k == 0);
        assert_int_equal(has(p, "targets"), k == n - 1);
        assert_int_equal(has(p, "loss"), k == n - 1);
        assert_int_equal(has(p, "stage.in"), k > 0);
        assert_int_equal(has(p, "stage.out"), k < n - 1);
        assert_int_equal(p->results.stage.in.id != 0, k > 0);
        assert_int_equal(p->results.stage.out.id != 0, k < n - 1);
        if (k > 0)
            assert_int_equal(program_value(p, p->results.stage.in)->size[2], WIDTH);
        for (size_t i = 0; i < ls_store_count(s); i++)
            reads[i] += mine[i];
        ls_program_release(&p);
    }
    assert_int_equal(linears, count_op(whole, OP_LINEAR));
    assert_int_equal(attentions, count_op(whole, OP_ATTENTION));
    assert_int_equal(embeddings, count_op(whole, OP_EMBEDDING));
    assert_int_equal(tables, net == NET_GPT2 ? 0 : n); /* computed wherever it is read */
    for (size_t i = 0; i < ls_store_count(s); i++)
        assert_int_equal(reads[i], tied && i == 0 && n > 1 ? 2 : 1);
    ls_program_release(&whole);
    ls_store_release(&s);
}

static void stages_keep_every_parameter(void **state)
{
    (void)state;
    for (int net = NET_GPT2; net <= NET_LLAMA_TIED; net++)
        for (int n = 2; n <= (int)distributed_model((enum net)net)->layers; n++)
            check_cut((enum net)net, n);
}

static void one_stage_equals_the_model(void **state)
{
    ls_store *s = new_store();
    ls_program *p = whole_model(s, NET_GPT2);
    int n = p->list[SEG_FORWARD].n;

    (void)state;
    assert_int_equal(stage_extract(p, &(ls_stage){ 0, 1, 0, 0 }), LS_OK);
    assert_int_equal(p->list[SEG_FORWARD].n, n);
    assert_false(has(p, "stage.in") || has(p, "stage.out"));
    ls_program_release(&p);
    ls_store_release(&s);
}

/* ---- what it computes ---- */

static void ids_fill(int32_t *x, int n, int modulus)
{
    for (int i = 0; i < n; i++)
        x[i] = i * 7 % modulus;
}

static void stage_feed(ls_program *p)
{
    int32_t x[BATCH * TIME];
    float valid = BATCH * TIME;

    ids_fill(x, BATCH * TIME, 31);
    if (has(p, "tokens"))
        assert_int_equal(ls_program_write(p, "tokens", x, LS_I32, BATCH * TIME), LS_OK);
    ids_fill(x, BATCH * TIME, 23);
    if (has(p, "targets"))
        assert_int_equal(ls_program_write(p, "targets", x, LS_I32, BATCH * TIME), LS_OK);
    if (has(p, "denominator"))
        assert_int_equal(ls_program_write(p, "denominator", &valid, LS_F32, 1), LS_OK);
}

static float run_stage(ls_program *p, float *carried)
{
    float loss = NAN;
    size_t n = BATCH * TIME * WIDTH;

    assert_int_equal(ls_program_compile(p, NULL), LS_OK);
    stage_feed(p);
    if (has(p, "stage.in"))
        assert_int_equal(ls_program_write(p, "stage.in", carried, LS_F32, n), LS_OK);
    assert_int_equal(ls_program_run(p, LS_FORWARD), LS_OK);
    if (has(p, "stage.out"))
        assert_int_equal(ls_program_read(p, "stage.out", carried, LS_F32, n), LS_OK);
    if (has(p, "loss"))
        assert_int_equal(ls_program_read(p, "loss", &loss, LS_F32, 1), LS_OK);
    return loss;
}

/* One stage after another on the same store: the bits of the undivided program. */
static void stages_give_the_same_loss(void **state)
{
    (void)state;
    for (int net = NET_GPT2; net <= NET_LLAMA_TIED; net++) {
        float carried[BATCH * TIME * WIDTH], last = 0;
        ls_store *s = new_store();
        ls_program *p = whole_model(s, (enum net)net);
        int n = (int)distributed_model((enum net)net)->layers;
        float one = run_stage(p, NULL);

        ls_program_release(&p);
        for (int k = 0; k < n; k++) {
            p = whole_model(s, (enum net)net);
            assert_int_equal(stage_extract(p, &(ls_stage){ k, n, k, k + 1 }), LS_OK);
            last = run_stage(p, carried);
            ls_program_release(&p);
        }
        assert_true(one > 0 && one == last);
        ls_store_release(&s);
    }
}

/* ---- sums with shares in several stages ---- */

static ls_value pipeline_stage_test_weight(ls_program *p, const char *name)
{
    return ls_param(p, name, (ls_init){ LS_INIT_NORMAL, 0.3 }, 2, (size_t[]){ 4, 4 });
}

/* A chain of matmuls; each block has a penalty, which is part of the loss and a separate output. */
static void append_penalties(ls_program *p, int blocks, ls_value *x)
{
    ls_value h = ls_input(p, "x", LS_F32, 2, (size_t[]){ 3, 4 }), penalties = LS_NONE;
    ls_value zero = ls_constant(p, LS_F32, 2, (size_t[]){ 3, 4 }, 0.0);
    char name[16];

    for (int b = 0; b < blocks; b++) {
        name[0] = 'b', name[1] = (char)('0' + b), name[2] = 0;
        ls_block_begin(p, name);
        h = ls_linear(p, h, pipeline_stage_test_weight(p, name), LS_NONE);
        ls_value mine = ls_scale(p, ls_mse(p, h, zero), 0.5 + b);
        penalties = penalties.id ? ls_add(p, penalties, mine) : mine;
        ls_block_end(p);
    }
    ls_value loss = ls_mse(p, ls_linear(p, h, pipeline_stage_test_weight(p, "head"), LS_NONE), zero);
    penalties = ls_scale(p, penalties, 2.0);
    loss = ls_output(p, "loss", ls_add(p, loss, penalties));
    ls_output(p, "penalties", penalties);
    if (x)
        *x = loss;
}

static double read_one(ls_program *p, const char *name)
{
    double x = 0;

    if (has(p, name))
        assert_int_equal(ls_program_read(p, name, &x, LS_F64, 1), LS_OK);
    return x;
}

static void run_penalties(ls_store *s, int k, int n, float *carried, double sum[2])
{
    ls_program *p;
    float x[12];

    assert_int_equal(ls_program_new(s, &p), LS_OK);
    append_penalties(p, 4, NULL);
    assert_int_equal(stage_extract(p, &(ls_stage){ k, n, 4 * k / n, 4 * (k + 1) / n }), LS_OK);
    assert_int_equal(ls_program_compile(p, NULL), LS_OK);
    for (int i = 0; i < 12; i++)
        x[i] = (float)(i - 5) / 3;
    if (has(p, "x"))
        assert_int_equal(ls_program_write(p, "x", x, LS_F32, 12), LS_OK);
    if (has(p, "stage.in"))
        assert_int_equal(ls_program_write(p, "stage.in", carried, LS_F32, 12), LS_OK);
    assert_int_equal(ls_program_run(p, LS_FORWARD), LS_OK);
    if (has(p, "stage.out"))
        assert_int_equal(ls_program_read(p, "stage.out", carried, LS_F32, 12), LS_OK);
    assert_true(has(p, "loss") && has(p, "penalties"));
    sum[0] += read_one(p, "loss");
    sum[1] += read_one(p, "penalties");
    ls_program_release(&p);
}

static void shares_add_up(void **state)
{
    double whole[2] = { 0 };
    float carried[12];

    (void)state;
    for (int n = 1; n <= 4; n++) {
        ls_store *s = new_store();
        double sum[2] = { 0 };

        for (int k = 0; k < n; k++)
            run_penalties(s, k, n, carried, sum);
        if (n == 1)
            memcpy(whole, sum, sizeof whole);
        assert_true(whole[0] > 0 && fabs(sum[0] - whole[0]) < 1e-6 * whole[0]);
        assert_true(whole[1] > 0 && fabs(sum[1] - whole[1]) < 1e-6 * whole[1]);
        ls_store_release(&s);
    }
}

/* The loss of each stage is its share, and every stage gets gradients from it. */
static void stage_loss_is_its_share(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        ls_store *s = new_store();
        ls_program *p;
        ls_value loss;

        assert_int_equal(ls_program_new(s, &p), LS_OK);
        append_penalties(p, 4, &loss);
        ls_backward(p, loss);
        assert_int_equal(stage_extract(p, &(ls_stage){ k, 2, 2 * k, 2 * k + 2 }), LS_OK);
        assert_true(p->loss.id && p->builder.backward);
        ls_program_release(&p);
        ls_store_release(&s);
    }
}

/* ---- what is refused ---- */

static void stage_refused(ls_program *p, ls_stage stage, const char *why)
{
    assert_int_equal(stage_extract(p, &stage), LS_EINVAL);
    if (!strstr(ls_errmsg(), why))
        fail_msg("'%s' is not in '%s'", why, ls_errmsg());
    ls_program_release(&p);
}

static void test_refusals(void **state)
{
    ls_store *s = new_store();
    ls_program *p;
    ls_value skip;

    (void)state;
    stage_refused(whole_model(s, NET_GPT2), (ls_stage){ 1, 2, 2, 2 }, "stage 1 of 2 has blocks 2 to 2 of the model's 3");
    stage_refused(whole_model(s, NET_GPT2), (ls_stage){ 0, 2, 1, 2 }, "the first from block 0");
    stage_refused(whole_model(s, NET_GPT2), (ls_stage){ 1, 2, 1, 2 }, "the last to block 3");
    stage_refused(whole_model(s, NET_GPT2), (ls_stage){ 2, 2, 1, 3 }, "stage 2 of 2 does not exist; use 0 to 1");

    assert_int_equal(ls_program_new(s, &p), LS_OK);
    ls_value x = ls_input(p, "x", LS_F32, 2, (size_t[]){ 3, 4 });
    ls_block_begin(p, "a");
    x = skip = ls_linear(p, x, pipeline_stage_test_weight(p, "wa"), LS_NONE);
    x = ls_linear(p, x, pipeline_stage_test_weight(p, "wb"), LS_NONE);
    ls_block_end(p);
    ls_block_begin(p, "b");
    ls_value y = ls_add(p, x, skip);
    ls_block_end(p);
    ls_output(p, "y", y);
    stage_refused(p, (ls_stage){ 0, 2, 0, 1 }, "'a/linear' and 'a/linear' both cross the boundary before b; only one");
    ls_store_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_keep_every_parameter),
        cmocka_unit_test(one_stage_equals_the_model),
        cmocka_unit_test(stages_give_the_same_loss),
        cmocka_unit_test(shares_add_up),
        cmocka_unit_test(stage_loss_is_its_share),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
