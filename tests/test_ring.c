/* test_ring.c - attention over a sequence that is sharded over ranks, compared with ATTENTION over the full sequence on one rank: o, lse,
 * dq, dk, dv; the work of each rank; bytes on the wire and memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "helper_forked.h"
#include "lockstep/nn.h"
#include "ir/distributed_ops.h"

enum mode { PLAIN, SPLIT, RECOMPUTE, SLOTS };
struct variant { const char *name; ls_dtype type; int causal, zigzag, packed; size_t B, T, H, G, D; double near; enum mode mode; };

static const struct variant variants[] = {
    { "f64 zigzag", LS_F64, 1, 1, 0, 2, 24, 4, 2, 6, 1e-12, PLAIN },
    { "f64 zigzag, weights apart", LS_F64, 1, 1, 0, 2, 24, 4, 2, 6, 1e-12, SPLIT },
    { "f64 zigzag, recomputed", LS_F64, 1, 1, 1, 2, 25, 2, 2, 6, 1e-12, RECOMPUTE },
    { "f64 zigzag, slots", LS_F64, 1, 1, 0, 2, 25, 2, 2, 6, 1e-12, SLOTS },
    { "f64 zigzag, uneven", LS_F64, 1, 1, 0, 2, 29, 2, 2, 3, 1e-12, PLAIN },
    { "f64 contiguous shards", LS_F64, 1, 0, 0, 2, 23, 2, 1, 4, 1e-12, PLAIN },
    { "f64 not causal", LS_F64, 0, 0, 0, 1, 17, 3, 1, 4, 1e-12, PLAIN },
    { "f64 not causal, zigzag", LS_F64, 0, 1, 0, 2, 17, 3, 1, 4, 1e-12, PLAIN },
    { "f32 zigzag", LS_F32, 1, 1, 1, 2, 301, 4, 4, 32, 1e-5, PLAIN },
    { "f32 zigzag, groups", LS_F32, 1, 1, 0, 1, 256, 6, 2, 16, 1e-5, PLAIN },
    { "f32 contiguous shards", LS_F32, 1, 0, 1, 2, 130, 2, 2, 16, 1e-5, PLAIN },
    { "f32 not causal", LS_F32, 0, 0, 0, 2, 97, 4, 2, 16, 1e-5, PLAIN },
    { "bf16 zigzag, groups", LS_BF16, 1, 1, 0, 2, 128, 4, 2, 32, 2e-2, PLAIN },
    { "f16 zigzag", LS_F16, 1, 1, 0, 1, 128, 2, 2, 32, 3e-3, PLAIN },
};

/* Gradients of q, k, v, and o and lse, row-major. */
enum { Q, K, V, O, LSE, ALL };
struct side { ls_store *store; ls_program *program; double *got[ALL]; size_t count[ALL]; };

/* The tokens of a rank: one or two ranges; of the full sequence: one. */
struct shard { size_t begin[2], end[2]; };

static struct shard shard_of(const struct variant *m, int r, int n)
{
    size_t T = m->T;

    if (m->zigzag)
        return (struct shard){ { shard_begin(T, 1, r, 2 * n), shard_begin(T, 1, 2 * n - 1 - r, 2 * n) },
                               { shard_begin(T, 1, r + 1, 2 * n), shard_begin(T, 1, 2 * n - r, 2 * n) } };
    return (struct shard){ { shard_begin(T, 1, r, n), T }, { shard_begin(T, 1, r + 1, n), T } };
}

static size_t length_of(const struct shard *s) { return s->end[0] - s->begin[0] + s->end[1] - s->begin[1]; }

static size_t token(const struct shard *s, size_t i)
{
    size_t first = s->end[0] - s->begin[0];

    return i < first ? s->begin[0] + i : s->begin[1] + i - first;
}

/* Elements of [B,t,rest] by their place in [B,T,rest]. */
static double *elements(const struct variant *m, const struct shard *s, const char *name, size_t rest)
{
    size_t t = length_of(s), n = m->B * t * rest;
    double *x = malloc(n * sizeof *x + 1);

    RANKS_CHECK(x);
    for (size_t i = 0; i < n; i++) {
        size_t at = (i / rest / t * m->T + token(s, i / rest % t)) * rest + i % rest;

        x[i] = 3 * rng_uniform(6, rng_stream(name), at) - 1.5;
    }
    return x;
}

static void ring_build(struct side *z, const struct variant *m, const struct across *a, size_t t)
{
    ls_program *p = z->program;
    ls_init init = { LS_INIT_UNIFORM, 1.0 };
    size_t heads[3] = { m->H, m->G, m->G };
    ls_value x[3];
    static const char *const names[] = { "q", "k", "v" };

    for (int k = 0; k < 3; k++) {
        x[k] = ls_param(p, names[k], init, 4, (size_t[]){ m->B, t, heads[k], m->D });
        z->count[k] = m->B * t * heads[k] * m->D;
    }
    if (m->packed) {  /* strided operands */
        ls_value qkv = ls_concat(p, 3, x, 2);

        x[0] = ls_slice(p, qkv, 2, 0, m->H);
        x[1] = ls_slice(p, qkv, 2, m->H, m->H + m->G);
        x[2] = ls_slice(p, qkv, 2, m->H + m->G, m->H + 2 * m->G);
    }
    if (m->mode == RECOMPUTE)
        ls_block_begin(p, "b");
    ls_value o = a ? program_ring_attention(p, x[0], x[1], x[2], m->causal, a) : ls_attention(p, x[0], x[1], x[2], m->causal, LS_NONE);
    RANKS_TRY(ls_program_status(p));
    ls_value lse = p->list[SEG_FORWARD].at[p->list[SEG_FORWARD].n - 1].out[1];
    ls_value c = ls_input(p, "c", m->type, 4, (size_t[]){ m->B, t, m->H, m->D });
    if (m->mode == RECOMPUTE) { /* o and lse have been freed when backward begins */
        ls_value y = ls_silu(p, o);

        ls_block_end(p);
        ls_backward(p, ls_sum(p, ls_mul(p, c, y), -1));
        z->count[O] = m->B * t * m->H * m->D;
        return;
    }
    ls_backward(p, ls_sum(p, ls_mul(p, c, o), -1));
    ls_output(p, "o", o);
    ls_output(p, "lse", lse);
    z->count[O] = m->B * t * m->H * m->D;
    z->count[LSE] = m->B * m->H * t;
}

static void run_side(struct side *z, const struct variant *m, const struct across *a, const struct shard *s)
{
    size_t heads[3] = { m->H, m->G, m->G };
    static const char *const names[] = { "q", "k", "v", "o", "lse" };
    ls_compile_options options = LS_COMPILE_DEFAULTS;
    double *x;

    *z = (struct side){ 0 };
    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", m->type, 0, 7, 0 }, &z->store));
    RANKS_TRY(ls_program_new(z->store, &z->program));
    ring_build(z, m, a, length_of(s));
    options.split_backward = m->mode == SPLIT;
    options.recompute = m->mode == RECOMPUTE ? LS_RECOMPUTE_FULL : LS_RECOMPUTE_NONE;
    options.slots = m->mode == SLOTS ? 2 : 0;
    RANKS_TRY(ls_program_compile(z->program, &options));
    for (int k = 0; k < 3; k++) {
        x = elements(m, s, names[k], heads[k] * m->D);
        RANKS_TRY(ls_store_set(z->store, (size_t)k, x, LS_F64, z->count[k]));
        free(x);
    }
    x = elements(m, s, "c", m->H * m->D);
    if (m->mode == SLOTS) {  /* another micro-batch is in flight; its c is 0 */
        RANKS_TRY(ls_program_select(z->program, 1));
        RANKS_TRY(ls_program_run(z->program, LS_FORWARD));
        RANKS_TRY(ls_program_select(z->program, 0));
    }
    RANKS_TRY(ls_program_write(z->program, "c", x, LS_F64, z->count[O]));
    free(x);
    RANKS_TRY(ls_program_run(z->program, LS_FORWARD));
    if (m->mode == SLOTS) {
        RANKS_TRY(ls_program_select(z->program, 1));
        RANKS_TRY(ls_program_run(z->program, LS_BACKWARD));
        RANKS_TRY(ls_program_select(z->program, 0));
    }
    RANKS_TRY(ls_program_run(z->program, m->mode == SLOTS ? LS_BACKWARD : LS_FORWARD | LS_BACKWARD | (m->mode == SPLIT ? LS_WEIGHTS : 0)));
    if (m->mode == RECOMPUTE)
        z->count[O] = 0;
    for (int k = 0; k < ALL; k++) {
        z->got[k] = malloc(z->count[k] * sizeof(double) + 1);
        RANKS_CHECK(z->got[k]);
        if (k < O)
            RANKS_TRY(ls_store_read(z->store, (size_t)k, "gradient", z->got[k], LS_F64, z->count[k]));
        else if (z->count[k])
            RANKS_TRY(ls_program_read(z->program, names[k], z->got[k], LS_F64, z->count[k]));
    }
}

static void close_side(struct side *z)
{
    for (int k = 0; k < ALL; k++)
        free(z->got[k]);
    ls_program_release(&z->program);
    ls_store_release(&z->store);
}

/* The index in the full tensor of element i of this rank's part. */
static size_t ring_place(const struct variant *m, const struct shard *s, int k, size_t i)
{
    size_t t = length_of(s), rest = (k == Q || k == O ? m->H : m->G) * m->D;

    return k == LSE ? i / t * m->T + token(s, i % t) : (i / rest / t * m->T + token(s, i / rest % t)) * rest + i % rest;
}

static void ring_compare(const struct variant *m, const struct shard *s, const struct side *part, const struct side *whole)
{
    static const char *const names[] = { "dq", "dk", "dv", "o", "lse" };

    for (int k = 0; k < ALL; k++) {
        double wrong = 0, norm = 0;

        for (size_t i = 0; i < part->count[k]; i++) {
            double want = whole->got[k][ring_place(m, s, k, i)], off = part->got[k][i] - want;

            wrong += off * off;
            norm += want * want;
        }
        if ((part->count[k] && !(norm > 0)) || !(sqrt(wrong) <= m->near * sqrt(norm)))
            ranks_fail("%s: %s is off by %.3g of %.3g", m->name, names[k], sqrt(wrong), sqrt(norm));
    }
}

/* The ranks' FLOPs add up to those of one rank; with zigzag all ranks have the same. */
static void compare_work(const struct variant *m, ls_comm *comm, const struct side *part, const struct side *whole)
{
    ls_cost a = ls_program_cost(whole->program), b = ls_program_cost(part->program);
    double sum = b.model_flops, most = b.model_flops;
    int n = ls_comm_size(comm);

    RANKS_TRY(ls_all_reduce(comm, &sum, &sum, 1, LS_F64, LS_SUM, NULL));
    RANKS_TRY(ls_all_reduce(comm, &most, &most, 1, LS_F64, LS_MAX, NULL));
    if (fabs(sum - a.model_flops) > 1e-9 * sum)
        ranks_fail("%s: %g FLOPs over all ranks, %g on one", m->name, sum, a.model_flops);
    if (m->mode == RECOMPUTE && b.recompute_flops < 0.6 * b.forward_flops)
        ranks_fail("%s: %g FLOPs of recomputation, %g forward", m->name, b.recompute_flops, b.forward_flops);
    if (m->T > 200 && m->zigzag && most * n > 1.04 * sum)
        ranks_fail("%s: the busiest rank computes %.3f times its share", m->name, most * n / sum);
    if (m->T > 100 && m->causal && !m->zigzag && most * n < 1.3 * sum)
        ranks_fail("%s: without zigzag the busiest rank should have far more than its share, not %.3f", m->name, most * n / sum);
}

/* Keys and values n-1 times forward; n-1 times and their sums n times backward. */
static void check_wire(const struct variant *m, ls_comm *comm, const struct side *part)
{
    size_t n = (size_t)ls_comm_size(comm), esize = ls_dtype_bytes(m->type), sums = m->type == LS_F64 ? 8 : 4, calls;
    size_t all = 2 * m->B * m->G * m->D * m->T; /* elements of all shards, each of which is sent n-1 times */
    size_t forward = ls_program_comm_bytes(part->program, LS_FORWARD, LS_COLLECTIVE_SEND, &calls);

    if (calls != n - 1)
        ranks_fail("%s: %zu sends forward", m->name, calls);
    if (m->mode == RECOMPUTE)
        return;
    size_t backward = ls_program_comm_bytes(part->program, LS_BACKWARD, LS_COLLECTIVE_SEND, &calls);
    if (calls != 2 * n - 1)
        ranks_fail("%s: %zu sends backward", m->name, calls);
    if (m->T % (2 * n) == 0 && (forward != all / n * (n - 1) * esize || backward != all / n * ((n - 1) * esize + n * sums)))
        ranks_fail("%s: %zu bytes forward, %zu backward", m->name, forward, backward);
}

/* Every instruction has a fast kernel: strided views don't fall back to the reference. */
static void check_kernels(const struct variant *m, const ls_program *p)
{
    for (int g = 0; g < SEGMENTS && m->type != LS_F64 && isa_best() >= ISA_AVX2; g++)
        for (int n = 0; n < p->list[g].n; n++) {
            const struct instruction *i = &p->list[g].at[n];

            if (i->kernel && strcmp(i->kernel->name, "reference") == 0)
                ranks_fail("%s: %s is computed by the reference", m->name, instruction_name(i));
        }
}

static void in_shards(ls_comm *comm, void *ctx)
{
    const struct variant *m = ctx;
    int n = ls_comm_size(comm), r = ls_comm_rank(comm);
    struct across a = { LS_AXIS_CP, comm, m->T, m->zigzag };
    struct shard mine = shard_of(m, r, n), all = { { 0, m->T }, { m->T, m->T } };
    struct side whole, part;

    run_side(&whole, m, NULL, &all);
    run_side(&part, m, &a, &mine);
    ring_compare(m, &mine, &part, &whole);
    compare_work(m, comm, &part, &whole);
    check_wire(m, comm, &part);
    check_kernels(m, part.program);
    close_side(&whole);
    close_side(&part);
}

static void test_ranks(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT_OF(variants); k++)
        for (int n = 2; n <= 4; n++)
            forked_run(n, in_shards, (void *)(uintptr_t)&variants[k]);
}

/* A rank of a plan: the memory of a long sequence falls as 1 / n; a kernel's scratch does not grow with the sequence. */
static size_t memory_of(int n)
{
    static const struct variant m = { "planned", LS_F32, 1, 1, 0, 1, 32768, 4, 4, 32, 0, PLAIN };
    struct side z = { 0 };
    struct across a = { LS_AXIS_CP, NULL, m.T, 1 };
    struct shard mine = shard_of(&m, 0, n);
    ls_compile_options options = LS_COMPILE_DEFAULTS;

    options.plan_only = 1;
    RANKS_TRY(ls_comm_open("plan:", 0, n, &a.comm));
    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", m.type, 0, 7, 0 }, &z.store));
    RANKS_TRY(ls_program_new(z.store, &z.program));
    ring_build(&z, &m, &a, length_of(&mine));
    RANKS_TRY(ls_program_compile(z.program, &options));
    ls_cost cost = ls_program_cost(z.program);
    close_side(&z);
    ls_comm_close(&a.comm);
    return cost.activations + cost.communication;
}

static void ring_test_memory(void **state)
{
    size_t three = memory_of(3), twelve = memory_of(12);

    (void)state;
    if (twelve * 4 > three + three / 10)
        fail_msg("%zu bytes a rank on 3 ranks, %zu on 12: a quarter is expected", three, twelve);
}

static void impossible_rings_are_refused(void **state)
{
    static const struct variant m = { "refused", LS_F32, 1, 1, 0, 1, 40, 2, 2, 4, 0, PLAIN };
    struct across a = { LS_AXIS_CP, NULL, 40, 1 };
    struct side z = { 0 };

    (void)state;
    RANKS_TRY(ls_comm_open("plan:", 1, 4, &a.comm));
    RANKS_TRY(ls_store_new(NULL, &z.store));
    RANKS_TRY(ls_program_new(z.store, &z.program));
    ring_build(&z, &m, &a, 11);
    assert_int_equal(ls_program_compile(z.program, NULL), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "rank 1 of 4 has 11 queries and 11 keys of 40 tokens; its shard is 10"));
    close_side(&z);
    ls_comm_close(&a.comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(ring_test_memory),
        cmocka_unit_test(impossible_rings_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
