/* test_vocab_xent.c - cross-entropy over a vocabulary that is sharded over ranks, compared with LINEAR_XENT on one rank. */
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
#include "runtime/store.h"

enum { B = 4, T = 100, R = B * T, C = 24, V = 101 };

struct variant { const char *name; ls_dtype type; bool fuse, denominator, crowded, scarce; double near; bool split; };

static const struct variant variants[] = {
    { "f64", LS_F64, false, true, false, false, 1e-12, false },
    { "f64 fused", LS_F64, true, true, false, false, 1e-12, false },
    { "f64 fused, weights apart", LS_F64, true, true, false, false, 1e-12, true },
    { "f64 fused, no denominator", LS_F64, true, false, false, false, 1e-12, false },
    { "f32", LS_F32, false, false, false, false, 1e-5, false },
    { "f32 fused, all targets on one rank", LS_F32, true, true, true, false, 1e-5, false },
    { "f32 fused, no target at all", LS_F32, true, false, false, true, 1e-5, false },
    { "bf16 fused", LS_BF16, true, true, false, false, 2e-2, false },
    { "bf16", LS_BF16, false, true, false, false, 2e-2, false },
};

/* One program: loss, and gradients of x and of w's rows here. */
struct side { ls_store *store; ls_program *program; size_t rows; double loss, dx[R * C], dw[V * C]; };

static void fill_targets(const struct variant *m, int32_t *y)
{
    for (size_t r = 0; r < R; r++)
        y[r] = m->scarce || r % 7 == 2 ? -1 : (int32_t)(rng_uniform(4, 5, r) * (m->crowded ? 5 : V));
}

static void set_param(ls_store *s, size_t i, const char *name, size_t first, size_t count)
{
    double *x = malloc(count * sizeof *x);

    RANKS_CHECK(x);
    for (size_t k = 0; k < count; k++)
        x[k] = 4 * rng_uniform(9, rng_stream(name), first + k) - 2;
    RANKS_TRY(ls_store_set(s, i, x, LS_F64, count));
    free(x);
}

static void read_grad(const ls_store *s, size_t i, double *out)
{
    RANKS_TRY(ls_store_read(s, i, "gradient", out, LS_F64, ls_tensor_count(ls_store_grad(s, i))));
}

/* a NULL: the complete vocabulary on this rank, by LINEAR_XENT. */
static void run_side(struct side *z, const struct variant *m, const struct across *a, size_t first, size_t rows)
{
    ls_compile_options options = LS_COMPILE_DEFAULTS;
    int32_t y[R];
    double denominator = 217;
    ls_value d = LS_NONE;

    *z = (struct side){ .rows = rows };
    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", m->type, 0, 7, 0 }, &z->store));
    RANKS_TRY(ls_program_new(z->store, &z->program));
    ls_program *p = z->program;
    ls_value x = ls_param(p, "x", (ls_init){ LS_INIT_UNIFORM, 1.0 }, 3, (size_t[]){ B, T, C });
    ls_value w = ls_param(p, "w", (ls_init){ LS_INIT_UNIFORM, 1.0 }, 2, (size_t[]){ rows, C });
    ls_value t = ls_input(p, "t", LS_I32, 2, (size_t[]){ B, T });
    if (m->denominator)
        d = ls_input(p, "d", m->type == LS_F64 ? LS_F64 : LS_F32, 1, (size_t[]){ 1 });
    ls_value loss = a ? program_vocab_xent(p, x, w, t, d, first, a) : ls_linear_xent(p, x, w, t, d);
    ls_backward(p, ls_output(p, "loss", loss));
    options.fuse_loss = m->fuse;
    options.split_backward = m->split;
    options.check_finite = 1;
    RANKS_TRY(ls_program_compile(p, &options));
    set_param(z->store, 0, "x", 0, R * C);
    set_param(z->store, 1, "w", first * C, rows * C);
    fill_targets(m, y);
    RANKS_TRY(ls_program_write(p, "t", y, LS_I32, R));
    if (m->denominator)
        RANKS_TRY(ls_program_write(p, "d", &denominator, LS_F64, 1));
    for (int twice = 0; twice < 2; twice++) {  /* gradients add up */
        RANKS_TRY(ls_program_run(p, LS_FORWARD));
        RANKS_TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD | (m->split ? LS_WEIGHTS : 0)));
    }
    RANKS_TRY(ls_program_read(p, "loss", &z->loss, LS_F64, 1));
    read_grad(z->store, 0, z->dx);
    read_grad(z->store, 1, z->dw);
}

static void close_side(struct side *z)
{
    ls_program_release(&z->program);
    ls_store_release(&z->store);
}

static void xent_compare(const struct variant *m, const char *what, const double *got, const double *want, size_t n)
{
    double wrong = 0, norm = 0;

    for (size_t i = 0; i < n; i++) {
        wrong += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    if (!(sqrt(wrong) <= m->near * sqrt(norm) + 1e-300) || (!m->scarce && !(norm > 0)))
        ranks_fail("%s: %s is off by %.3g of %.3g", m->name, what, sqrt(wrong), sqrt(norm));
}

static void same_flops(const struct variant *m, const struct side *whole, const struct side *part, ls_comm *comm)
{
    ls_cost a = ls_program_cost(whole->program), b = ls_program_cost(part->program);
    double sum[2] = { b.model_flops, b.recompute_flops };

    RANKS_TRY(ls_all_reduce(comm, sum, sum, 2, LS_F64, LS_SUM, NULL));
    if (fabs(sum[0] - a.model_flops) > 1e-9 * a.model_flops || fabs(sum[1] - a.recompute_flops) > 1e-9 * a.model_flops)
        ranks_fail("%s: %g and %g FLOPs over all ranks, %g and %g on one", m->name, sum[0], sum[1], a.model_flops, a.recompute_flops);
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

static void in_parts(ls_comm *comm, void *ctx)
{
    const struct variant *m = ctx;
    static struct side whole, part;
    int n = ls_comm_size(comm), r = ls_comm_rank(comm);
    struct across a = { LS_AXIS_TP, comm, V, 0 };
    double most;
    size_t first = shard_begin(V, 1, r, n), rows = shard_begin(V, 1, r + 1, n) - first, calls;

    run_side(&whole, m, NULL, 0, V);
    run_side(&part, m, &a, first, rows);
    RANKS_TRY(ls_all_reduce(comm, part.dx, part.dx, R * C, LS_F64, LS_SUM, NULL));
    RANKS_TRY(ls_all_reduce(comm, &part.loss, &most, 1, LS_F64, LS_MAX, NULL));
    if (most != part.loss)
        ranks_fail("%s: the loss is %.17g here and %.17g on another rank", m->name, part.loss, most);
    xent_compare(m, "loss", &part.loss, &whole.loss, 1);
    xent_compare(m, "dx", part.dx, whole.dx, R * C);
    xent_compare(m, "dw", part.dw, whole.dw + first * C, rows * C);
    same_flops(m, &whole, &part, comm);
    size_t bytes = ls_program_comm_bytes(part.program, LS_FORWARD | LS_BACKWARD, LS_COLLECTIVE_ALL_GATHER, &calls);
    if (calls != 3 || bytes == 0)
        ranks_fail("%s: %zu all_gathers of %zu bytes; three chunks of statistics are expected, never logits", m->name, calls, bytes);
    check_kernels(m, part.program);
    close_side(&whole);
    close_side(&part);
}

static void test_ranks(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT_OF(variants); k++)
        for (int n = 2; n <= 3; n++)
            forked_run(n, in_parts, (void *)(uintptr_t)&variants[k]);
}

static void test_one_rank(void **state)
{
    static struct side whole, part;
    struct across alone = { LS_AXIS_TP, NULL, V, 0 };

    (void)state;
    run_side(&whole, &variants[0], NULL, 0, V);
    run_side(&part, &variants[0], &alone, 0, V);
    xent_compare(&variants[0], "loss", &part.loss, &whole.loss, 1);
    xent_compare(&variants[0], "dx", part.dx, whole.dx, R * C);
    xent_compare(&variants[0], "dw", part.dw, whole.dw, V * C);
    close_side(&whole);
    close_side(&part);
}

static void impossible_vocab_shards_are_refused(void **state)
{
    struct across a = { LS_AXIS_TP, NULL, V, 0 };
    ls_store *s;
    ls_program *p;

    (void)state;
    RANKS_TRY(ls_store_new(NULL, &s));
    RANKS_TRY(ls_program_new(s, &p));
    program_vocab_xent(p, ls_param(p, "x", (ls_init){ LS_INIT_UNIFORM, 1.0 }, 2, (size_t[]){ 5, C }),
                       ls_param(p, "w", (ls_init){ LS_INIT_UNIFORM, 1.0 }, 2, (size_t[]){ 60, C }),
                           ls_input(p, "t", LS_I32, 1, (size_t[]){ 5 }),
                       LS_NONE, 50, &a);
    assert_int_equal(ls_program_status(p), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "rows [50, +60) of a vocabulary of 101"));
    ls_program_release(&p);
    ls_store_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(impossible_vocab_shards_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
