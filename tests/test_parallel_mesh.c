/* test_parallel_mesh.c - data parallelism with the other axes of a mesh: zero 0 to 3 with tp, sp, cp and pipelines, compared with one
 * rank; injected faults that exist only on a mesh. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/threads.h"
#include "helper_forked.h"
#include "helper_distributed.h"
#include "parallel/zero/zero.h"

enum { OPTIMIZERS = 5, MOST = 64 };

/* Results of one rank by net and optimizer: computed once, shared with all processes that are forked later. */
static struct outcome *reference;

static struct outcome *reference_of(const struct layout *l) { return &reference[(int)l->net * OPTIMIZERS + (int)l->optimizer]; }

static void make_references(ls_comm *comm, void *ctx)
{
    (void)comm;
    (void)ctx;
    threads_set(1);
    for (int net = 0; net < NETS; net++)
        for (int o = 0; o < OPTIMIZERS; o++) {
            struct layout l = { .net = (enum net)net, .optimizer = (ls_optimizer_kind)o };

            RANKS_TRY(distributed_train(&l, NULL, reference_of(&l)));
        }
}

static int mesh_set_up(void **state)
{
    size_t bytes = sizeof *reference * NETS * OPTIMIZERS;

    (void)state;
    reference = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(reference != MAP_FAILED);
    forked_run(1, make_references, NULL);
    return 0;
}

/* ---- layouts ---- */

static struct layout parallel_mesh_test_layout(enum net net, ls_optimizer_kind optimizer, int zero, ls_mesh_shape mesh)
{
    struct layout l = { .net = net, .optimizer = optimizer, .data = LS_DATA_PARALLEL_DEFAULTS, .meshed = true, .mesh = mesh,
                        .partition = LS_PARTITION_DEFAULTS };

    l.data.zero = zero;
    l.data.bucket_bytes = 9000;
    l.data.first_bucket_bytes = 3000;
    return l;
}

struct cases { struct layout at[MOST]; int n; double rounding; /* 0: that of f32 */ };

static void parallel_mesh_test_cases_add(struct cases *c, struct layout l)
{
    assert_true(c->n < MOST);
    c->at[c->n++] = l;
}

static void layout_check_case(ls_comm *comm, const struct layout *l, double rounding)
{
    static struct outcome got, alone;
    char name[DIST_NAME];

    if (distributed_train(l, comm, &got) < 0)
        ranks_fail("%s: %s", distributed_name(l, ls_comm_size(comm), name), ls_errmsg());
    if (l->layers)
        RANKS_TRY(distributed_train(&(struct layout){ .net = l->net, .layers = l->layers, .optimizer = l->optimizer }, NULL, &alone));
    const char *wrong = distributed_differs(l, l->layers ? &alone : reference_of(l), &got, rounding ? rounding : 1e-5);
    if (wrong)
        ranks_fail("%s: %s", distributed_name(l, ls_comm_size(comm), name), wrong);
}

static void layout_check_cases(ls_comm *comm, void *ctx)
{
    const struct cases *c = ctx;

    threads_set(1);
    for (int i = 0; i < c->n; i++)
        layout_check_case(comm, &c->at[i], c->rounding);
}

static void run_cases(struct cases *c, int n)
{
    forked_run(n, layout_check_cases, c);
}

/* ---- tests ---- */

static void test_tp_alone(void **state)
{
    static struct cases c;

    (void)state;
    for (int net = NET_GPT2; net <= NET_LLAMA_TIED; net++)
        for (int sp = 0; sp < 2; sp++) {
            struct layout l = parallel_mesh_test_layout((enum net)net, sp ? LS_LAMB : LS_ADAMW, 0, (ls_mesh_shape){ 1, 1, 1, 1, 2, 1 });

            l.partition.sp = sp;
            parallel_mesh_test_cases_add(&c, l);
        }
    run_cases(&c, 2);
}

static void test_tp_and_dp(void **state)
{
    static struct cases c;

    (void)state;
    for (int net = NET_GPT2; net <= NET_LLAMA_TIED; net++)
        for (int zero = 0; zero < 4; zero++)
            for (int sp = 0; sp < 2; sp++) {
                struct layout l = parallel_mesh_test_layout((enum net)net, (ls_optimizer_kind)((zero + sp + net) % OPTIMIZERS), zero,
                                         (ls_mesh_shape){ 1, 2, 1, 1, 2, 1 });

                l.partition.sp = sp;
                l.accumulate = 1 + (zero & 1);
                parallel_mesh_test_cases_add(&c, l);
            }
    run_cases(&c, 4);
}

/* Stages that hold different parameters, of tied models the embedding twice. */
static void test_pipelines(void **state)
{
    static const char *const schedules[] = { "gpipe", "1f1b", "zb-h1" };
    static struct cases c;

    (void)state;
    for (int net = NET_GPT2; net <= NET_LLAMA_TIED; net++)
        for (int zero = 0; zero < 4; zero++)
            for (int k = 0; k < 3; k++) {
                struct layout l = parallel_mesh_test_layout((enum net)net, (ls_optimizer_kind)((zero + k + net) % OPTIMIZERS), zero,
                                         (ls_mesh_shape){ 2, 2, 1, 1, 1, 1 });

                l.schedule = schedules[k];
                l.accumulate = 4;
                l.data.unsharded_accumulation = k == 2 && net == NET_LLAMA;
                l.data.offload = k == 1 ? LS_OFFLOAD_CPU : LS_OFFLOAD_NONE;
                parallel_mesh_test_cases_add(&c, l);
            }
    run_cases(&c, 4);
}

/* Several chunks per rank, which share its optimizer; with zb-v the ends of a tied model are on one rank. */
static void test_chunks(void **state)
{
    static struct cases c;

    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (int v = 0; v < 2; v++) {
            struct layout l = parallel_mesh_test_layout(v ? NET_GPT2 : NET_LLAMA_TIED, zero & 1 ? LS_LAMB : LS_ADAMW, zero,
                                     (ls_mesh_shape){ 2, 2, 1, 1, 1, 1 });

            l.layers = 5;
            l.chunks = 2;
            l.schedule = v ? "zb-v" : "interleaved";
            l.accumulate = 4;
            parallel_mesh_test_cases_add(&c, l);
        }
    run_cases(&c, 4);
}

/* Weight gradients of a micro-batch are computed after other micro-batches have run; sharded ones are reduced when the unit is complete.
 * With one unit for all parameters, the gradient of the output projection waits for the others. */
static void test_zero_bubble(void **state)
{
    static struct cases c[2];

    (void)state;
    for (int zero = 1; zero < 4; zero++)
        for (int unit = 0; unit <= (zero == 3 ? 2 : 0); unit++)
            for (int v = 0; v < 2; v++)
                for (int net = NET_GPT2; net <= NET_LLAMA_TIED; net++)
                    for (int replicate = 1; replicate <= (net == NET_LLAMA ? 2 : 1); replicate++) {
                        struct layout l = parallel_mesh_test_layout((enum net)net, net == NET_GPT2 ? LS_LAMB : LS_ADAMW, zero,
                                                 (ls_mesh_shape){ 2, 2 * replicate, replicate, 1, 1, 1 });

                        l.layers = 5;
                        l.chunks = v ? 2 : 1;
                        l.schedule = v ? "zb-v" : "zb-h1";
                        l.accumulate = replicate == 2 ? 2 : 4;
                        l.data.fsdp_unit = unit;
                        l.data.overlap = net != NET_GPT2;
                        l.recompute = net == NET_LLAMA_TIED ? LS_RECOMPUTE_FULL : LS_RECOMPUTE_NONE;
                        parallel_mesh_test_cases_add(&c[replicate - 1], l);
                    }
    run_cases(&c[0], 4);
    run_cases(&c[1], 8);
}

/* The same with undivided backwards: gradients that both chunks of a rank add to are reduce-scattered as they are computed, or summed by
 * the optimizer's program. */
static void test_joint_gradient_sums(void **state)
{
    static const char list[] = "stages 2 chunks 2 micro 2 order v\n0: F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1\n"
                               "1: F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1\n";
    static char path[] = "/tmp/test_parallel_mesh.XXXXXX";
    static struct cases c[2];
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0 && write(fd, list, sizeof list - 1) == (ssize_t)sizeof list - 1);
    close(fd);
    for (int zero = 0; zero < 4; zero++)
        for (int replicate = 1; replicate <= (zero ? 2 : 1); replicate++) {
            struct layout l =
                parallel_mesh_test_layout(NET_LLAMA_TIED, LS_ADAMW, zero, (ls_mesh_shape){ 2, 2 * replicate, replicate, 1, 1, 1 });

            l.layers = 4;
            l.chunks = 2;
            l.schedule = path;
            l.accumulate = 2;
            parallel_mesh_test_cases_add(&c[replicate - 1], l);
        }
    run_cases(&c[0], 4);
    run_cases(&c[1], 8);
    unlink(path);
}

/* Shards of the sequence: their gradients add up with those of other samples, and a copy is sharded over them too. */
static void test_context(void **state)
{
    static struct cases c;

    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (int context = LS_CP_RING; context <= LS_CP_ALL_TO_ALL; context++)
            for (int replicate = 1; replicate <= (zero ? 2 : 1); replicate++) {
                struct layout l =
                    parallel_mesh_test_layout(zero & 1 ? NET_GPT2 : NET_LLAMA_TIED, (ls_optimizer_kind)((zero + context) % OPTIMIZERS),
                                              zero, (ls_mesh_shape){ 1, 2, replicate, 2, 1, 1 });

                l.partition.cp_method = (ls_cp_method)context;
                parallel_mesh_test_cases_add(&c, l);
            }
    run_cases(&c, 4);
}

/* Gradients rounded to bf16 between samples; what is summed over tp and the end stages stays f32. */
static void test_bf16_reduction(void **state)
{
    static struct cases c = { .rounding = 2e-2 };

    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (int pp = 1; pp <= 2; pp++) {
            struct layout l = parallel_mesh_test_layout(NET_LLAMA_TIED, LS_ADAMW, zero, (ls_mesh_shape){ pp, 2, 1, 1, 3 - pp, 1 });

            l.schedule = pp > 1 ? "zb-h1" : NULL;
            l.accumulate = 2;
            l.partition.sp = pp == 1;
            l.data.reduce = LS_BF16;
            l.data.unsharded_accumulation = pp > 1 && zero == 3;
            parallel_mesh_test_cases_add(&c, l);
        }
    run_cases(&c, 4);
}

/* ---- data parallelism alone ---- */

static char *text_of(const struct layout *l, int rank, int n)
{
    struct training s;
    ls_comm *comm;
    char *text;

    assert_int_equal(ls_comm_open("plan:", rank, n, &comm), LS_OK);
    if (distributed_open(l, comm, true, &s) < 0)
        fail_msg("%s", ls_errmsg());
    assert_int_equal(ls_program_text(s.program, &text), LS_OK);
    distributed_close(&s);
    ls_comm_close(&comm);
    return text;
}

/* A mesh of only dp gives the same program as a comm without a mesh, instruction by instruction. */
static void test_dp_alone(void **state)
{
    (void)state;
    for (int net = NET_GPT2; net <= NET_LLAMA_TIED; net++)
        for (int zero = 0; zero < 4; zero++)
            for (int replicate = 1; replicate <= (zero ? 2 : 1); replicate++) {
                struct layout l = parallel_mesh_test_layout((enum net)net, LS_LAMB, zero, (ls_mesh_shape){ 1, 4, replicate, 1, 1, 1 });
                char *mesh = text_of(&l, 3, 4);

                l.meshed = false;
                l.data.replicate = replicate;
                char *comm = text_of(&l, 3, 4);
                assert_string_equal(mesh, comm);
                ls_free(mesh);
                ls_free(comm);
            }
}

/* Experts over ep: their gradients add up over fewer ranks than the others'. */
static void test_experts(void **state)
{
    static const struct { ls_mesh_shape mesh; int n; } meshes[] = {
        { { 1, 2, 1, 1, 1, 1 }, 2 }, { { 1, 2, 1, 1, 1, 2 }, 2 }, { { 1, 4, 1, 1, 1, 2 }, 4 }, { { 1, 4, 2, 1, 1, 2 }, 4 },
        { { 1, 2, 1, 1, 2, 2 }, 4 },
        { { 1, 3, 1, 1, 1, 3 }, 3 }, { { 2, 2, 1, 1, 1, 2 }, 4 }, { { 1, 1, 1, 2, 1, 2 }, 2 }, { { 1, 2, 1, 2, 1, 2 }, 4 },
    };

    (void)state;
    for (size_t k = 0; k < sizeof meshes / sizeof meshes[0]; k++) {
        static struct cases c;

        c.n = 0;
        for (int net = NET_EVEN; net <= NET_BIAS; net++)
            for (int zero = meshes[k].mesh.replicate > 1; zero < 4; zero++) {
                struct layout l = parallel_mesh_test_layout((enum net)net, zero & 2 ? LS_ADAMW : LS_LAMB, zero, meshes[k].mesh);

                l.schedule = l.mesh.pp > 1 ? "1f1b" : NULL;
                l.accumulate = net == NET_EVEN ? 1 : 2;
                l.partition.sp = l.mesh.tp > 1 && zero & 1;
                parallel_mesh_test_cases_add(&c, l);
            }
        run_cases(&c, meshes[k].n);
    }
}

/* Eight ranks: everything at once, and uneven. */
static void test_all_axes(void **state)
{
    static const struct { ls_mesh_shape mesh; int n; } meshes[] = {
        { { 2, 2, 1, 1, 2, 1 }, 8 }, { { 2, 4, 2, 1, 1, 1 }, 8 }, { { 2, 1, 1, 2, 2, 1 }, 8 }, { { 1, 2, 2, 2, 2, 1 }, 8 },
        { { 1, 2, 1, 1, 3, 1 }, 6 }, { { 2, 3, 1, 1, 1, 1 }, 6 }, { { 1, 3, 1, 1, 2, 1 }, 6 },
    };

    (void)state;
    for (size_t k = 0; k < sizeof meshes / sizeof meshes[0]; k++) {
        static struct cases c;

        c.n = 0;
        for (int zero = 0; zero < 4; zero++) {
            struct layout l = parallel_mesh_test_layout(NET_LLAMA + (zero & 1), zero & 2 ? LS_LAMB : LS_ADAMW, zero, meshes[k].mesh);

            if (zero == 0 && l.mesh.replicate > 1)
                continue;
            l.partition.sp = zero & 1;
            l.accumulate = 2;
            l.schedule = l.mesh.pp > 1 ? "1f1b" : NULL;
            parallel_mesh_test_cases_add(&c, l);
        }
        run_cases(&c, meshes[k].n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dp_alone),
        cmocka_unit_test(test_tp_alone),
        cmocka_unit_test(test_tp_and_dp),
        cmocka_unit_test(test_pipelines),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_zero_bubble),
        cmocka_unit_test(test_joint_gradient_sums),
        cmocka_unit_test(test_context),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_all_axes),
        cmocka_unit_test(test_bf16_reduction),
    };

    return cmocka_run_group_tests(tests, mesh_set_up, NULL);
}
