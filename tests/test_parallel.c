/* test_parallel.c - data parallelism in all layouts compared with one rank: losses, norms, every gradient, every weight;
 * parallel.method=async, whose gradients the caller exchanges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/base.h"
#include "base/threads.h"
#include "helper_forked.h"
#include "helper_distributed.h"

/* Small buckets, so that there are several. */
static ls_data_parallel_options small(int zero)
{
    ls_data_parallel_options o = LS_DATA_PARALLEL_DEFAULTS;

    o.zero = zero;
    o.bucket_bytes = 9000;
    o.first_bucket_bytes = 3000;
    o.offload_path = "/tmp";
    return o;
}

enum { OPTIMIZERS = 5, MOST = 200 };

/* Results of one rank by net, optimizer and type (f32, bf16): computed once, shared with all processes that are forked later. */
static struct outcome *reference;

static struct outcome *reference_of(const struct layout *l)
{
    return &reference[((int)l->net * OPTIMIZERS + (int)l->optimizer) * 2 + (l->type == LS_BF16)];
}

static void make_references(ls_comm *comm, void *ctx)
{
    (void)comm;
    (void)ctx;
    threads_set(1);
    for (int net = 0; net < NETS; net++)
        for (int o = 0; o < OPTIMIZERS; o++)
            for (int half = 0; half < 2; half++) {
                struct layout l = { .net = (enum net)net, .optimizer = (ls_optimizer_kind)o, .type = half ? LS_BF16 : LS_F32 };

                RANKS_TRY(distributed_train(&l, NULL, reference_of(&l)));
            }
}

static int parallel_set_up(void **state)
{
    size_t bytes = sizeof *reference * NETS * OPTIMIZERS * 2;

    (void)state;
    reference = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(reference != MAP_FAILED);
    forked_run(1, make_references, NULL);
    return 0;
}

/* ---- one layout ---- */

struct cases { struct layout at[MOST]; int n; double rounding; };

static void parallel_test_cases_add(struct cases *c, struct layout l)
{
    assert_true(c->n < MOST);
    c->at[c->n++] = l;
}

static void layout_check_case(ls_comm *comm, const struct layout *l, double rounding)
{
    static struct outcome got;
    char name[DIST_NAME];

    if (distributed_train(l, comm, &got) < 0) {
        fprintf(stderr, "%s: %s\n", distributed_name(l, ls_comm_size(comm), name), ls_errmsg());
        _Exit(1);
    }
    const char *wrong = distributed_differs(l, reference_of(l), &got, rounding);
    if (wrong) {
        fprintf(stderr, "%s: %s\n", distributed_name(l, ls_comm_size(comm), name), wrong);
        _Exit(1);
    }
}

static void layout_check_cases(ls_comm *comm, void *ctx)
{
    const struct cases *c = ctx;

    threads_set(1);
    for (int i = 0; i < c->n; i++)
        layout_check_case(comm, &c->at[i], c->rounding);
}

static void run_cases(const struct cases *c, int least, int most)
{
    for (int n = least; n <= most; n++)
        forked_run(n, layout_check_cases, (void *)c);
}

/* True if the result of a micro-batch depends on which samples it has. */
static bool is_whole(enum net net) { return net == NET_IMAGE || net == NET_EVEN; }

/* ---- the tables ---- */

static void test_every_model(void **state)
{
    static struct cases c = { .rounding = 1e-5 };

    (void)state;
    for (int net = 0; net < NETS; net++)
        for (int zero = 0; zero < 4; zero++)
            for (int k = 1; k <= (is_whole((enum net)net) ? 1 : 2); k++)
                parallel_test_cases_add(
                    &c, (struct layout){ .net = (enum net)net, .optimizer = LS_ADAMW, .accumulate = k, .data = small(zero) });
    run_cases(&c, 1, 4);
}

static void test_every_optimizer(void **state)
{
    static struct cases c = { .rounding = 1e-5 };

    (void)state;
    for (int o = 0; o < OPTIMIZERS; o++)
        for (int zero = 0; zero < 4; zero++)
            parallel_test_cases_add(&c, (struct layout){ .net = zero & 1 ? NET_LLAMA_TIED : NET_GPT2, .optimizer = (ls_optimizer_kind)o,
                                     .data = small(zero) });
    run_cases(&c, 2, 3);
}

static void test_recomputation(void **state)
{
    static struct cases c = { .rounding = 1e-5 };

    (void)state;
    for (int mode = LS_RECOMPUTE_SELECTIVE; mode <= LS_RECOMPUTE_EVERY; mode++)
        for (int zero = 0; zero < 4; zero += 3)
            for (int keep = 0; keep <= zero / 3; keep++) {
                struct layout l = { .net = NET_GPT2, .optimizer = LS_ADAMW, .recompute = (ls_recompute)mode, .data = small(zero) };

                l.data.reshard_after_forward = !keep;
                parallel_test_cases_add(&c, l);
            }
    run_cases(&c, 2, 3);
}

/* reshard_after_forward, unsharded_accumulation, overlap, offload */
static void test_switches(void **state)
{
    static struct cases c = { .rounding = 1e-5 };

    (void)state;
    for (int zero = 0; zero < 4; zero++) {
        struct layout l = { .net = NET_LLAMA_TIED, .data = small(zero) };

        for (int offload = LS_OFFLOAD_CPU; offload <= LS_OFFLOAD_FILE; offload++)
            for (int o = LS_ADAMW; o <= LS_LAMB; o++) {
                l.data.offload = (ls_offload)offload;
                l.optimizer = (ls_optimizer_kind)o;
                parallel_test_cases_add(&c, l);
            }
        l = (struct layout){ .net = NET_GPT2, .optimizer = LS_ADAMW, .accumulate = 2, .data = small(zero) };
        for (int whole = 0; whole <= (zero >= 2); whole++)
            for (int overlap = 0; overlap < 2; overlap++) {
                l.data.unsharded_accumulation = whole;
                l.data.overlap = overlap;
                parallel_test_cases_add(&c, l);
            }
    }
    for (int net = 0; net < NETS; net++) {
        struct layout l = { .net = (enum net)net, .optimizer = LS_ADAMW, .accumulate = is_whole((enum net)net) ? 1 : 2, .data = small(3) };

        l.data.reshard_after_forward = 0;
        parallel_test_cases_add(&c, l);
    }
    run_cases(&c, 1, 3);
}

/* Offloaded parameters and gradients, with and without the state, with and without prefetch. */
static void test_offloaded_parameters(void **state)
{
    static struct cases c = { .rounding = 1e-5 };

    (void)state;
    for (int net = 0; net < NETS; net++)
        for (int where = LS_OFFLOAD_CPU; where <= LS_OFFLOAD_FILE; where++) {
            struct layout l = { .net = (enum net)net, .optimizer = net & 1 ? LS_LAMB : LS_ADAMW, .data = small(3) };

            l.accumulate = is_whole((enum net)net) ? 1 : 2;
            l.data.offload_parameters = (ls_offload)where;
            l.data.offload = (ls_offload)((where + net) % 3);
            l.data.prefetch = net % 3;
            l.data.fsdp_unit = (net + where) % 3;
            l.data.reshard_after_forward = net != NET_LLAMA;
            parallel_test_cases_add(&c, l);
            l.data.overlap = 0;
            l.recompute = LS_RECOMPUTE_FULL;
            parallel_test_cases_add(&c, l);
        }
    run_cases(&c, 1, 3);
}

/* Gradients become final after the backward, in a segment of their own; with fsdp_unit 0 the backward writes a part of every unit. */
static void test_split_backward(void **state)
{
    static struct cases c = { .rounding = 1e-5 };

    (void)state;
    for (int net = 0; net < NETS; net++)
        for (int zero = 0; zero < 4; zero++)
            for (int whole = 0; whole <= (zero >= 2); whole++)
                for (int unit = 0; unit <= (zero == 3 ? 2 : 0); unit++) {
                    struct layout l = { .net = (enum net)net, .optimizer = LS_ADAMW, .accumulate = is_whole((enum net)net) ? 1 : 2,
                                        .split = true, .data = small(zero) };

                    l.data.unsharded_accumulation = whole;
                    l.data.reshard_after_forward = !(net & 1);
                    l.data.fsdp_unit = unit;
                    parallel_test_cases_add(&c, l);
                    l.data.offload_parameters = zero == 3 ? LS_OFFLOAD_FILE : LS_OFFLOAD_NONE;
                    if (zero == 3) parallel_test_cases_add(&c, l);
                }
    run_cases(&c, 3, 3);
}

static void test_replicas(void **state)
{
    static struct cases c = { .rounding = 1e-5 };

    (void)state;
    for (int zero = 1; zero < 4; zero++)
        for (int k = 1; k <= 2; k++)
            for (int whole = 0; whole <= (zero >= 2); whole++)
                for (int o = LS_ADAMW; o <= LS_LAMB; o++) {
                    struct layout l = { .net = k == 1 ? NET_GPT2 : NET_LLAMA, .optimizer = (ls_optimizer_kind)o, .accumulate = k,
                                        .data = small(zero) };

                    l.data.replicate = 2;
                    l.data.unsharded_accumulation = whole;
                    parallel_test_cases_add(&c, l);
                    l.data.offload_parameters = zero == 3 ? LS_OFFLOAD_CPU : LS_OFFLOAD_NONE;
                    if (zero == 3) parallel_test_cases_add(&c, l);
                }
    run_cases(&c, 4, 4);
    run_cases(&c, 6, 6);
}

/* Every parameter in a separate bucket: most ranks have no elements of the smallest ones. */
static void test_empty_shards(void **state)
{
    static struct cases c = { .rounding = 1e-5 };

    (void)state;
    for (int net = NET_MLP; net <= NET_IMAGE; net++)
        for (int zero = 0; zero < 4; zero++)
            for (int o = LS_ADAMW; o <= LS_LARS; o++) {
                struct layout l = { .net = (enum net)net, .optimizer = (ls_optimizer_kind)o, .data = small(zero) };

                l.data.bucket_bytes = l.data.first_bucket_bytes = 1;
                l.data.offload = o == LS_LAMB ? LS_OFFLOAD_FILE : LS_OFFLOAD_NONE;
                parallel_test_cases_add(&c, l);
            }
    run_cases(&c, 6, 6);
    run_cases(&c, 8, 8);
}

/* Gradients rounded to bf16 for the reduction: 8 bits. */
static void test_bf16_reduction(void **state)
{
    static struct cases c = { .rounding = 2e-2 };

    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (int k = 1; k <= 2; k++)
            for (int whole = 0; whole <= (zero >= 2); whole++)
                for (int replicate = 1; replicate <= (zero ? 2 : 1); replicate++) {
                    struct layout l = { .net = NET_GPT2, .optimizer = LS_ADAMW, .accumulate = k, .data = small(zero) };

                    l.data.reduce = LS_BF16;
                    l.data.replicate = replicate;
                    l.data.unsharded_accumulation = whole;
                    parallel_test_cases_add(&c, l);
                    l.data.offload_parameters = zero == 3 ? LS_OFFLOAD_FILE : LS_OFFLOAD_NONE;
                    if (zero == 3) parallel_test_cases_add(&c, l);
                }
    run_cases(&c, 4, 4);
}

/* bf16 weights with master copies: a sample's activations are the same wherever it is computed. */
static void test_bf16_weights(void **state)
{
    static struct cases c = { .rounding = 2e-2 };

    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (int offload = 0; offload < 2; offload++) {
            struct layout l = { .net = NET_LLAMA, .optimizer = zero & 1 ? LS_LAMB : LS_ADAMW, .type = LS_BF16, .data = small(zero) };

            l.data.offload = (ls_offload)offload;
            parallel_test_cases_add(&c, l);
            l.data.offload_parameters = zero == 3 ? LS_OFFLOAD_FILE : LS_OFFLOAD_NONE;
            if (zero == 3) parallel_test_cases_add(&c, l);
        }
    run_cases(&c, 2, 3);
}

/* Units of one layer, of two (one of three layers is left over) and of everything, gathered 0 to 3 units ahead. */
static void test_units(void **state)
{
    static struct cases c = { .rounding = 2e-5 };

    (void)state;
    for (int unit = 0; unit <= 2; unit++)
        for (int ahead = 0; ahead <= 3; ahead++) {
            struct layout l = { .net = ahead & 1 ? NET_GPT2 : NET_LLAMA_TIED, .optimizer = LS_ADAMW, .accumulate = 1 + (unit & 1),
                                .data = small(3) };

            l.data.fsdp_unit = unit;
            l.data.prefetch = ahead;
            l.data.reshard_after_forward = ahead != 2;
            parallel_test_cases_add(&c, l);
        }
    run_cases(&c, 2, 3);
}

/* ---- parallel.method=async ---- */

/* The programs do not communicate: each rank computes the gradient of its own samples, and rank 0 updates with the gradient that the caller
 * gives it. If that is the sum of all gradients, the step is that of one rank. */
static void check_async(ls_comm *comm, void *ctx)
{
    static struct outcome got;
    const struct outcome *one;
    const char *wrong = NULL;
    int rank = ls_comm_rank(comm);

    (void)ctx;
    threads_set(1);
    for (int k = 1; k <= 2; k++)
        for (int o = 0; o < 2 && !wrong; o++) {
            struct layout l = { .net = NET_MLP, .optimizer = o ? LS_ADAMW : LS_SGD, .accumulate = k, .data = small(0) };

            l.data.method = LS_METHOD_ASYNC;
            one = reference_of(&l);
            RANKS_TRY(distributed_train(&l, comm, &got));
            if (rank > 0) memcpy(got.norm, one->norm, sizeof got.norm);  /* workers have no norm: they do not update */
            wrong = distributed_differs(&l, one, &got, 1e-5);
        }
    if (wrong) fprintf(stderr, "async, rank %d: %s\n", rank, wrong);
    RANKS_CHECK(!wrong);
}

static void async_of_an_mlp_computes_its_gradients(void **state)
{
    (void)state;
    for (int n = 2; n <= 3; n++)
        forked_run(n, check_async, NULL);
}

/* The compiler refuses exactly the models whose statistics are those of all ranks. */
static void check_async_refused(ls_comm *comm, void *ctx)
{
    static const struct { enum net net; const char *with; } nets[] = {
        { NET_MLP, NULL }, { NET_GPT2, NULL }, { NET_IMAGE, "with batch norms, whose statistics are those of all ranks" },
        { NET_EVEN, "with experts, whose statistics are those of all ranks" }, { NET_BIAS, "with experts" },
    };

    (void)ctx;
    for (size_t k = 0; k < COUNT_OF(nets); k++) {
        struct layout l = { .net = nets[k].net, .optimizer = LS_ADAMW, .data = small(0) };
        struct training s;

        l.data.method = LS_METHOD_ASYNC;
        ls_status st = distributed_open(&l, comm, true, &s);
        RANKS_CHECK(st == (nets[k].with ? LS_EINVAL : LS_OK));
        if (nets[k].with)
            RANKS_CHECK(strstr(ls_errmsg(), nets[k].with));
        else
            distributed_close(&s);
    }
}

static void async_needs_no_statistics_of_all_ranks(void **state)
{
    (void)state;
    forked_run(2, check_async_refused, NULL);
}

/* ---- the same again ---- */

static void check_repeat(ls_comm *comm, void *ctx)
{
    static struct outcome a, b;

    (void)ctx;
    threads_set(1);
    for (int zero = 0; zero < 4; zero++) {
        struct layout l = { .net = NET_GPT2, .optimizer = LS_LAMB, .type = LS_F32, .accumulate = 2,
                            .data = small(zero) };

        l.data.reduce = zero & 1 ? LS_BF16 : LS_F32;
        RANKS_TRY(distributed_train(&l, comm, &a));
        RANKS_TRY(distributed_train(&l, comm, &b));
        RANKS_CHECK(memcmp(&a, &b, sizeof a) == 0);
    }
}

static void test_repeats_bit_for_bit(void **state)
{
    (void)state;
    forked_run(3, check_repeat, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_model),       cmocka_unit_test(test_every_optimizer),
        cmocka_unit_test(test_recomputation),   cmocka_unit_test(test_switches),
        cmocka_unit_test(test_offloaded_parameters),
        cmocka_unit_test(test_split_backward),
        cmocka_unit_test(test_replicas),        cmocka_unit_test(test_bf16_reduction),
        cmocka_unit_test(test_bf16_weights),    cmocka_unit_test(test_repeats_bit_for_bit),
        cmocka_unit_test(test_empty_shards),    cmocka_unit_test(test_units),
        cmocka_unit_test(async_of_an_mlp_computes_its_gradients),
        cmocka_unit_test(async_needs_no_statistics_of_all_ranks),
    };

    return cmocka_run_group_tests(tests, parallel_set_up, NULL);
}
