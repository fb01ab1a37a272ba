/* test_partition.c - tensor and sequence parallelism compared with one rank: loss and every gradient, for sizes that are divisible by the
 * number of ranks and sizes that are not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/threads.h"
#include "helper_forked.h"
#include "helper_partition.h"
#include "parallel/layout.h"

enum { MOST = 64 };
struct cases { struct partition_case at[MOST]; int n; };

static struct partition_case *partition_test_cases_add(struct cases *c, const char *name, ls_model m, int tp, int sp)
{
    assert_true(c->n < MOST);
    c->at[c->n] = (struct partition_case){ .name = name, .model = m, .shape = { 1, -1, 1, 1, tp, 1 },
                                           .options = { sp, LS_CP_RING, 1, 1, { 0, 1, 0, 0 }, 0 },
                                           .batch = 2, .time = 11 };
    return &c->at[c->n++];
}

/* how: 0: no overlap, n: overlap in n chunks. */
static void partition_test_overlap(struct partition_case *c, int how)
{
    c->options.overlap = how > 0;
    c->options.tp_chunks = how > 0 ? how : 1;
}

static struct partition_case *add_context(struct cases *c, const char *name, ls_model m, int cp, int tp, int sp, ls_cp_method method)
{
    struct partition_case *k = partition_test_cases_add(c, name, m, tp, sp);

    k->shape.cp = cp;
    k->options.cp_method = method;
    k->time = 13;
    return k;
}

/* ---- drawn layouts ---- */

static unsigned case_draw(unsigned *state, unsigned n)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % n;
}

static ls_model draw_model(unsigned *s)
{
    size_t kv = 1 + case_draw(s, 4), heads = kv * (1 + case_draw(s, 3)), ffn = 5 + case_draw(s, 20), vocab = 9 + case_draw(s, 40);
    ls_model m = case_draw(s, 2) ? partition_llama(heads, kv, ffn, vocab, (int)case_draw(s, 2))
                                 : partition_gpt2(heads, ffn, vocab, case_draw(s, 2) ? 0.2 : 0);

    m.tied = (int)case_draw(s, 2);
    m.layers = 1 + case_draw(s, 3);
    return m;
}

static struct partition_case draw_case(unsigned *s, int ranks)
{
    int tp = 1 + (int)case_draw(s, (unsigned)ranks);
    struct partition_case c = { .name = "drawn", .type = LS_F64, .batch = 1 + case_draw(s, 3), .time = 3 + case_draw(s, 22) };

    while (ranks % tp || tp > 4)
        tp--;
    int cp = 1 + (int)case_draw(s, (unsigned)(ranks / tp));
    while (ranks / tp % cp)
        cp--;
    c.shape = (ls_mesh_shape){ 1, ranks / tp / cp, 1, cp, tp, 1 };
    c.model = draw_model(s);
    c.options = (ls_partition_options){ (int)case_draw(s, 2), (ls_cp_method)case_draw(s, 2), 1, 1, { 0, 1, 0, 0 }, 0 };
    partition_test_overlap(&c, (int)case_draw(s, 3));
    c.recompute = (ls_recompute)case_draw(s, LS_RECOMPUTE_EVERY + 1);
    c.fuse_loss = (int)case_draw(s, 2);
    return c;
}

struct drawn { unsigned seed; int n; };

static bool is_possible(const struct partition_case *c)
{
    ls_layout l = layout_of_partition(&c->shape, &c->options);

    l.seq_len = (int)c->time;
    l.recompute = c->recompute;
    return ls_layout_check(&c->model, &l) == LS_OK;
}

/* In f64, where rounding hides nothing. A layout is refused by every rank, and before that by ls_layout_check(). */
static void check_drawn(ls_comm *comm, void *ctx)
{
    struct drawn *d = ctx;
    unsigned s = d->seed;
    int refused = 0;

    threads_set(1);
    for (int k = 0; k < d->n; k++) {
        struct partition_case c = draw_case(&s, ls_comm_size(comm));
        bool possible = is_possible(&c);
        const char *wrong = partition_differs(&c, comm, 1e-10);

        refused += !possible;
        if (possible == (wrong != NULL))
            ranks_fail(
                "case %d of seed %u: %s of %zu layers, %zu heads, %zu kv, ffn %zu, vocab %zu, T %zu, dp %d cp %d tp %d sp %d context %d "
                "chunks %d recompute %d: %s",
                k, d->seed, c.model.architecture == LS_GPT2 ? "gpt2" : "llama", c.model.layers, c.model.heads, c.model.kv_heads,
                c.model.ffn, c.model.vocab, c.time, c.shape.dp, c.shape.cp, c.shape.tp, c.options.sp, (int)c.options.cp_method,
                c.options.overlap ? c.options.tp_chunks : 0, (int)c.recompute, wrong ? wrong : "it is not possible, but runs");
    }
    RANKS_CHECK(3 * refused <= 2 * d->n);
}

static void random_models_equal_one_rank(void **state)
{
    (void)state;
    for (int n = 2; n <= 8; n += n < 4 ? 1 : 2)
        forked_run(n, check_drawn, &(struct drawn){ 1000u + (unsigned)n, n < 5 ? 12 : 5 });
}

static void partition_check_cases(ls_comm *comm, void *ctx)
{
    const struct cases *c = ctx;

    threads_set(1);
    for (int i = 0; i < c->n; i++) {
        const char *wrong = partition_differs(&c->at[i], comm, 1e-5);

        if (wrong)
            ranks_fail("%s, tp %d, cp %d, sp %d, context %d: %s", c->at[i].name, c->at[i].shape.tp, c->at[i].shape.cp, c->at[i].options.sp,
                       (int)c->at[i].options.cp_method, wrong);
    }
}

static void test_tensor(void **state)
{
    (void)state;
    for (int tp = 2; tp <= 4; tp++) {
        struct cases c = { .n = 0 };

        for (int sp = 0; sp < 2; sp++) {
            partition_test_cases_add(&c, "gpt2", partition_gpt2(4, 24, 37, 0), tp, sp);
            partition_test_cases_add(&c, "gpt2, 5 heads, odd ffn", partition_gpt2(5, 23, 38, 0), tp, sp);
            partition_test_cases_add(&c, "gpt2, dropout", partition_gpt2(4, 24, 37, 0.2), tp, sp);
            partition_test_cases_add(&c, "llama, 4 of 4 heads", partition_llama(4, 4, 20, 37, 0), tp, sp);
            partition_test_cases_add(&c, "llama, tied, 4 of 2", partition_llama(4, 2, 21, 37, 1), tp, sp);
            partition_test_cases_add(&c, "llama, 6 of 1", partition_llama(6, 1, 20, 37, 0), tp, sp);
            partition_test_cases_add(&c, "llama, 6 of 3", partition_llama(6, 3, 20, 37, 0), tp, sp);
            partition_test_cases_add(&c, "llama, 10 of 2", partition_llama(10, 2, 20, 37, 0), tp, sp);
        }
        forked_run(tp, partition_check_cases, &c);
    }
}

static void context_cases(struct cases *c, ls_cp_method method, int cp)
{
    add_context(c, "gpt2", partition_gpt2(4, 24, 37, 0), cp, 1, 0, method);
    add_context(c, "gpt2, 5 heads, dropout", partition_gpt2(5, 24, 37, 0.2), cp, 1, 0, method);
    add_context(c, "llama, 6 of 3", partition_llama(6, 3, 20, 37, 0), cp, 1, 0, method);
    add_context(c, "llama, tied, 6 of 1", partition_llama(6, 1, 20, 37, 1), cp, 1, 0, method);
    add_context(c, "llama, 10 of 2", partition_llama(10, 2, 20, 37, 1), cp, 1, 0, method);
}

static void test_all_to_all(void **state)
{
    (void)state;
    for (int cp = 2; cp <= 3; cp++) {
        struct cases c = { .n = 0 };

        context_cases(&c, LS_CP_ALL_TO_ALL, cp);
        forked_run(cp, partition_check_cases, &c);
    }
}

static void test_ring(void **state)
{
    (void)state;
    for (int cp = 2; cp <= 3; cp++) {
        struct cases c = { .n = 0 };

        context_cases(&c, LS_CP_RING, cp);
        forked_run(cp, partition_check_cases, &c);
    }
}

/* All axes of the partition at once, and data parallelism outside. */
static void test_combined_axes(void **state)
{
    struct cases c = { .n = 0 };

    (void)state;
    for (int context = LS_CP_RING; context <= LS_CP_ALL_TO_ALL; context++)
        for (int sp = 0; sp < 2; sp++) {
            add_context(&c, "gpt2, dropout", partition_gpt2(4, 24, 37, 0.2), 2, 2, sp, (ls_cp_method)context);
            add_context(&c, "llama, 6 of 1", partition_llama(6, 1, 20, 37, 1), 2, 2, sp, (ls_cp_method)context);
            add_context(&c, "llama, 10 of 5", partition_llama(10, 5, 20, 37, 0), 2, 2, sp, (ls_cp_method)context);
            partition_test_cases_add(&c, "gpt2, dropout, dp", partition_gpt2(4, 24, 37, 0.2), 2, sp);
            add_context(&c, "gpt2, dropout, dp", partition_gpt2(4, 24, 37, 0.2), 2, 1, 0, (ls_cp_method)context);
        }
    forked_run(4, partition_check_cases, &c);
}

/* Recomputation repeats moves, and a loss that is made with its gradient is the same. */
static void test_compile_options(void **state)
{
    struct cases c = { .n = 0 };

    (void)state;
    for (int mode = LS_RECOMPUTE_NONE; mode <= LS_RECOMPUTE_EVERY; mode++)
        for (int sp = 0; sp < 2; sp++)
            for (int llama = 0; llama < 2; llama++) {
                add_context(&c, llama ? "llama" : "gpt2", llama ? partition_llama(6, 1, 20, 37, 1) : partition_gpt2(4, 24, 37, 0.2), 2, 2,
                            sp, mode & 1 ? LS_CP_RING : LS_CP_ALL_TO_ALL);
                struct partition_case *k = &c.at[c.n - 1];
                k->recompute = (ls_recompute)mode;
                k->fuse_loss = 1;
            }
    forked_run(4, partition_check_cases, &c);
}

/* Matmuls in several row chunks, and exchanges that are waited for immediately. */
static void test_overlap(void **state)
{
    struct cases c = { .n = 0 };

    (void)state;
    for (int overlap = 0; overlap < 4; overlap++)
        for (int sp = 0; sp < 2; sp++)
            for (int llama = 0; llama < 2; llama++) {
                struct partition_case *k = partition_test_cases_add(&c, llama ? "llama" : "gpt2",
                                                     llama ? partition_llama(6, 3, 20, 37, 1) : partition_gpt2(4, 24, 37, 0.2), 2, sp);

                partition_test_overlap(k, overlap);
                k->recompute = overlap == 3 ? LS_RECOMPUTE_FULL : LS_RECOMPUTE_NONE;
            }
    forked_run(2, partition_check_cases, &c);
}

/* ---- which dim counts tokens ---- */

/* An input of two dims that comes first and counts no tokens. */
static void build_behind_classes(ls_program *p, const struct partition_case *c)
{
    ls_input(p, "classes", LS_I32, 2, (size_t[]){ c->batch, 5 });
    partition_build(p, c);
}

static struct partition_case *same_size(struct cases *c, const char *name, ls_model m, size_t time, int cp, int tp, int sp,
                                        ls_cp_method method)
{
    struct partition_case *k = add_context(c, name, m, cp, tp, sp, method);

    k->time = time;
    return k;
}

/* Width, heads, ffn or vocabulary have as many elements as the sequence. */
static void add_same_sizes(struct cases *c, int cp, int tp, int sp, ls_cp_method method)
{
    same_size(c, "width = T", partition_gpt2(4, 24, 37, 0.2), 16, cp, tp, sp, method);
    same_size(c, "heads = T", partition_gpt2(8, 24, 37, 0.2), 8, cp, tp, sp, method);
    same_size(c, "ffn = T", partition_llama(6, 3, 20, 37, 1), 20, cp, tp, sp, method);
    same_size(c, "vocab = T", partition_llama(6, 6, 20, 24, 0), 24, cp, tp, sp, method);
    same_size(c, "batch = T", partition_llama(6, 6, 20, 37, 0), 10, cp, tp, sp, method)->batch = 10;
    same_size(c, "after classes", partition_gpt2(4, 24, 37, 0), 9, cp, tp, sp, method)->build = build_behind_classes;
}

static void sizes_that_equal_time_change_nothing(void **state)
{
    struct cases sp = { .n = 0 }, both = { .n = 0 };

    (void)state;
    add_same_sizes(&sp, 1, 2, 1, LS_CP_RING);
    add_same_sizes(&sp, 2, 1, 0, LS_CP_RING);
    add_same_sizes(&sp, 2, 1, 0, LS_CP_ALL_TO_ALL);
    forked_run(2, partition_check_cases, &sp);
    add_same_sizes(&both, 2, 2, 1, LS_CP_RING);
    add_same_sizes(&both, 2, 2, 1, LS_CP_ALL_TO_ALL);
    forked_run(4, partition_check_cases, &both);
}

/* ---- partial maxima ---- */

enum { SAMPLES = 2, TOKENS = 6, VOCAB = 37 };

/* The largest logit of each token, and of all: over tp a max of the ranks' maxima. */
static ls_status largest_logits(const ls_mesh *mesh, const ls_model *m, int sp, double out[SAMPLES * TOKENS], int *reductions)
{
    ls_partition_options o = { sp, LS_CP_RING, 1, 1, { 0, 1, 0, 0 }, 0 };
    ls_store *s;
    ls_program *p;
    int32_t tokens[SAMPLES * TOKENS];

    for (int i = 0; i < SAMPLES * TOKENS; i++)
        tokens[i] = i * 7 % VOCAB;
    LS_TRY(ls_store_new(&(ls_store_options){ "cpu", LS_F64, 0, 7, 0 }, &s));
    LS_TRY(ls_program_new(s, &p));
    ls_value logits = ls_model_logits(p, m, ls_input(p, "tokens", LS_I32, 2, (size_t[]){ SAMPLES, TOKENS }));
    ls_output(p, "largest", ls_max(p, logits, 2));
    if (mesh)
        LS_TRY(ls_partition(p, mesh, m, &o));
    LS_TRY(ls_program_compile(p, NULL));
    LS_TRY(ls_program_write(p, "tokens", tokens, LS_I32, SAMPLES * TOKENS));
    LS_TRY(ls_program_run(p, LS_FORWARD));
    LS_TRY(ls_program_read(p, "largest", out, LS_F64, SAMPLES * TOKENS));
    *reductions = 0;
    for (int n = 0; n < p->list[SEG_FORWARD].n; n++) {
        const struct instruction *i = &p->list[SEG_FORWARD].at[n];

        if (i->op == OP_COMM_START && instruction_exchange(i)->redop == LS_MAX)
            *reductions += 1;
    }
    ls_program_release(&p);
    ls_store_release(&s);
    return LS_OK;
}

static void check_largest(ls_comm *comm, void *ctx)
{
    ls_model m = partition_llama(6, 3, 20, VOCAB, 0);
    double alone[SAMPLES * TOKENS], together[SAMPLES * TOKENS];
    int reductions;
    ls_mesh *mesh;

    (void)ctx;
    threads_set(1);
    RANKS_TRY(ls_mesh_open(comm, &(ls_mesh_shape){ 1, 1, 1, 1, ls_comm_size(comm), 1 }, &mesh));
    RANKS_TRY(largest_logits(NULL, &m, 0, alone, &reductions));
    RANKS_CHECK(reductions == 0);
    for (int sp = 0; sp < 2; sp++) {
        RANKS_TRY(largest_logits(mesh, &m, sp, together, &reductions));
        RANKS_CHECK(reductions == 1);
        for (int i = 0; i < SAMPLES * TOKENS; i++)
            RANKS_CHECK(fabs(alone[i] - together[i]) <= 1e-12 * fabs(alone[i]));
    }
    ls_mesh_close(&mesh);
}

static void partial_max_is_reduced_by_max(void **state)
{
    (void)state;
    forked_run(2, check_largest, NULL);
    forked_run(3, check_largest, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor),
        cmocka_unit_test(test_all_to_all),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_combined_axes),
        cmocka_unit_test(test_compile_options),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(random_models_equal_one_rank),
        cmocka_unit_test(sizes_that_equal_time_change_nothing),
        cmocka_unit_test(partial_max_is_reduced_by_max),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
