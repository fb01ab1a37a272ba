/* test_steps.c - every step list on virtual ranks: values, matched messages, no deadlock, bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#include "base/base.h"
#include "base/mem.h"
#include "helper_virtual.h"
#include "train/faults/fault_points.h"

/* ---- shapes ---- */

/* Sizes of blocks. EVEN: `count` each; SPLIT: `count` over all, as an all_reduce splits; the rest uneven, with zeros. */
enum sizes { EVEN, SPLIT, MIXED, LAST_ONLY, FIRST_EMPTY, SIZES };

static size_t size_of(enum sizes kind, size_t count, int i, int n)
{
    switch (kind) {
    case EVEN:        return count;
    case SPLIT:       return block_at(count, i + 1, n) - block_at(count, i, n);
    case MIXED:       return (size_t)(i * 7 + 3) % 5;
    case LAST_ONLY:   return i == n - 1 ? 13 : 0;
    case FIRST_EMPTY: return i == 0 ? 0 : (size_t)i;
    default:          return 0;
    }
}

static void fill_borders(struct virtual_case *c, enum sizes kind, size_t count)
{
    bool exchange = c->algorithm->op == LS_COLLECTIVE_ALL_TO_ALL;

    for (int r = 0; r < c->n; r++)
        for (int i = 0; i < c->n; i++) {
            size_t out = size_of(kind, count, exchange ? (r + 2 * i) % c->n : i, c->n);
            size_t in = size_of(kind, count, exchange ? (i + 2 * r) % c->n : i, c->n);

            c->at[r][i + 1] = c->at[r][i] + out;
            c->recv_at[r][i + 1] = c->recv_at[r][i] + in;
        }
}

/* ---- expected results ---- */

static bool sums(const struct algorithm *a)
{
    return a->op == LS_COLLECTIVE_ALL_REDUCE || a->op == LS_COLLECTIVE_REDUCE_SCATTER;
}

/* In rank order, in f32 for half types, as the average's division is; rounded to them once. */
static double steps_sum_of(const struct virtual_case *c, size_t i)
{
    enum virtual_type wide = c->type == VIRTUAL_BF16 ? VIRTUAL_F32 : c->type;
    double sum = virtual_value(c->type, 0, i);

    for (int r = 1; r < c->n; r++) sum = virtual_round(wide, sum + virtual_value(c->type, r, i));
    return virtual_round(c->type, c->average ? virtual_round(wide, sum / c->n) : sum);
}

/* Element i of recv on rank r. */
static double steps_expected(const struct virtual_case *c, int r, size_t i)
{
    int from = 0;

    switch (c->algorithm->op) {
    case LS_COLLECTIVE_ALL_REDUCE:     return steps_sum_of(c, i);
    case LS_COLLECTIVE_REDUCE_SCATTER: return steps_sum_of(c, c->at[r][r] + i);
    case LS_COLLECTIVE_BROADCAST:      return virtual_value(c->type, c->root, i);
    case LS_COLLECTIVE_ALL_GATHER:
        while (c->at[r][from + 1] <= i) from++;
        return virtual_value(c->type, from, i - c->at[r][from]);
    case LS_COLLECTIVE_ALL_TO_ALL:
        while (c->recv_at[r][from + 1] <= i) from++;
        return virtual_value(c->type, from, c->at[from][r] + i - c->recv_at[r][from]);
    default: return 0;
    }
}

/* `send` is unchanged, except where `recv` overlaps it. */
static void check_send(const struct virtual_case *c, const struct virtual_run *v, int r)
{
    for (size_t i = 0; i < v->sends[r]; i++) {
        const double *p = &v->send[r][i];

        if (c->in_place && p >= v->recv[r] && p < v->recv[r] + v->recvs[r]) continue;
        if (*p != virtual_value(c->type, r, i)) fail_msg("%s: rank %d: send[%zu] was written", c->algorithm->name, r, i);
    }
}

static void check_values(const struct virtual_case *c, const struct virtual_run *v)
{
    if (c->algorithm->op == LS_COLLECTIVE_BARRIER) return;
    for (int r = 0; r < c->n; r++) {
        for (size_t i = 0; i < v->recvs[r]; i++)
            if (v->recv[r][i] != steps_expected(c, r, i))
                fail_msg("%s of %s, rank %d of %d, root %d, chunk %zu, %s, element %zu: %.17g, not %.17g", c->algorithm->name,
                         ls_collective_name(c->algorithm->op), r, c->n, c->root, c->chunk,
                         c->in_place ? "in place" : "apart", i, v->recv[r][i], steps_expected(c, r, i));
        if (c->algorithm->op != LS_COLLECTIVE_BROADCAST) check_send(c, v, r);
    }
}

/* ---- bytes ---- */

static int rounds_of(int n)
{
    int rounds = 0;

    while (1 << rounds < n) rounds++;
    return rounds;
}

/* Elements that all ranks together are to send. */
static size_t sent_by_formula(const struct virtual_case *c)
{
    size_t all = c->at[0][c->n], n = (size_t)c->n, own = 0, tree = 0;

    switch (c->algorithm->op) {
    case LS_COLLECTIVE_ALL_REDUCE: return 2 * (n - 1) * all;  /* of ring, halving, direct: 2 D (n-1)/n each */
    case LS_COLLECTIVE_ALL_TO_ALL:
        for (int r = 0; r < c->n; r++) own += c->at[r][c->n] - (c->at[r][r + 1] - c->at[r][r]);
        return own;
    case LS_COLLECTIVE_BARRIER: return n * (size_t)rounds_of(c->n);
    case LS_COLLECTIVE_BROADCAST:  /* scatter_ring: what enters each subtree, and n-1 hops of everything */
        if (strcmp(c->algorithm->name, "scatter_ring") != 0) return (n - 1) * all;
        for (int v = 1; v < c->n; v++) tree += block_at(all, MIN(v + (v & -v), c->n), c->n) - block_at(all, v, c->n);
        return tree + (n - 1) * all;
    default: return (n - 1) * all;
    }
}

static void check_bytes(const struct virtual_case *c, const struct virtual_run *v)
{
    size_t sent = 0;

    for (int r = 0; r < c->n; r++) sent += steps_sent(&v->list[r]);
    if (sent != sent_by_formula(c))
        fail_msg("%s of %s, %d ranks: %zu elements sent, not %zu", c->algorithm->name, ls_collective_name(c->algorithm->op), c->n,
                 sent, sent_by_formula(c));
}

/* ---- all of them ---- */

static void run_one(const struct virtual_case *c)
{
    struct virtual_run v;

    virtual_run(c, &v);
    check_values(c, &v);
    check_bytes(c, &v);
    virtual_free(&v);
}

/* Apart and in place; whole blocks and chunks; both ways of sending; some orders of events. */
static void run_variants(struct virtual_case *c)
{
    for (int i = 0; i < 8; i++) {
        c->in_place = i & 1;
        c->chunk = i & 2 ? 5 : 0;
        c->mode = i & 4 ? VIRTUAL_EAGER : VIRTUAL_RENDEZVOUS;
        c->average = sums(c->algorithm) && (i + c->n) % 3 == 0;
        c->seed = c->seed * 31 + 7;
        run_one(c);
    }
}

static void run_sizes(const struct algorithm *a, int n, int root)
{
    const size_t counts[] = { 0, 1, (size_t)n - 1, (size_t)n, 1000 };
    enum sizes usual = a->op == LS_COLLECTIVE_ALL_REDUCE ? SPLIT : EVEN;

    for (size_t i = 0; i < COUNT_OF(counts) + SIZES - MIXED; i++) {
        struct virtual_case c = { .algorithm = a, .n = n, .root = root, .seed = (unsigned)n };
        bool even = i < COUNT_OF(counts);
        size_t count = even ? counts[i] : 0;

        if (count == 1000 && usual == EVEN && n > 4) count = 1000 / (size_t)n + 1;  /* chunks of 5 all the same */
        fill_borders(&c, even ? usual : (enum sizes)(MIXED + (int)(i - COUNT_OF(counts))), count);
        run_variants(&c);
    }
}

static void all_step_lists_are_correct(void **state)
{
    (void)state;
    for (int i = 0; algorithm_at(i); i++)
        for (int n = 1; n <= VIRTUAL_RANKS; n++) {
            bool rooted = algorithm_at(i)->op == LS_COLLECTIVE_BROADCAST;

            for (int root = 0; root < (rooted ? n : 1); root += MAX(1, n / 2)) run_sizes(algorithm_at(i), n, root);
        }
}

/* Blocks of 1000 elements on every rank, whole. */
static void large_blocks_are_correct(void **state)
{
    (void)state;
    for (int i = 0; algorithm_at(i); i++)
        for (int n = 5; n <= VIRTUAL_RANKS; n += 4) {
            struct virtual_case c = { .algorithm = algorithm_at(i), .n = n, .root = n / 2, .seed = 3, .chunk = 300 };

            fill_borders(&c, EVEN, 1000);
            run_one(&c);
        }
}

/* ---- rounding ---- */

static void run_rounding(const struct algorithm *a, int n, enum virtual_type type, bool average)
{
    struct virtual_case c = { .algorithm = a, .n = n, .type = type, .seed = (unsigned)n, .average = average, .chunk = 9 };
    struct virtual_run first, again;

    fill_borders(&c, a->op == LS_COLLECTIVE_ALL_REDUCE ? SPLIT : EVEN, a->op == LS_COLLECTIVE_ALL_REDUCE ? 100 : 20);
    virtual_run(&c, &first);
    c.seed += 99;
    c.in_place = true;
    c.mode = VIRTUAL_EAGER;
    virtual_run(&c, &again);
    for (int r = 0; r < n; r++) {
        size_t bytes = first.recvs[r] * sizeof(double);

        assert_memory_equal(first.recv[r], again.recv[r], bytes);  /* whatever came first, in place or not */
        if (a->op == LS_COLLECTIVE_ALL_REDUCE) assert_memory_equal(first.recv[r], first.recv[0], bytes);
    }
    if (a->half) check_values(&c, &first);  /* rank order, f32, one rounding */
    virtual_free(&first);
    virtual_free(&again);
}

static void sums_have_a_fixed_order(void **state)
{
    (void)state;
    for (int i = 0; algorithm_at(i); i++)
        for (int n = 1; sums(algorithm_at(i)) && n <= VIRTUAL_RANKS; n++) {
            run_rounding(algorithm_at(i), n, VIRTUAL_F32, n % 2);
            if (!algorithm_at(i)->half) continue;
            run_rounding(algorithm_at(i), n, VIRTUAL_BF16, false);
            run_rounding(algorithm_at(i), n, VIRTUAL_BF16, true);
        }
}

/* A ring rounds intermediate sums, which the check above detects. */
static void ring_rounds_half_sums_differently(void **state)
{
    struct virtual_case c = { .algorithm = algorithm_named(LS_COLLECTIVE_ALL_REDUCE, "ring"), .n = 8, .type = VIRTUAL_BF16 };
    struct virtual_run v;
    int other = 0;

    (void)state;
    fill_borders(&c, SPLIT, 100);
    virtual_run(&c, &v);
    for (size_t i = 0; i < 100; i++) other += v.recv[0][i] != steps_expected(&c, 0, i);
    assert_true(other > 10);
    virtual_free(&v);
}

/* ---- claims C2 and C3: bytes that one rank sends ---- */

static size_t sent_by(const char *name, ls_collective op, int n, int rank, size_t count, int *messages)
{
    struct virtual_case c = { .algorithm = algorithm_named(op, name), .n = n };
    struct shape_of_call shape = { .rank = rank, .n = n };
    struct step_list l = { 0 };

    fill_borders(&c, EVEN, count / (size_t)n);
    shape.at = c.at[rank];
    assert_int_equal(c.algorithm->make(&shape, &l), LS_OK);
    size_t sent = steps_sent(&l);
    *messages = 0;
    for (int i = 0; i < l.n; i++) *messages += l.step[i].to >= 0;
    steps_free(&l);
    return sent;
}

static void bytes_per_rank_equal_formula(void **state)
{
    int messages;

    (void)state;
    for (int n = 2; n <= 16; n++) {
        size_t count = (size_t)n * 60, share = 60 * (size_t)(n - 1);  /* D (n-1)/n */

        for (int r = 0; r < n; r++) {
            assert_int_equal(sent_by("ring", LS_COLLECTIVE_ALL_REDUCE, n, r, count, &messages), 2 * share);
            assert_int_equal(messages, 2 * (n - 1));
            assert_int_equal(sent_by("direct", LS_COLLECTIVE_ALL_REDUCE, n, r, count, &messages), 2 * share);
            assert_int_equal(sent_by("halving_doubling", LS_COLLECTIVE_ALL_REDUCE, n, r, count, &messages), 2 * share);
            assert_true(messages <= ((n & (n - 1)) == 0 ? 2 : 4) * rounds_of(n));
            assert_int_equal(sent_by("ring", LS_COLLECTIVE_REDUCE_SCATTER, n, r, count, &messages), share);
            assert_int_equal(sent_by("halving", LS_COLLECTIVE_REDUCE_SCATTER, n, r, count, &messages), share);
            assert_int_equal(sent_by("ring", LS_COLLECTIVE_ALL_GATHER, n, r, count, &messages), share);
            assert_int_equal(sent_by("doubling", LS_COLLECTIVE_ALL_GATHER, n, r, count, &messages), share);
            assert_int_equal(sent_by("central", LS_COLLECTIVE_ALL_REDUCE, n, r, count, &messages),
                             r == 0 ? (size_t)(n - 1) * count : count);
        }
    }
}

/* ---- lists ---- */

static void empty_steps_are_dropped(void **state)
{
    struct step_list l = { 0 };
    const struct span none = { IN_RECV, 4, 0 }, some = { IN_RECV, 4, 2 };

    (void)state;
    assert_int_equal(steps_push(&l, (struct step){ 1, 2, none, none, STEP_REDUCE, true }), LS_OK);
    assert_int_equal(steps_push(&l, (struct step){ -1, -1, some, some, STEP_LOCAL, false }), LS_OK);
    assert_int_equal(steps_push(&l, (struct step){ -1, -1, none, none, STEP_LOCAL_REDUCE, false }), LS_OK);
    assert_int_equal(l.n, 0);
    assert_int_equal(steps_push(&l, (struct step){ 1, 2, some, none, STEP_REDUCE, true }), LS_OK);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.step[0].from, -1);
    assert_int_equal(l.step[0].to, 1);
    assert_false(l.step[0].done);
    assert_int_equal(steps_sent(&l), 2);
    steps_free(&l);
    assert_null(l.step);
}

static void step_lists_fail_cleanly_without_memory(void **state)
{
    size_t at[9] = { 0 };

    (void)state;
    for (int i = 0; i < 8; i++) at[i + 1] = at[i] + 10;
    for (int i = 0; algorithm_at(i); i++) {
        struct shape_of_call shape = { .rank = 0, .n = 8, .at = at, .recv_at = at, .chunk = 1 };
        struct step_list l = { 0 };

        for (int nth = 1;; nth++) {
            mem_fail_at(nth);
            ls_status st = algorithm_at(i)->make(&shape, &l);
            mem_fail_at(0);
            steps_free(&l);
            if (st == LS_OK) break;
            assert_int_equal(st, LS_ENOMEM);
            assert_true(nth < 20);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_step_lists_are_correct),
        cmocka_unit_test(large_blocks_are_correct),
        cmocka_unit_test(sums_have_a_fixed_order),
        cmocka_unit_test(ring_rounds_half_sums_differently),
        cmocka_unit_test(bytes_per_rank_equal_formula),
        cmocka_unit_test(empty_steps_are_dropped),
        cmocka_unit_test(step_lists_fail_cleanly_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
