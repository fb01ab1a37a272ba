/* test_plan_public.c - plan.h and cluster.h: what they refuse, that they write results on success only, and that a plan neither changes
 * the process nor depends on plans of other threads. test_plan_public.sh compares the figures with the command's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/mem.h"
#include "base/threads.h"
#include "helper_check.h"
#include "kernels/kernel.h"
#include "lockstep/plan.h"

static size_t bytes_held(void)
{
    struct mem_stats stats;

    mem_read(&stats);
    return stats.now[MEM_OTHER];
}

static ls_cluster *cluster_of(const char *name)
{
    ls_cluster *c = NULL;

    OK(ls_cluster_read(name, &c));
    return c;
}

/* A cluster of the keys that a machine file must have. */
static ls_cluster *small_cluster(void)
{
    static const char text[] = "machine:\n  name: m\nprocessor:\n  name: p\n  fp32: 1e12\n  memory: 1 GiB\n  bandwidth: 1e11\n"
                               "efficiency:\n  launch: 0\n  matmul: 1\n  host: 0\n  attention: 1\n  memory_bound: 1\n  link_share: 1\n"
                               "node:\n  processors: 2\n  bandwidth: 1e9\n  latency: 0\nnetwork:\n  bandwidth: 1e9\n  latency: 0\n";
    char path[] = "/tmp/lockstep_cluster_XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    ls_cluster *c = cluster_of(path);
    unlink(path);
    return c;
}

static ls_model preset_model(const char *preset)
{
    ls_model m;

    OK(ls_model_preset(preset, &m));
    return m;
}

static ls_layout layout_of(int dp, int zero)
{
    ls_layout l = ls_layout_default();

    l.dp = dp, l.zero = zero, l.seq_len = 64, l.micro_batch = 2;
    return l;
}

/* ---- clusters ---- */

static void test_cluster_is_read_or_refused(void **state)
{
    ls_cluster *none = NULL, *c = cluster_of("h100-dgx");
    ls_cluster_facts f = ls_cluster_facts_of(c);
    size_t held = bytes_held();

    (void)state;
    assert_int_equal(f.ranks_per_node, 8);
    assert_true(f.flops[LS_BF16] == 989.4e12 && f.flops[LS_F64] == 0);
    assert_true(f.node_bandwidth == 450e9 && f.network_bandwidth == 50e9 && f.bandwidth == 3.35e12);
    assert_true(fabs(f.memory / ((79.1 - 0.55) * (1 << 30)) - 1) < 1e-9 && f.host_memory == 2048.0 * (1 << 30));
    assert_int_equal(ls_cluster_read("h100-dgy", &none), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "h100-dgx"));
    assert_int_equal(ls_cluster_read("", &none), LS_EINVAL);
    assert_int_equal(ls_cluster_read(NULL, &none), LS_EINVAL);
    assert_true(ls_cluster_read("./no_such_file.yaml", &none) < 0);
    assert_null(none);
    assert_int_equal(bytes_held(), held); /* what failed kept nothing */
    assert_null(ls_cluster_builtin(-1));
    ls_cluster_release(&c);
    assert_null(c);
    ls_cluster_release(&c);
    ls_cluster_release(NULL);
}

/* ---- what is refused ---- */

/* Results are written on success only. */
static void check_untouched(const void *out, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) assert_int_equal(((const unsigned char *)out)[i], 0xA5);
}

static void test_plan_refuses(void **state)
{
    size_t held = bytes_held();
    ls_cluster *c = cluster_of("h100-dgx");
    ls_model m = preset_model("llama-tiny"), bad = m;
    ls_layout l = layout_of(2, 1), x;
    ls_plan_options o = { .global_batch = 5 };
    ls_plan out;

    (void)state;
    memset(&out, 0xA5, sizeof out);
    REFUSED(LS_EINVAL, "model", ls_plan_layout(NULL, &l, c, NULL, &out));
    REFUSED(LS_EINVAL, "layout", ls_plan_layout(&m, NULL, c, NULL, &out));
    REFUSED(LS_EINVAL, "global_batch=5 with micro_batch=2 x micro_batches=1 x 2 workers: use 4", ls_plan_layout(&m, &l, c, &o, &out));
    o.global_batch = 1;
    REFUSED(LS_EINVAL, "global_batch=1", ls_plan_layout(&m, &l, c, &o, &out));
    bad.heads = 7;
    REFUSED(LS_EINVAL, "heads 7 is not divisible by kv_heads 2", ls_plan_layout(&bad, &l, c, NULL, &out));
    x = l, x.tp = 999;
    REFUSED(LS_EINVAL, "parallel.tp=999", ls_plan_layout(&m, &x, c, NULL, &out));
    x = l, x.seq_len = 0;
    REFUSED(LS_EINVAL, "data.seq_len", ls_plan_layout(&m, &x, c, NULL, &out));
    x = l, x.zero = 0, x.method = LS_METHOD_SERVER;
    REFUSED(LS_EINVAL, "parallel.method=server", ls_plan_layout(&m, &x, c, NULL, &out));
    ls_cluster_release(&c);
    c = small_cluster();
    x = l, x.offload = LS_OFFLOAD_CPU;
    REFUSED(LS_EINVAL, "offload.bandwidth", ls_plan_layout(&m, &x, c, NULL, &out));
    check_untouched(&out, sizeof out);
    ls_cluster_release(&c);
    assert_int_equal(bytes_held(), held);
}

static void test_search_refuses(void **state)
{
    ls_cluster *c = cluster_of("h100-dgx");
    ls_model m = preset_model("llama-tiny");
    ls_plan_space space = { .ranks = 2, .base = layout_of(1, 0) }, x = space;
    ls_plan_options o = { .global_batch = 4 }, none = { 0 }, little = { .global_batch = 4, .memory_limit = 1000 };
    ls_plan_fastest out;
    size_t held = bytes_held();

    (void)state;
    memset(&out, 0xA5, sizeof out);
    REFUSED(LS_EINVAL, "model", ls_plan_search(NULL, &space, c, &o, &out));
    REFUSED(LS_EINVAL, "cluster", ls_plan_search(&m, &space, NULL, &o, &out));
    REFUSED(LS_EINVAL, "space", ls_plan_search(&m, NULL, c, &o, &out));
    REFUSED(LS_EINVAL, "global_batch", ls_plan_search(&m, &space, c, &none, &out));
    REFUSED(LS_EINVAL, "global_batch", ls_plan_search(&m, &space, c, NULL, &out));
    x.ranks = 0;
    REFUSED(LS_EINVAL, "0 ranks", ls_plan_search(&m, &x, c, &o, &out));
    x.ranks = LS_MESH_RANKS_MOST + 1;
    REFUSED(LS_EINVAL, "131073 ranks", ls_plan_search(&m, &x, c, &o, &out));
    x = space, x.fixed = LS_PLAN_FIX_ALL + 1;
    REFUSED(LS_EINVAL, "fixed=0x4000", ls_plan_search(&m, &x, c, &o, &out));
    x = space, x.base.seq_len = 0;
    REFUSED(LS_EINVAL, "data.seq_len", ls_plan_search(&m, &x, c, &o, &out));
    x = space, x.base.fsdp_unit = 2;
    REFUSED(LS_EINVAL, "parallel.fsdp_unit=layers:2", ls_plan_search(&m, &x, c, &o, &out));
    x = space, x.base.fsdp_unit = 0;
    REFUSED(LS_EINVAL, "parallel.fsdp_unit=model", ls_plan_search(&m, &x, c, &o, &out));
    x = space, x.base.prefetch = 2;
    REFUSED(LS_EINVAL, "parallel.prefetch=2", ls_plan_search(&m, &x, c, &o, &out));
    x = space, x.base.in_backward = 1;
    REFUSED(LS_EINVAL, "optim.in_backward", ls_plan_search(&m, &x, c, &o, &out));
    x = space, x.base.stages = "1,1";
    REFUSED(LS_EINVAL, "parallel.stages", ls_plan_search(&m, &x, c, &o, &out));
    x = space, x.base.schedule = "file:x";
    REFUSED(LS_EINVAL, "parallel.schedule=file:x", ls_plan_search(&m, &x, c, &o, &out));
    x = space, x.base.schedule = "no-such", x.base.pp = 2, x.fixed = LS_PLAN_FIX_SCHEDULE | LS_PLAN_FIX_PP;
    REFUSED(LS_EINVAL, "no layout of 2 ranks is possible", ls_plan_search(&m, &x, c, &o, &out));
    x = space, x.base.zero = 7, x.base.dp = 2, x.fixed = LS_PLAN_FIX_ZERO | LS_PLAN_FIX_DP;
    REFUSED(LS_EINVAL, "no layout of 2 ranks is possible", ls_plan_search(&m, &x, c, &o, &out));
    REFUSED(LS_ENOMEM, "the least is", ls_plan_search(&m, &space, c, &little, &out));
    check_untouched(&out, sizeof out);
    assert_int_equal(bytes_held(), held);
    ls_cluster_release(&c);
}

/* What is not fixed does not change what is found: here on a cluster whose file describes no host to offload to. */
static void test_search_ignores_what_is_not_fixed(void **state)
{
    ls_model m = preset_model("llama-tiny");
    ls_cluster *c = small_cluster();
    ls_plan_space space = { .ranks = 2, .base = layout_of(1, 0) };
    ls_plan_options o = { .global_batch = 8 };
    ls_plan_fastest plain, other;

    (void)state;
    OK(ls_plan_search(&m, &space, c, &o, &plain));
    space.base.offload = space.base.offload_parameters = LS_OFFLOAD_CPU;
    space.base.tp = 64, space.base.zero = 3, space.base.micro_batch = 7;
    OK(ls_plan_search(&m, &space, c, &o, &other));
    assert_int_equal(other.count, plain.count);
    assert_int_equal(other.priced, plain.priced);
    for (int i = 0; i < plain.count; i++) {
        assert_true(other.found[i].seconds == plain.found[i].seconds);
        assert_memory_equal(&other.found[i].layout, &plain.found[i].layout, offsetof(ls_layout, stages));
    }
    space.fixed = LS_PLAN_FIX_OFFLOAD;
    space.base = layout_of(1, 0);
    space.base.offload = LS_OFFLOAD_CPU;
    REFUSED(LS_EINVAL, "offload", ls_plan_search(&m, &space, c, &o, &other));
    ls_cluster_release(&c);
}

/* ---- plans and the process ---- */

/* A plan, and what it is of. */
struct planned {
    const char *preset, *cluster; /* cluster NULL: this computer */
    int dp, zero;
    ls_plan plan;
};
static const struct planned planned[] = {
    { .preset = "llama-tiny", .cluster = "h100-dgx", .dp = 2, .zero = 3 },
    { .preset = "gpt2-tiny", .dp = 2, .zero = 1 },
    { .preset = "llama-tiny", .dp = 3 },
    { .preset = "gpt2-tiny", .cluster = "a100-80-selene", .dp = 4, .zero = 2 },
};

static ls_status plan_of(struct planned *x)
{
    ls_model m;
    ls_layout l = layout_of(x->dp, x->zero);
    ls_cluster *c = NULL;
    ls_status st = ls_model_preset(x->preset, &m);

    memset(&x->plan, 0, sizeof x->plan); /* it is compared as bytes */
    if (st == LS_OK && x->cluster) st = ls_cluster_read(x->cluster, &c);
    if (st == LS_OK) st = ls_plan_layout(&m, &l, c, NULL, &x->plan);
    ls_cluster_release(&c);
    return st;
}

static void check_same_plan(const ls_plan *a, const ls_plan *b)
{
    assert_memory_equal(&a->seconds, &b->seconds, sizeof a->seconds);
    assert_int_equal(a->bytes.total, b->bytes.total);
    assert_int_equal(a->bytes.activations, b->bytes.activations);
    assert_true(a->mfu == b->mfu && a->executed_flops == b->executed_flops);
    assert_memory_equal(a->sent, b->sent, sizeof a->sent);
}

/* Scratch of kernels grows with the team, so a plan for this process shows its threads; one for a cluster does not. */
static void test_plan_leaves_the_process(void **state)
{
    ls_plan before[COUNT_OF(planned)];
    enum isa isa = isa_best();
    int threads = threads_count();
    size_t held = bytes_held();

    (void)state;
    threads_set(3);
    for (size_t i = 0; i < COUNT_OF(planned); i++) {
        struct planned x = planned[i];

        OK(plan_of(&x));
        before[i] = x.plan;
        assert_int_equal(threads_count(), 3);
        assert_int_equal(isa_best(), isa);
    }
    threads_set(1);
    for (size_t i = 0; i < COUNT_OF(planned); i++) {
        struct planned x = planned[i];

        OK(plan_of(&x));
        if (x.cluster)
            check_same_plan(&x.plan, &before[i]);
        else if (isa > ISA_ANY)
            assert_true(x.plan.bytes.activations < before[i].bytes.activations);
        assert_true(x.cluster ? x.plan.seconds.step > 0 && x.plan.mfu > 0 : x.plan.seconds.step == 0 && x.plan.tokens_per_second == 0);
        assert_true(x.plan.bytes.fits);
    }
    threads_set(threads);
    assert_int_equal(bytes_held(), held);
}

/* A budget is met by as many recomputed blocks as the processes of the plan need, not those of the plan before: one that a process with
 * three threads, whose kernels have more scratch, just does not meet is enough for a cluster's rank. */
static void test_budgets_of_other_processes(void **state)
{
    ls_model m = preset_model("llama-tiny");
    ls_layout l = layout_of(2, 0);
    ls_cluster *c = cluster_of("h100-dgx");
    ls_plan here, there, plain;
    int threads = threads_count();

    (void)state;
    threads_set(3);
    OK(ls_plan_layout(&m, &l, c, NULL, &plain));
    OK(ls_plan_layout(&m, &l, NULL, NULL, &here));
    l.recompute = LS_RECOMPUTE_BUDGET;
    l.budget = here.bytes.activations - 1;
    assert_true(l.budget > plain.bytes.activations);
    OK(ls_plan_layout(&m, &l, NULL, NULL, &here));
    assert_true(here.bytes.activations <= l.budget);
    OK(ls_plan_layout(&m, &l, c, NULL, &there));
    check_same_plan(&there, &plain);
    threads_set(threads);
    ls_cluster_release(&c);
}

static void *plan_often(void *arg)
{
    struct planned *x = arg;

    if (plan_of(x) < 0) return x;
    ls_plan first = x->plan;
    for (int i = 0; i < 4; i++)
        if (plan_of(x) < 0 || memcmp(&first, &x->plan, sizeof first) != 0) return x;
    return NULL;
}

static void test_plans_of_several_threads(void **state)
{
    struct planned alone[COUNT_OF(planned)], together[COUNT_OF(planned)];
    pthread_t thread[COUNT_OF(planned)];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(planned); i++) {
        alone[i] = together[i] = planned[i];
        OK(plan_of(&alone[i]));
    }
    for (size_t i = 0; i < COUNT_OF(planned); i++) assert_int_equal(pthread_create(&thread[i], NULL, plan_often, &together[i]), 0);
    for (size_t i = 0; i < COUNT_OF(planned); i++) {
        void *failed;

        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
    for (size_t i = 0; i < COUNT_OF(planned); i++) check_same_plan(&together[i].plan, &alone[i].plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cluster_is_read_or_refused), cmocka_unit_test(test_plan_refuses),
        cmocka_unit_test(test_search_refuses),             cmocka_unit_test(test_search_ignores_what_is_not_fixed),
        cmocka_unit_test(test_plan_leaves_the_process),
        cmocka_unit_test(test_budgets_of_other_processes), cmocka_unit_test(test_plans_of_several_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
