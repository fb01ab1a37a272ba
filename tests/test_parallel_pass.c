/* test_parallel_pass.c - the data-parallel pass: settings that it refuses, errors that placements detect, other programs on the same
 * store, injected faults, and memory that does not grow with depth. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/threads.h"
#include "helper_check.h"
#include "helper_faults.h"
#include "helper_forked.h"
#include "helper_distributed.h"
#include "parallel/zero/zero.h"
#include "train/faults/fault_points.h"

static struct layout parallel_pass_layout_of(enum net net, int zero)
{
    struct layout l = { .net = net, .optimizer = LS_ADAMW, .data = LS_DATA_PARALLEL_DEFAULTS };

    l.data.zero = zero;
    l.data.bucket_bytes = 9000;
    l.data.first_bucket_bytes = 3000;
    return l;
}

/* ---- refused ---- */

static void layout_refused(int n, struct layout l, const char *says)
{
    struct training s;
    ls_comm *comm;

    OK(ls_comm_open("plan:", 0, n, &comm));
    if (distributed_open(&l, comm, true, &s) == LS_OK)
        fail_msg("'%s' was let through", says);
    if (!strstr(ls_errmsg(), says))
        fail_msg("'%s' lacks '%s'", ls_errmsg(), says);
    ls_comm_close(&comm);
}

static void impossible_layouts_are_refused(void **state)
{
    struct layout l = parallel_pass_layout_of(NET_MLP, 4);

    (void)state;
    layout_refused(2, l, "parallel.zero=4 is out of range: 0 to 3");
    l = parallel_pass_layout_of(NET_MLP, 1);
    l.data.replicate = 3;
    layout_refused(4, l, "parallel.dp=4 is not a multiple of parallel.replicate=3");
    l.data.replicate = 0;
    layout_refused(4, l, "parallel.replicate=0 is out of range");
    l.data.replicate = 4;
    layout_refused(4, l, "makes every rank a replica and shards nothing");
    l.data.replicate = 2;
    l.data.zero = 0;
    layout_refused(4, l, "parallel.replicate=2 does nothing here: parallel.zero=0 replicates everything");
    l = parallel_pass_layout_of(NET_MLP, 0);
    l.data.reduce = LS_F16;
    layout_refused(2, l, "precision.reduce=f16 is not possible; use fp32 or bf16");
    l = parallel_pass_layout_of(NET_MLP, 0);
    l.data.bucket_bytes = 0;
    layout_refused(2, l, "parallel.bucket=0");
    l = parallel_pass_layout_of(NET_MLP, 0);
    l.data.offload = LS_OFFLOAD_FILE;
    layout_refused(2, l, "needs a folder");
    l = parallel_pass_layout_of(NET_GPT2, 3);
    l.data.reshard_after_forward = 0;
    l.meshed = true;
    l.mesh = (ls_mesh_shape){ 2, 2, 1, 1, 1, 1 };
    l.partition = (ls_partition_options)LS_PARTITION_DEFAULTS;
    l.schedule = "1f1b";
    l.accumulate = 2;
    layout_refused(4, l, "parallel.reshard_after_forward=false with parallel.pp=2: several micro-batches are in flight");
}

/* Every allocation of a compile fails once: a message each time, and nothing left behind. */
static void pass_fails_cleanly_without_memory(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++) {
        struct layout l = parallel_pass_layout_of(NET_IMAGE, zero);
        ls_status st = LS_ENOMEM;
        struct training s;
        ls_comm *comm;

        l.optimizer = LS_LAMB;
        l.data.reduce = LS_BF16;
        l.data.replicate = zero ? 2 : 1;
        l.data.offload = LS_OFFLOAD_CPU;
        OK(ls_comm_open("plan:", 1, 4, &comm));
        for (int64_t nth = 1; st < 0; nth += 1 + nth / 100) {
            struct mem_stats before, after;

            mem_read(&before);
            mem_fail_at(nth);
            st = distributed_open(&l, comm, true, &s);
            mem_fail_at(0);
            if (st == LS_OK)
                distributed_close(&s);
            else
                assert_int_equal(st, LS_ENOMEM);
            mem_read(&after);
            assert_int_equal(before.total_now, after.total_now);
        }
        ls_comm_close(&comm);
    }
}

/* ---- types ---- */

/* A missing and a duplicate reduction are compile-time errors that name op and tensor. */
static void test_types(void **state)
{
    static const struct { enum fault fault; int zero; const char *says[2]; } cases[] = {
        { FAULT_SKIP_BUCKET, 0, { "sum_squares reads 'mlp", "still a partial sum over dp" } },
        { FAULT_SKIP_BUCKET, 1, { "sum_squares reads 'mlp", "still a partial sum over dp" } },
        { FAULT_SKIP_BUCKET, 2, { "sum_squares reads 'mlp", "still a partial sum over dp" } },
        { FAULT_SKIP_BUCKET, 3, { "sum_squares reads 'mlp", "still a partial sum over dp" } },
        { FAULT_LOCAL_NORM, 1, { "clip_factor reads", "still a partial sum over dp" } },
        { FAULT_LOCAL_NORM, 3, { "clip_factor reads", "still a partial sum over dp" } },
        { FAULT_TWICE, 0, { "all_reduce of", "not a partial sum" } },
    };

    (void)state;
    if (!faults_built()) skip();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        faults_set(cases[i].fault, true);
        for (int k = 0; k < 2; k++)
            layout_refused(2, parallel_pass_layout_of(NET_MLP, cases[i].zero), cases[i].says[k]);
    }
    faults_set(FAULT_NONE, true);
}

/* ---- depth ---- */

static ls_cost cost_of_depth(size_t layers, const ls_data_parallel_options *o)
{
    ls_model m = *distributed_model(NET_LLAMA);
    ls_compile_options co = LS_COMPILE_DEFAULTS;
    ls_optimizer optimizer = LS_OPTIMIZER_DEFAULTS;
    size_t size[2] = { 2, DIST_TIME };
    ls_store *s;
    ls_program *p;
    ls_comm *comm;

    m.layers = layers;
    co.plan_only = 1;
    OK(ls_comm_open("plan:", 1, 4, &comm));
    OK(ls_store_new(NULL, &s));
    OK(ls_program_new(s, &p));
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, size);
    ls_value targets = ls_input(p, "targets", LS_I32, 2, size);
    ls_backward(p, ls_output(p, "loss", ls_model_loss(p, &m, tokens, targets, LS_NONE, LS_NONE)));
    OK(ls_optimizer_append(p, &optimizer));
    OK(ls_data_parallel(p, comm, o));
    OK(ls_program_compile(p, &co));
    ls_cost c = ls_program_cost(p);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&comm);
    return c;
}

/* Zero 3: at most two units of parameters and two of gradients are gathered at once, however deep the model. Without resharding, all are.
 */
static void test_depth(void **state)
{
    ls_data_parallel_options o = LS_DATA_PARALLEL_DEFAULTS;
    size_t block = 4 * (2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24 + 2 * 16);

    (void)state;
    o.zero = 3;
    assert_int_equal(cost_of_depth(4, &o).communication, cost_of_depth(12, &o).communication);
    assert_true(cost_of_depth(4, &o).communication <= 4 * (block + 256) + 2 * 4 * 37 * 16);
    o.reshard_after_forward = 0;
    assert_true(cost_of_depth(12, &o).communication >= cost_of_depth(4, &o).communication + 8 * block);
}

/* ---- injected faults ---- */

static void check_faults(ls_comm *comm, void *ctx)
{
    static const enum fault faults[] = { FAULT_AVERAGE, FAULT_SKIP_BUCKET, FAULT_TWICE, FAULT_LOCAL_NORM, FAULT_BOUNDARY };
    static struct outcome one, right, wrong;

    (void)ctx;
    threads_set(1);
    for (int zero = 0; zero < 4; zero++) {
        struct layout l = parallel_pass_layout_of(NET_GPT2, zero);

        RANKS_TRY(distributed_train(&l, NULL, &one));
        RANKS_TRY(distributed_train(&l, comm, &right));
        RANKS_CHECK(!distributed_differs(&l, &one, &right, 1e-5));
        for (size_t b = 0; b < sizeof faults / sizeof faults[0]; b++) {
            if (zero == 0 && faults[b] == FAULT_LOCAL_NORM)
                continue;  /* nothing is local */
            faults_set(faults[b], false);
            RANKS_TRY(distributed_train(&l, comm, &wrong));
            faults_set(FAULT_NONE, true);
            if (!distributed_differs(&l, &one, &wrong, 1e-5)) {
                fprintf(stderr, "zero %d: '%s' changes nothing\n", zero, fault_name(faults[b]));
                _Exit(1);
            }
        }
    }
}

static void test_injected_faults(void **state)
{
    (void)state;
    if (!faults_built()) skip();
    forked_run(2, check_faults, NULL);
}

/* ---- other programs of the store ---- */

/* The logits of two samples, computed by a separate program over the store. */
static ls_status logits(ls_store *s, ls_comm *comm, const struct layout *l, float *out, size_t count)
{
    int32_t ids[2 * 5] = { 1, 5, 9, 36, 0, 2, 2, 7, 30, 11 };
    ls_program *p;

    LS_TRY(ls_program_new(s, &p));
    ls_output(p, "logits", ls_model_logits(p, distributed_model(l->net), ls_input(p, "tokens", LS_I32, 2, (size_t[]){ 2, 5 })));
    ls_status st = comm ? ls_data_parallel(p, comm, &l->data) : LS_OK;
    if (st == LS_OK) st = ls_program_compile(p, NULL);
    if (st == LS_OK) st = ls_program_write(p, "tokens", ids, LS_I32, 10);
    for (int k = 0; k < 2 && st == LS_OK; k++) st = ls_program_run(p, LS_FORWARD);
    if (st == LS_OK) st = ls_program_read(p, "logits", out, LS_F32, count);
    ls_program_release(&p);
    return st;
}

/* The same weights, unsharded, in a store of one rank. */
static ls_status copy_store(const ls_store *from, ls_store *to)
{
    float *x = malloc(sizeof *x * DIST_ELEMENTS);
    ls_status st = x ? LS_OK : LS_ENOMEM;

    for (size_t i = 0; i < ls_store_count(from) && st == LS_OK; i++) {
        size_t count = 1;

        for (int d = 0; d < ls_store_ndim(from, i); d++)
            count *= ls_store_size(from, i, d);
        st = ls_store_read(from, i, "parameter", x, LS_F32, count);
        if (st == LS_OK)
            st = ls_store_set(to, i, x, LS_F32, count);
    }
    free(x);
    return st;
}

static void check_other_programs(ls_comm *comm, void *ctx)
{
    enum { COUNT = 2 * 5 * 37 };

    (void)ctx;
    threads_set(1);
    for (int net = NET_GPT2; net <= NET_LLAMA_TIED; net++)
        for (int zero = 0; zero < 4; zero++) {
            struct layout l = parallel_pass_layout_of((enum net)net, zero);
            float distribution[COUNT], again[COUNT], alone[COUNT];
            struct training s, one;
            double loss;

            RANKS_TRY(distributed_open(&l, comm, false, &s));
            RANKS_TRY(distributed_step(&s, &l, 0, &loss));
            RANKS_TRY(logits(s.store, comm, &l, distribution, COUNT));
            RANKS_TRY(distributed_open(&l, NULL, false, &one));
            RANKS_TRY(copy_store(s.store, one.store));
            RANKS_TRY(logits(one.store, NULL, &l, alone, COUNT));
            for (int i = 0; i < COUNT; i++)
                RANKS_CHECK(fabs((double)distribution[i] - alone[i]) <= 1e-5);
            RANKS_TRY(distributed_step(&s, &l, 1, &loss)); /* training can continue */
            RANKS_TRY(logits(s.store, comm, &l, again, COUNT));
            RANKS_CHECK(memcmp(distribution, again, sizeof distribution) != 0);
            if (zero == 3) { /* without its mark a program cannot read sharded parameters */
                RANKS_CHECK(logits(s.store, NULL, &l, again, COUNT) == LS_EINVAL);
                RANKS_CHECK(strstr(ls_errmsg(), "is sharded or lives on another rank"));
            }
            l.data.zero = zero ^ 1;
            RANKS_CHECK(logits(s.store, comm, &l, again, COUNT) == LS_EINVAL);
            RANKS_CHECK(strstr(ls_errmsg(), "another program of this store has zero"));
            distributed_close(&one);
            distributed_close(&s);
        }
}

static void test_other_programs(void **state)
{
    (void)state;
    forked_run(3, check_other_programs, NULL);
}

/* ---- the last micro-batch ---- */

/* An update of gradients that have not been reduced is refused, whatever the layout does in between. */
static void check_last(ls_comm *comm, void *ctx)
{
    (void)ctx;
    threads_set(1);
    for (int overlap = 0; overlap < 2; overlap++) {
        struct layout l = parallel_pass_layout_of(NET_GPT2, 1);
        struct training s;
        double loss;

        l.data.overlap = overlap;
        RANKS_TRY(distributed_open(&l, comm, false, &s));
        RANKS_TRY(distributed_step(&s, &l, 0, &loss));
        RANKS_TRY(ls_program_run(s.program, LS_FORWARD | LS_BACKWARD));
        RANKS_CHECK(ls_program_run(s.program, LS_OPTIMIZER_STEP) == LS_EINVAL);
        RANKS_CHECK(strstr(ls_errmsg(), "without LS_LAST"));
        RANKS_TRY(distributed_step(&s, &l, 1, &loss));
        distributed_close(&s);
    }
}

static void last_micro_batch_reduces(void **state)
{
    (void)state;
    forked_run(2, check_last, NULL);
}

/* ---- buffers ---- */

/* Without sync_batch_norm each rank normalizes by its own samples; the running statistics are rank 0's after each step. */
static void check_buffers(ls_comm *comm, void *ctx)
{
    (void)ctx;
    threads_set(1);
    for (int zero = 0; zero < 4; zero++) {
        struct layout l = parallel_pass_layout_of(NET_IMAGE, zero);
        float mean[2][4], first[4];
        double loss;

        for (int sync = 0; sync < 2; sync++) {
            struct training s;

            l.data.sync_batch_norm = sync;
            RANKS_TRY(distributed_open(&l, comm, false, &s));
            RANKS_TRY(distributed_step(&s, &l, 0, &loss));
            int i = ls_store_find(s.store, "bn1.running_mean");
            RANKS_CHECK(i >= 0);
            RANKS_TRY(ls_store_read(s.store, (size_t)i, "parameter", mean[sync], LS_F32, 4));
            memcpy(first, mean[sync], sizeof first);
            RANKS_TRY(ls_broadcast(comm, first, 4, LS_F32, 0, NULL));
            RANKS_CHECK(memcmp(first, mean[sync], sizeof first) == 0);
            distributed_close(&s);
        }
        RANKS_CHECK(memcmp(mean[0], mean[1], sizeof first) != 0);
    }
}

static void test_buffers(void **state)
{
    (void)state;
    forked_run(2, check_buffers, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_injected_faults),
        cmocka_unit_test(test_other_programs),
        cmocka_unit_test(test_buffers),
        cmocka_unit_test(last_micro_batch_reduces),
        cmocka_unit_test(pass_fails_cleanly_without_memory),
        cmocka_unit_test(impossible_layouts_are_refused),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_depth),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
